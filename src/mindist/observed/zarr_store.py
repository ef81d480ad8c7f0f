"""Zarr, versions 2 and 3, in a folder: read slice by slice.

The metadata of an array name codecs, of which one unpickles, and others are loaded from whatever is
installed. They are read as plain JSON first: an array is opened only if all of its codecs are among
those that only decompress. Links within the folder are refused, because they may lead out of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mindist.observed.arrays import ArraySource, chosen_keys, plan
from mindist.observed.shape import check_array, split
from mindist.observed.source import Request, needs
from mindist.observed.zarr_metadata import (
    BROKEN,
    CODECS,
    MAX_CHUNK_BYTES,
    of_version_2,
    of_version_3,
)
from mindist.storage import read_json

V2, V3 = ".zarray", "zarr.json"
MAX_FILES = 10_000_000


def read_zarr(request: Request) -> ArraySource:
    """The datasets in a Zarr store."""
    found = dict(_arrays(request))
    keys = chosen_keys(sorted(found), request)
    arrays = {key: _metadata(found[key], request) for key in keys}
    names, event, many = plan(arrays, request)

    @contextmanager
    def opened() -> Iterator[Callable[[str, bool], Iterator[NDArray[Any]]]]:
        with request.reading("Zarr", BROKEN):
            yield lambda key, many: split(_open(found[key], arrays[key], request), many)

    return ArraySource(names, event, many, opened)


def _arrays(request: Request) -> Iterator[tuple[str, Path]]:
    """The arrays in a folder, by their paths in it."""
    count, array = 0, None
    for folder, folders, files in os.walk(request.path):
        count += len(files)
        here = Path(folder)
        links = [name for name in (*folders, *files) if (here / name).is_symlink()]
        if links or count > MAX_FILES:
            why = f"it has a link, {links[0][:80]!r}" if links else "it has too many files"
            raise request.unreadable("Zarr", why)
        if array is not None and here.is_relative_to(array):
            continue  # its chunks
        if V2 in files or (V3 in files and _json(here / V3, request).get("node_type") == "array"):
            array = here
            yield str(here.relative_to(request.path)).replace(os.sep, "/"), here


def _json(file: Path, request: Request) -> dict[str, Any]:
    try:
        value = read_json(file)
    except ValueError as error:
        raise request.unreadable("Zarr", f"{file.name}: {error}") from error
    if not isinstance(value, dict):
        raise request.unreadable("Zarr", f"{file.name} is no table")
    return value


def _metadata(folder: Path, request: Request) -> tuple[Any, tuple[int, ...]]:
    """Type and shape of an array that is safe to open."""
    with request.reading("Zarr", BROKEN):
        if (folder / V2).is_file():
            dtype, shape, chunks, codecs = of_version_2(_json(folder / V2, request))
        else:
            dtype, shape, chunks, codecs = of_version_3(_json(folder / V3, request))
    unknown = sorted(set(codecs) - CODECS)
    if unknown:
        raise ValueError(
            f"path: {folder} is stored with the codec {unknown[0][:80]!r}, which mindist does not "
            "run: some execute what the file says. Copy the array with zstd, gzip or blosc."
        )
    check_array(f"path: {folder}", dtype, shape, request)
    if not all(0 < size < 2**40 for size in chunks) or len(chunks) != len(shape):
        raise request.unreadable("Zarr", f"its chunks have shape {chunks}")
    if math.prod(chunks) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise request.unreadable("Zarr", f"its chunks are of more than {MAX_CHUNK_BYTES:,} bytes")
    return dtype, shape


def _open(folder: Path, expected: tuple[Any, tuple[int, ...]], request: Request) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise needs("zarr", "Zarr") from error
    version = 2 if (folder / V2).is_file() else 3
    array = zarr.open_array(store=str(folder), mode="r", zarr_format=version)  # type: ignore[arg-type]
    if (array.dtype, tuple(array.shape)) != expected:
        raise request.unreadable("Zarr", "its type or shape has changed")
    return array


__all__ = ["read_zarr"]
