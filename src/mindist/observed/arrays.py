"""Files that hold arrays: `.npy`, mapped into memory, `.npz`, Zarr and HDF5.

Each defence here answers a hostile file of tests/test_observed.py: objects, which NumPy would
unpickle; codecs of Zarr that unpickle; links out of a Zarr folder; sizes that a few bytes claim.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindist import storage
from mindist.observed.source import Request, Source, not_numbers

MAX_HEADER = 10_000  # characters: NumPy's own limit
BLOCK_BYTES = 2**26  # of datasets that are read at once
MAX_CHUNK_BYTES = 2**30
# None of these does more than to decompress.
CODECS = {"blosc", "bz2", "bytes", "crc32", "crc32c", "delta", "gzip", "lz4", "lzma", "shuffle"}
CODECS |= {"sharding_indexed", "transpose", "zlib", "zstd"}
HDF5_PROGRAM = Path(__file__).with_name("hdf5_copy.py")
HDF5_SECONDS = 600.0  # a busy process ends itself earlier: hdf5_copy.py

Open = Callable[[], Any]
"""Opens an array, which has a dtype and a shape and can be sliced."""


def read_npy(request: Request) -> Source:
    """Map a `.npy` file; what is not asked for stays on the disk."""

    def opened() -> Any:
        return np.lib.format.open_memmap(request.path, "r", max_header_size=MAX_HEADER)

    return _source("npy", {"x": opened}, request, compressed=False)


def read_npz(request: Request) -> Source:
    """Read an `.npz` file, one array at a time."""
    with request.reading("npz"), zipfile.ZipFile(request.path) as archive:
        sizes = {m.filename: m.file_size for m in archive.infolist()}
    keys = _keys([name[:-4] for name in sizes if name.endswith(".npy")], request)
    request.check_size(sum(sizes[f"{key}.npy"] for key in keys))

    def opened(key: str) -> Any:
        with np.load(request.path, allow_pickle=False, max_header_size=MAX_HEADER) as archive:
            return archive[key]

    return _source("npz", {key: partial(opened, key) for key in keys}, request)


def read_zarr(request: Request) -> Source:
    """Read a Zarr store, version 2 or 3, slice by slice."""
    with request.reading("Zarr"):
        found = dict(_zarr_arrays(request.path))
    keys = _keys(sorted(found), request)
    return _source("Zarr", {key: partial(_open_zarr, found[key]) for key in keys}, request)


def _zarr_arrays(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the arrays in a folder by their paths in it; refuse links, which may lead out of it."""
    array = None
    for name, folders, files in os.walk(root):
        folder = Path(name)
        for entry in (*folders, *files):
            if (folder / entry).is_symlink():
                raise ValueError(f"it has a link, {entry[:80]!r}")
        if array is not None and folder.is_relative_to(array):
            continue  # its chunks
        if ".zarray" in files or ("zarr.json" in files and "codecs" in _zarr_json(folder)):
            array = folder
            yield folder.relative_to(root).as_posix(), folder


def _zarr_json(folder: Path) -> dict[str, Any]:
    old = folder / ".zarray"
    value = storage.read_json(old if old.exists() else folder / "zarr.json")
    return value if isinstance(value, dict) else {}


def _open_zarr(folder: Path) -> Any:
    """Open an array whose metadata name no codec that could run what the file says."""
    unknown = sorted(set(_codecs(_zarr_json(folder))) - CODECS)
    if unknown:
        raise ValueError(
            f"path: {folder} is stored with the codec {unknown[0][:80]!r}, which mindist does not "
            "run: some execute what the file says. Copy the array with zstd, gzip or blosc."
        )
    import zarr

    version: Any = 2 if (folder / ".zarray").exists() else 3
    array = zarr.open_array(store=str(folder), mode="r", zarr_format=version)
    if math.prod(array.chunks) * array.dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(f"its chunks are of more than {MAX_CHUNK_BYTES:,} bytes")
    return array


