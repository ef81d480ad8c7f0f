"""Parquet, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindist import parquet
from mindist.observed.source import Request
from mindist.observed.table import Block, TableSource, choose_columns, make_table, to_block

ROWS = 65_536  # decoded at once


def read_parquet(request: Request) -> TableSource:
    """The rows of a Parquet file."""
    with parquet.opened(request.path, request.path, request.max_bytes) as file:
        schema = file.schema_arrow
        numeric = [field.name for field in schema if _is_number(field.type)]
        columns = choose_columns(numeric, schema.names, request)

    def blocks(chosen: Sequence[str]) -> Iterator[Block]:
        wanted = [*chosen, *([] if request.dataset is None else [request.dataset])]
        with parquet.opened(request.path, request.path, request.max_bytes) as file:
            for batch in file.iter_batches(ROWS, columns=wanted, use_threads=False):
                batch.validate(full=True)
                yield to_block(batch, chosen, request.dataset)

    keys = None if request.dataset is None else lambda: blocks([])
    return make_table(lambda: blocks(columns), keys, len(columns), request)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


__all__ = ["read_parquet"]
