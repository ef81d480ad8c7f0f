"""CSV and Parquet: which columns are the observation, and which rows belong to which dataset.

A table is read as a whole, once what the file says of its size is compared with `max_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mindist.observed.source import Request, Source, not_numbers

BLOCK_BYTES = 2**20  # also the longest line of a CSV file that is read
MAX_COLUMNS = 2**16
MAX_STRING, MAX_CONTAINER = 2**24, 2**20  # bytes of a text, items of a list, in Parquet's footer


def read_csv(request: Request) -> Source:
    """Read a CSV file. Empty fields, NA, NaN, null and the like are missing values."""
    with request.reading("CSV"):
        from pyarrow import csv, string

        with request.path.open("rb") as file:
            line = file.readline(BLOCK_BYTES).decode("utf-8-sig")
        if not line:
            raise ValueError(f"path: {request.path} is empty.")
        delimiter = max(",;\t", key=line.count)
        if line.count(delimiter) >= MAX_COLUMNS:
            raise ValueError(f"it has more than {MAX_COLUMNS} columns")
        first = [field.strip(' \t\r\n"') for field in line.split(delimiter)]
        request.check_size(request.path.stat().st_size)
        kinds = {} if request.dataset is None else {request.dataset: string()}
        table = csv.read_csv(
            request.path,
            csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                autogenerate_column_names=all(map(_is_number, first)),
            ),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(strings_can_be_null=True, column_types=kinds),
        )
        return _source(table.schema, lambda names: table.select(names), request)


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field)) or True
    except ValueError:
        return False


def read_parquet(request: Request) -> Source:
    """Read a Parquet file, of which only the columns that are asked for.

    A few bytes can claim any number of rows: what the footer says is compared with `max_bytes`
    before anything is decoded.
    """
    with request.reading("Parquet"):
        import pyarrow.parquet as pq

        with pq.ParquetFile(
            request.path,
            thrift_string_size_limit=MAX_STRING,
            thrift_container_size_limit=MAX_CONTAINER,
            page_checksum_verification=True,
        ) as file:
            claims = file.metadata
            groups = [claims.row_group(i) for i in range(claims.num_row_groups)]
            rows = [claims.num_rows, *(group.num_rows for group in groups)]
            stored = [group.total_byte_size for group in groups]
            if min(rows + stored) < 0:
                raise ValueError("it says that it has fewer than no rows")
            values = max(rows[0], sum(rows[1:])) * claims.num_columns
            request.check_size(max(4 * values, sum(stored)))

            def read(names: list[str]) -> Any:
                table = file.read(names, use_threads=False)
                table.validate(full=True)
                return table

            return _source(file.schema_arrow, read, request)


def _source(schema: Any, read: Callable[[list[str]], Any], request: Request) -> Source:
    """Read some columns of a table, and sort its rows into datasets."""
    import pyarrow as pa

    columns = _columns(schema, request)
    table = read([*columns, *([] if request.dataset is None else [request.dataset])])
    # As Python would: 2**53 + 1 is rounded, where Arrow makes it an error; null becomes NaN.
    x = np.empty((table.num_rows, len(columns)))
    for i, name in enumerate(columns):
        x[:, i] = table.column(name).cast(pa.float64(), safe=False).to_numpy()
    event = (len(columns),) if request.event_shape is None else request.event_shape
    x = x.reshape(-1, *event)
    if request.dataset is None:
        return Source([0], event, lambda: iter([x]))
    column = table.column(request.dataset).combine_chunks()
    codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = codes.dictionary.to_pylist() + [None] * bool(column.null_count)
    wrong = [name for name in names if not isinstance(name, str | int | float) or name != name]
    if wrong:
        raise ValueError(
            f"columns: expected a text or a number in each row of {request.dataset!r}, got "
            f"{str(wrong[0])[:80]}. Drop the rows that belong to no dataset."
        )
    index = codes.indices.to_numpy()
    found, first, counts = np.unique(index, return_index=True, return_counts=True)
    parts = np.split(x[np.argsort(index, kind="stable")], np.cumsum(counts)[:-1])
    order = np.argsort(first)  # names in the order in which they first occur
    return Source([names[found[i]] for i in order], event, lambda: iter([parts[i] for i in order]))


def _columns(schema: Any, request: Request) -> list[str]:
    """Return the columns of the observation: those asked for, or all numeric but the dataset's."""
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    numeric = [field.name for field in schema if any(fits(field.type) for fits in kinds)]
    every = schema.names
    twice = {name for name in every if every.count(name) > 1} if len(every) < 1_000 else ()

    def listed(names: list[str]) -> str:
        return ", ".join(repr(name[:80]) for name in names[:20]) + (", ..." if names[20:] else "")

    if request.dataset is not None and request.dataset not in every:
        raise ValueError(
            f"dataset: {request.path} has no column {request.dataset!r}. It has {listed(every)}."
        )
    chosen = [name for name in numeric if name != request.dataset]
    if request.columns is not None:
        chosen = list(request.columns)
    for name in chosen:
        if name not in every or name in twice:
            what = "two columns" if name in twice else "no column"
            raise ValueError(
                f"columns: {request.path} has {what} {name!r}. It has {listed(every)}."
            )
        if name not in numeric:
            raise not_numbers(f"columns: {request.path}, {name!r}", "a column of something else")
    if not chosen:
        raise ValueError(
            f"columns: {request.path} has no column of numbers. It has {listed(every)}. One word "
            "in a column makes it one of text; what is missing should be left empty, or be NA or "
            "NaN."
        )
    if request.event_shape is not None and len(chosen) != (
        wanted := math.prod(request.event_shape)
    ):
        index = " One without a name is often an index." if "" in chosen else ""
        raise ValueError(
            f"columns: expected {wanted} column{'s' * (wanted > 1)} for an observation of shape "
            f"{request.event_shape}, got {len(chosen)}: {listed(chosen)}.{index} Choose "
            f"{'them' if wanted > 1 else 'it'} with columns=[...]."
        )
    return chosen