def _codecs(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of codecs of version 2 or 3, and of those within them."""
    lists = [values.get(name) or [] for name in ("codecs", "index_codecs", "filters")]
    for step in filter(None, [values.get("compressor"), *chain(*lists)]):
        own: Any = {"name": step} if isinstance(step, str) else step
        yield from (str(own[name]) for name in ("name", "id") if name in own)
        yield from _codecs(own.get("configuration") or {})


def read_hdf5(request: Request) -> Source:
    """Let another process copy arrays of an HDF5 file to `.npy` files, and map these.

    The HDF5 library runs for ever on some damaged files (tests/fixtures/endless.h5), and crashes on
    others: in a process that can be ended, with a limit of time and memory, that harms nobody.
    """
    folder = tempfile.mkdtemp(prefix="mindist-hdf5-")

    def opened(key: str) -> Any:
        return np.load(Path(folder, f"{list(found).index(key)}.npy"), mmap_mode="r")

    weakref.finalize(opened, shutil.rmtree, folder, ignore_errors=True)
    wanted = [request.key] if isinstance(request.key, str) else request.key
    task = {"path": str(request.path.resolve()), "folder": folder, "keys": wanted}
    with request.reading("HDF5"):
        if find_spec("h5py") is None:
            raise ModuleNotFoundError(name="h5py")
        answer = subprocess.run(
            [sys.executable, str(HDF5_PROGRAM)],
            input=json.dumps({**task, "max_bytes": request.max_bytes}),
            capture_output=True,
            text=True,
            timeout=HDF5_SECONDS,
            check=False,
        )
        if answer.returncode:
            said = answer.stderr.strip().rpartition("\n")[2]
            raise ValueError(said or "the HDF5 library crashed on it, or did not come to an end")
        found = json.loads(answer.stdout)
    keys, total = _keys(list(found), request), 0
    for key in keys:
        where, (dtype, shape, refused) = f"path: {request.path}, {key[:80]!r}", found[key]
        if refused:
            raise ValueError(f"{where} {refused}")
        total += _check(where, np.dtype(dtype), shape)
        request.check_size(total)
    return _source("HDF5", {key: partial(opened, key) for key in keys}, request)


def _keys(available: Sequence[str], request: Request) -> list[str]:
    """Return the arrays that the user means."""
    key = request.key
    listed = ", ".join(repr(name[:80]) for name in available[:20])
    listed += ", ..." if len(available) > 20 else ""
    if not available:
        raise ValueError(f"path: {request.path} holds no arrays.")
    if key is None and len(available) > 1:
        raise ValueError(
            f"key: {request.path} holds {len(available)} arrays: {listed}. Choose one, such as "
            f"key={available[0][:80]!r}, or several, each of them one dataset, as a list; '*' "
            "means all."
        )
    wanted = list(available) if key in (None, "*") else [key] if isinstance(key, str) else list(key)
    for name in wanted:
        if name not in available:
            raise ValueError(f"key: {request.path} has no array {name!r}. It holds {listed}.")
    if not wanted:
        raise ValueError(f"key: expected at least one of the arrays {listed}, got none.")
    return wanted


def _source(
    kind: str, arrays: Mapping[str, Open], request: Request, *, compressed: bool = True
) -> Source:
    """Plan the datasets in some arrays, whose file may be smaller than its data."""
    total, many, names, event = 0, {}, [], request.event_shape
    for key, opened in arrays.items():
        where = f"path: {request.path}" + (f", {key!r}" if len(arrays) > 1 else "")
        with request.reading(kind):
            array = opened()
            shape = tuple(array.shape)
            total += _check(where, array.dtype, shape)
        if compressed:
            request.check_size(total)  # before there is a name for each dataset
        if event is None and len(arrays) > 1:
            event = shape[1:]  # of several arrays each is one dataset
        many[key] = _is_batch(shape, event, where)
        event = shape[2:] if many[key] else shape[1:]
        numbers: list[Any] = list(range(shape[0])) if many[key] else [0]
        several: list[Any] = [(key, i) for i in numbers] if many[key] else [key]
        names += numbers if len(arrays) == 1 else several

    def read() -> Iterator[NDArray[Any]]:
        with request.reading(kind):
            for key, opened in arrays.items():
                yield from _split(opened(), many[key])

    return Source(names, event or (), read)


def _check(where: str, dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Refuse what are no observations of real numbers; return the bytes of the array."""
    if dtype.kind not in "fiub":
        raise not_numbers(where, f"an array of type {str(dtype)[:80]}")
    if not shape:
        raise ValueError(f"{where}: expected an array of observations, got a single number.")
    if 0 in shape:
        raise ValueError(f"{where}: expected observations, got an empty array {tuple(shape)}.")
    return math.prod(int(size) for size in shape) * int(dtype.itemsize)


def _is_batch(shape: tuple[int, ...], event: tuple[int, ...] | None, where: str) -> bool:
    """Return whether an array of this shape holds many datasets."""
    if event is None:
        if len(shape) == 1:
            return False
        raise ValueError(
            f"{where}: an array of shape {shape} may be one dataset (N, *event) or many, "
            "(B, N, *event). Say what one observation is: event_shape=mds.event_shape of a fitted "
            f"estimator, or for one dataset event_shape={shape[1:]}, for many {shape[2:]}."
        )
    extra = len(shape) - len(event)
    if extra not in (1, 2) or shape[extra:] != event:
        one, batch = (", ".join([*first, *map(str, event)]) for first in ("N", ("B", "N")))
        raise ValueError(
            f"{where}: expected one dataset of shape ({one}) or many, ({batch}), got an array of "
            f"shape {shape}. Give the event_shape of the observations in the file, or reshape them "
            "to the one that was simulated."
        )
    return extra == 2


def _split(array: Any, many: bool) -> Iterator[NDArray[Any]]:
    """Yield the datasets of an array, as few at a time as its chunks allow."""
    if not many:
        yield np.asarray(array[...])
        return
    chunks = getattr(array, "chunks", None)  # each of which is decompressed once, if not too large
    size = math.prod(array.shape[1:]) * array.dtype.itemsize
    step = max(1, min(chunks[0] if chunks else 1, BLOCK_BYTES // size))
    for begin in range(0, array.shape[0], step):
        yield from np.asarray(array[begin : begin + step])
