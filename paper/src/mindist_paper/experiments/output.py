"""The folder that results are written to: whose it is, what it holds, and the bytes of a run.

::

    OUT/mindist-reproduce.json   which profile and version of results
    OUT/store/                   finished cells and trained parts, found by their configuration
    OUT/NAME/                    rows.parquet, figure.png, figure.svg, table.md, config.json
    OUT/index.html               after `mindist reproduce all`
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mindist import storage
from mindist.observed.source import Request
from mindist.observed.tables import opened_parquet
from mindist.posteriors.guards import warn_user
from mindist.storage import write_whole
from mindist_paper.evaluation.cell import RESULTS_VERSION
from mindist_paper.evaluation.store import MAX_CELL_BYTES, Store, checksum, room_for

MARKER = "mindist-reproduce.json"


class OutputError(ValueError):
    """The folder belongs to something else."""


class Output:
    """A folder of results of one profile.

    Arguments:
        folder: New, empty, or written by the same profile and version.
        profile: One of `PROFILES`.
    """

    def __init__(self, folder: str | os.PathLike[str], profile: str) -> None:
        self.folder, self.profile = Path(folder), profile
        self._claim()
        try:
            self.store = Store(self.folder / "store")
        except ValueError as error:
            raise OutputError(f"--out: {error}") from None

    def _claim(self) -> None:
        """Mark a new folder, refuse one that is something else."""
        marker, folder = self.folder / MARKER, self.folder
        mine = {"kind": "mindist reproduce", "results": RESULTS_VERSION, "profile": self.profile}
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"--out: expected a folder, got the file {folder}.")
        if marker.is_file():
            found = read_json(marker)
            if not isinstance(found, dict) or found.get("kind") != mine["kind"]:
                raise OutputError(
                    f"--out: {marker} is damaged. If {folder} holds results of mindist, delete "
                    "this one file to go on with them; else choose another folder."
                )
            if found.get("results") != RESULTS_VERSION:
                raise OutputError(
                    f"--out: {folder} holds results of version {found.get('results')}, this "
                    f"mindist computes version {RESULTS_VERSION}, whose numbers differ. Choose "
                    "another folder, or delete this one."
                )
            if found.get("profile") != self.profile:
                raise OutputError(
                    f"--out: {folder} holds results of the profile '{found.get('profile')}', not "
                    f"'{self.profile}'. Choose another folder, or give --profile "
                    f"{found.get('profile')}."
                )
            return
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                f"--out: {folder} is not empty and was not made by mindist (no {MARKER}). Choose a "
                "new or an empty folder."
            )
        with room_for(folder, "the results"):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(marker, as_json(mine))

    def place(self, name: str) -> Path:
        """The folder of an experiment."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole or not at all."""
        with room_for(self.folder, path.name):
            write_whole(path, content)

    def own_rows(self, name: str, key: Any, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """Rows that are no cells: stored ones of the same configuration, or new ones."""
        text = json.dumps([RESULTS_VERSION, name, key], sort_keys=True)
        folder = self.store.folder / "own"
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.parquet"
        if path.is_file():
            stored = read_rows(path)
            if stored is not None:
                return stored
            warn_user(f"{path} is damaged; the rows of {name} are computed again.")
        rows = make()
        with room_for(folder, f"the rows of {name}"):
            folder.mkdir(exist_ok=True)
            write_whole(path, rows_as_parquet(rows))
        return rows


def rows_as_parquet(rows: pd.DataFrame) -> bytes:
    """Rows as the bytes of a Parquet file, with a checksum of their values."""
    table = pa.Table.from_pandas(rows, preserve_index=False)
    table = table.replace_schema_metadata({"mindist.sha256": checksum(table)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def read_rows(path: Path) -> pd.DataFrame | None:
    """The rows of a Parquet file that is whole, else None."""
    try:
        with opened_parquet(Request(path, max_bytes=MAX_CELL_BYTES), path.read_bytes()) as file:
            table = file.read()
        metadata = table.schema.metadata or {}
        if metadata.get(b"mindist.sha256") != checksum(table).encode():
            return None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    rows: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
    return rows


def read_json(path: Path) -> Any:
    """The content of a JSON file, None if it is damaged."""
    try:
        return storage.read_json(path)
    except (OSError, ValueError):
        return None


def as_json(value: Any) -> bytes:
    """Indented JSON, UTF-8, with a final line break."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


__all__ = [
    "MARKER",
    "Output",
    "OutputError",
    "as_json",
    "read_json",
    "read_rows",
    "rows_as_parquet",
]
