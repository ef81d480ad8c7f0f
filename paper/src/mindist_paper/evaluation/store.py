"""Rows (cells/ADDRESS.parquet) and trained parts (trained/ADDRESS), found by their configuration.

Every file is there whole or not at all, for any number of processes; nothing in it is pickled.
"""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from mindist import checks
from mindist.storage import FullDiskError, room_for, write_whole

T = TypeVar("T")
# Columns of lists that a stored cell may have besides its rows: see `kept_samples`
KEPT = ["theta", "samples"]


class Store:
    """A folder of finished rows and trained parts."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.cells, self.trained = self.folder / "cells", self.folder / "trained"
        with room_for(self.folder, "the results folder"):
            for part in (self.cells, self.trained):
                part.mkdir(parents=True, exist_ok=True)

    def find(self, key: str) -> pd.DataFrame | None:
        """Return the rows at an address; None where there are none, or they are damaged."""
        path = self.cells / f"{key}.parquet"
        if not path.is_file():
            return None
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = str(error).splitlines()[0][:160]
            checks.warn_user(f"{path}: it cannot be read ({why}); its rows are computed again.")
            return None

    def write(self, key: str, rows: pd.DataFrame) -> None:
        """Store rows under an address."""
        with room_for(self.folder, "the rows of a cell"):
            write_whole(self.cells / f"{key}.parquet", as_parquet(rows))

    def part(
        self, key: str, what: str, make: Callable[[Path], Any], load: Callable[[Path], T]
    ) -> T:
        """Load a trained part, after making it where it is missing or damaged."""
        path = self.trained / key
        if path.exists():
            try:
                return load(path)
            except (ValueError, KeyError, OSError, RuntimeError) as error:
                checks.warn_user(f"{path}: {error} Now {what} is trained again.")
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            with room_for(self.folder, what):
                make(path)
        except FullDiskError:
            raise
        except OSError:
            if not path.exists():  # else another process has stored the same in the meantime
                raise
        return load(path)


def as_parquet(rows: pd.DataFrame) -> bytes:
    """Return rows as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    rows.to_parquet(buffer, compression="zstd", index=False)
    return buffer.getvalue()


def kept_samples(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what a cell keeps of posterior samples: one row for each of the first datasets."""
    if "samples" not in rows:
        return pd.DataFrame({"dataset": [], "theta": [], "samples": []})
    rows = rows.loc[rows.samples.notna(), ["dataset", *KEPT]].reset_index(drop=True)
    return rows.assign(samples=[pd.DataFrame(list(value)).to_numpy() for value in rows.samples])
