"""Parquet files from anywhere, opened within bounds.

A few bytes of Parquet can claim any number of rows, and columns of any type. Before anything is
decoded, what the file says of itself is compared with a limit; Arrow's exceptions become
ValueErrors that name the file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_STRING, MAX_CONTAINER = 2**24, 2**20  # bytes of a text, items of a list, in the file's footer


@contextmanager
def opened(source: Path | bytes, name: Path, max_bytes: int) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` of moderate size.

    Arguments:
        source: The file, or its content.
        name: What to call it in messages.
        max_bytes: How much its rows may take when they are decompressed.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: What happens within is Arrow's, or the file is larger.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow. Install it with: pip install 'mindist[files]'"
        ) from error
    try:
        file = pq.ParquetFile(
            io.BytesIO(source) if isinstance(source, bytes) else source,
            thrift_string_size_limit=MAX_STRING,
            thrift_container_size_limit=MAX_CONTAINER,
            page_checksum_verification=True,
        )
        with file:
            size = _claimed_bytes(file)
            if size > max_bytes:
                raise ValueError(
                    f"it says that its rows take {size:,} bytes, more than {max_bytes:,}"
                )
            yield file
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise ValueError(f"path: {name} cannot be read as Parquet: {why}.") from error


def _claimed_bytes(file: Any) -> int:
    """What the rows take once decoded, at least, as the footer has it."""
    metadata = file.metadata
    rows, columns = metadata.num_rows, metadata.num_columns
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if rows < 0 or any(group.num_rows < 0 or group.total_byte_size < 0 for group in groups):
        raise ValueError("it says that it has fewer than no rows")
    values = max(rows, sum(group.num_rows for group in groups)) * columns
    return int(max(4 * values, sum(group.total_byte_size for group in groups)))


__all__ = ["opened"]
