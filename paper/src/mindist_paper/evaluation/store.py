"""Results on disk, found by the content of their configuration.

A store is a folder::

    mindist-results.json     whose results these are: the version of the configuration
    cells/<address>.parquet  the rows of one finished cell
    trained/<address>/       one trained network or fitted estimator

A file is written under another name, forced to the disk and renamed, so that what is there is
whole. A cell's file carries its configuration and a checksum of its rows: what is damaged, or was
put there by somebody else, is computed again, with a note. Any number of processes may share a
store.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mindist.observed.source import Request
from mindist.observed.tables import opened_parquet
from mindist.posteriors.guards import warn_user
from mindist.storage import FullDiskError, read_json, room_for, write_whole
from mindist_paper.evaluation.cell import RESULTS_VERSION, Cell, canonical

MARKER = "mindist-results.json"
MAX_CELL_BYTES = 2**32  # the samples of a thousand datasets take a tenth of this
KEPT = ("theta", "samples")
"""Columns of lists that a stored cell has besides its rows: see `Store.read_samples`."""

STALE_SECONDS = 3_600  # a temporary file older than this was left by a run that was killed


class Store:
    """A folder of finished cells and trained parts.

    Arguments:
        folder: A folder that does not exist yet, is empty, or is a store already.

    Example:
        >>> import tempfile
        >>> from mindist_paper.evaluation.cell import BankSpec, Recipe, TestSpec
        >>> cell = Cell(BankSpec("gaussian", 100), Recipe("npe"), TestSpec(0.1))
        >>> store = Store(tempfile.mkdtemp())
        >>> store.write(cell, pd.DataFrame({"dataset": [0, 1], "rmse": [0.25, 0.5]}))
        >>> cell in store, store.read(cell).rmse.tolist()
        (True, [0.25, 0.5])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._claim()
        self.cells, self.trained = self.folder / "cells", self.folder / "trained"
        for part in (self.cells, self.trained):
            part.mkdir(exist_ok=True)
            _remove_stale(part)

    def _claim(self) -> None:
        """Mark a new folder as a store; refuse one that is something else."""
        marker = self.folder / MARKER
        if marker.is_file():
            try:
                version = read_json(marker)["results_version"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f"folder: {marker} is damaged. If {self.folder} holds results of mindist, "
                    "delete this file to go on with them; else choose another folder."
                ) from None
            if version != RESULTS_VERSION:
                raise ValueError(
                    f"folder: {self.folder} holds results of configuration version {version}, this "
                    f"mindist computes version {RESULTS_VERSION}, whose results differ. Choose "
                    "another folder, or use the mindist that wrote this one."
                )
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"folder: expected a folder, got the file {self.folder}.")
        if self.folder.is_dir() and {path.name for path in self.folder.iterdir()} - {
            "cells",
            "trained",
        }:
            raise ValueError(
                f"folder: {self.folder} is not empty and has no {MARKER}: it does not belong to "
                "mindist. Choose a new or an empty folder."
            )
        with room_for(self.folder, "the results folder"):
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"kind": "mindist results", "results_version": RESULTS_VERSION})
            write_whole(marker, f"{text}\n".encode())

    def __contains__(self, cell: Cell) -> bool:
        """Whether the cell is stored and whole; a damaged one is noted and counts as missing."""
        return self._table(cell) is not None

    def read(self, cell: Cell) -> pd.DataFrame:
        """The rows of a stored cell, one for each dataset."""
        return self._stored(cell).drop(columns=list(KEPT), errors="ignore")

    def read_samples(self, cell: Cell) -> pd.DataFrame:
        """What was kept of posterior samples: one row for each of the first datasets.

        Returns:
            Columns "dataset", "theta" (the true parameters, an array `(d_theta,)`) and "samples"
            (an array `(S, d_theta)`); no rows if none were kept.
        """
        frame = self._stored(cell)
        if "samples" not in frame:
            return pd.DataFrame({"dataset": [], "theta": [], "samples": []})
        frame = frame.loc[frame.samples.notna(), ["dataset", *KEPT]].reset_index(drop=True)
        frame["samples"] = [_matrix(value) for value in frame.samples]
        return frame

    def write(self, cell: Cell, rows: pd.DataFrame) -> None:
        """Store the rows of a finished cell."""
        table = pa.Table.from_pandas(rows, preserve_index=False)
        metadata = {"mindist.configuration": canonical(cell), "mindist.sha256": checksum(table)}
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
        with room_for(self.folder, f"the cell {describe(cell)}"):
            write_whole(self._path(cell), buffer.getvalue())

    def _stored(self, cell: Cell) -> pd.DataFrame:
        table = self._table(cell)
        if table is None:
            raise KeyError(f"The store {self.folder} has no cell {describe(cell)}.")
        frame: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
        return frame

    def _table(self, cell: Cell) -> Any:
        """The table of a cell, or None where there is none or it cannot be trusted."""
        path = self._path(cell)
        if not path.is_file():
            return None
        try:
            with opened_parquet(Request(path, max_bytes=MAX_CELL_BYTES), path.read_bytes()) as file:
                table = file.read()
                metadata = table.schema.metadata or {}
                why = "it belongs to another configuration"
                if metadata.get(b"mindist.configuration") == canonical(cell).encode():
                    why = "its checksum does not match its rows"
                    if metadata.get(b"mindist.sha256") == checksum(table).encode():
                        why = "its columns are not those of a cell"
                        if _fits(table.schema):
                            return table
        except (OSError, ValueError, TypeError, RecursionError) as error:
            # A TypeError or a RecursionError for values that no cell has.
            why = f"it cannot be read ({str(error).splitlines()[0][:160]})"
        warn_user(f"{path}: {why}; the cell {describe(cell)} is computed again.")
        return None

    def _path(self, cell: Cell) -> Path:
        return self.cells / f"{cell.address}.parquet"


def describe(cell: Cell) -> str:
    """A cell in a few words.

    Example:
        >>> from mindist_paper.evaluation.cell import BankSpec, Recipe, TestSpec
        >>> describe(Cell(BankSpec("oup", 100), Recipe("mds", options={"alpha": 0.1}), TestSpec(0)))
        "oup, mds {'alpha': 0.1}, epsilon 0, seed 0"
    """
    bank, recipe, test = cell.bank, cell.recipe, cell.test
    task = f"{bank.task} {dict(bank.options)}" if bank.options else bank.task
    method = f"{recipe.method} {dict(recipe.options)}" if recipe.options else recipe.method
    return f"{task}, {method}, epsilon {test.epsilon:g}, seed {bank.seed}"


def checksum(table: Any) -> str:
    """The SHA-256 of the values of a table, whatever version wrote it."""
    return hashlib.sha256(json.dumps(table.to_pydict(), sort_keys=True).encode()).hexdigest()


def _fits(schema: Any) -> bool:
    """Whether samples and parameters, if there are any, are lists of numbers."""
    for name, depth in (("theta", 1), ("samples", 2)):
        if name not in schema.names:
            continue
        kind = schema.field(name).type
        for _ in range(depth):
            if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
                return bool(pa.types.is_null(kind))
            kind = kind.value_type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            return False
    return "dataset" in schema.names


def _matrix(value: Any) -> Any:
    """A list of lists from parquet, as one array."""
    return pd.DataFrame(list(value)).to_numpy()


def _remove_stale(folder: Path) -> None:
    """Delete what killed runs have left half-written."""
    for path in folder.glob(".*"):
        try:
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            continue  # another process was faster


__all__ = ["FullDiskError", "Store", "checksum", "describe", "room_for"]
