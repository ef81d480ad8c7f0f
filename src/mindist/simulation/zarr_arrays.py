"""The bridge to Zarr: arrays whose files hold one chunk of a bank each. Nothing else imports it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mindist.simulation.extras import need


def create(path: Path, shape: tuple[int, ...], chunk: int, dtype: str) -> None:
    """Make an array with `chunk` rows in each file; rows that nobody wrote are NaN or False."""
    need("zarr").create_array(
        store=str(path),
        shape=shape,
        chunks=(chunk, *shape[1:]),
        dtype=dtype,
        fill_value=False if dtype == "bool" else math.nan,
        zarr_format=3,
        chunk_key_encoding={"name": "default", "separator": "."},
        # A file for every chunk, also of zeros: what is not there was never written.
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def open_array(path: Path, *, write: bool = False) -> Any:
    """A Zarr array, which gives NumPy arrays when it is sliced; or a clear error."""
    zarr = need("zarr")
    try:
        # Of version 3 only: in version 2 an array may be made of pickles.
        array = zarr.open_array(
            str(path),
            mode="r+" if write else "r",
            zarr_format=3,
            config={"write_empty_chunks": True},
        )
        if array.dtype.kind not in "fiub":
            raise TypeError(f"its numbers are {array.dtype}")
    except Exception as error:
        raise ValueError(
            f"path: {path / 'zarr.json'} is damaged or missing ({type(error).__name__}: {error}). "
            "Restore it from a copy, or simulate to another folder."
        ) from error
    return array


def file_of(name: str, index: int, dim: int) -> str:
    """Where in the bank the rows of one chunk are, of an array with `dim` axes.

    Example:
        >>> file_of("theta", 7, 2)
        'theta/c.7.0'
    """
    return f"{name}/c.{index}" + ".0" * (dim - 1)


def store_tensor(path: Path, value: np.ndarray[Any, Any]) -> None:
    """Write a small array, such as feature weights, in one piece."""
    zarr = need("zarr")
    array = zarr.create_array(
        store=str(path), shape=value.shape, dtype=value.dtype, zarr_format=3, overwrite=True
    )
    array[...] = value


__all__ = ["create", "file_of", "open_array", "store_tensor"]
