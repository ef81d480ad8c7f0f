"""CSV, block by block: comma, semicolon or tab, with or without a line of names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mindist.observed.source import Request, needs
from mindist.observed.table import Block, TableSource, choose_columns, make_table, to_block

BLOCK_BYTES = 2**20  # also the longest line that is read
MAX_COLUMNS = 2**16
DELIMITERS = (",", ";", "\t")
BROKEN = (OSError, ValueError, KeyError, OverflowError, MemoryError, TypeError, RuntimeError)


def read_csv(request: Request) -> TableSource:
    """The rows of a CSV file. Empty fields, NA, NaN, null and the like are missing values."""
    options, named = _dialect(request)
    with request.reading("CSV", BROKEN), _opened(request, options, named) as reader:
        schema = reader.schema
        numeric = [field.name for field in schema if _may_be_number(field.type)]
    columns = choose_columns(numeric, schema.names, request)

    def blocks(chosen: Sequence[str]) -> Iterator[Block]:
        with (
            request.reading("CSV", BROKEN),
            _opened(request, options, named, chosen, request.dataset) as reader,
        ):
            for batch in reader:
                yield to_block(batch, chosen, request.dataset)

    keys = None if request.dataset is None else lambda: blocks([])
    return make_table(lambda: blocks(columns), keys, len(columns), request)


def _dialect(request: Request) -> tuple[str, bool]:
    """The delimiter, and whether the first line are names."""
    with request.reading("CSV", BROKEN), request.path.open("rb") as file:
        line = file.readline(BLOCK_BYTES).decode("utf-8-sig")
    if not line:
        raise ValueError(f"path: {request.path} is empty.")
    delimiter = max(DELIMITERS, key=line.count)
    if line.count(delimiter) >= MAX_COLUMNS:
        raise request.unreadable("CSV", f"it has more than {MAX_COLUMNS} columns")
    fields = [field.strip(' \t\r\n"') for field in line.split(delimiter)]
    return delimiter, not all(_is_number(field) for field in fields)


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field)) or True
    except ValueError:
        return False


@contextmanager
def _opened(
    request: Request,
    delimiter: str,
    named: bool,
    columns: Sequence[str] | None = None,
    dataset: str | None = None,
) -> Iterator[Any]:
    """A reader of record batches; without columns, of all with the types of the first block."""
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError as error:
        raise needs("pyarrow", "CSV") from error
    convert = csv.ConvertOptions(strings_can_be_null=True)
    if columns is not None:
        types = {name: pa.float64() for name in columns}
        types |= {} if dataset is None else {dataset: pa.string()}
        convert = csv.ConvertOptions(
            column_types=types, include_columns=list(types), strings_can_be_null=True
        )
    with csv.open_csv(
        request.path,
        read_options=csv.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, autogenerate_column_names=not named
        ),
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=convert,
    ) as reader:
        yield reader


def _may_be_number(kind: Any) -> bool:
    """Whether a column is one of numbers, by its first block; an empty one may become that."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


__all__ = ["read_csv"]
