"""Results as tables in files, for other programs: CSV or Parquet, by the name of the file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mindist.cli.errors import extra
from mindist.cli.status import CommandError, UsageError

TABLES = (".csv", ".parquet")


def check_suffix(path: Path | None, option: str, known: Sequence[str]) -> None:
    """Refuse a name of which the format is not known, and a folder that is not there, at once."""
    if path is None:
        return
    if path.suffix.lower() not in known:
        raise UsageError(
            f"{option}: expected a file whose name ends in {', '.join(known)}, got {path.name!r}."
        )
    if not path.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {path.parent}. Make it first.")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length.

    Arguments:
        path: A file that ends in .csv or .parquet.
        columns: By name.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "x.csv"
        >>> write_table(path, {"name": ["a", "b"], "value": [0.5, 1.0]})
        >>> path.read_text().splitlines()
        ['name,value', 'a,0.5', 'b,1.0']
    """
    from mindist.storage import write_whole

    content = _csv(columns) if path.suffix.lower() == ".csv" else _parquet(columns)
    try:
        write_whole(path, content)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}.") from error


def _csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue().encode()


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    with extra("files"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    sink = io.BytesIO()
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), sink)
    return sink.getvalue()


__all__ = ["TABLES", "check_suffix", "write_table"]
