"""HDF5: datasets that lie in the file itself, read slice by slice.

A file may name other files (external links, external storage, virtual datasets) and filters that
are loaded as shared libraries. None of these is followed: only hard links, and only the filters
that every HDF5 library has built in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from mindist.observed.arrays import ArraySource, chosen_keys, plan
from mindist.observed.shape import check_array, split
from mindist.observed.source import Request, needs

# deflate, shuffle, fletcher32, szip, nbit, scaleoffset; and lzf, which h5py brings.
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
MAX_OBJECTS, MAX_DEPTH = 10_000, 32
MAX_CHUNK_BYTES = 2**30
BROKEN = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)


def read_hdf5(request: Request) -> ArraySource:
    """The datasets in an HDF5 file."""
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}
    refused: dict[str, str] = {}
    with request.reading("HDF5", BROKEN), _file(request) as file:
        for name, dataset in _walk(file, request):
            found[name] = (dataset.dtype, tuple(int(size) for size in dataset.shape or ()))
            why = _foreign(dataset)
            if why:
                refused[name] = why
    keys = chosen_keys(list(found), request)
    for key in keys:
        if key in refused:
            raise ValueError(f"path: {request.path}, {key[:80]!r} {refused[key]}")
        check_array(f"path: {request.path}, {key[:80]!r}", *found[key], request)
    names, event, many = plan({key: found[key] for key in keys}, request)

    @contextmanager
    def opened() -> Iterator[Callable[[str, bool], Iterator[NDArray[Any]]]]:
        with request.reading("HDF5", BROKEN), _file(request) as file:
            yield lambda key, many: split(file[key], many)

    return ArraySource(names, event, many, opened)


@contextmanager
def _file(request: Request) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as error:
        raise needs("h5py", "HDF5") from error
    with h5py.File(request.path, "r", locking=False) as file:
        yield file


def _walk(group: Any, request: Request) -> Iterator[tuple[str, Any]]:
    """The datasets of a file by their paths, through hard links only."""
    import h5py

    waiting, count = [("", group, 0)], 0
    seen = {h5py.h5o.get_info(group.id).addr}  # links may go in circles
    while waiting:
        prefix, parent, depth = waiting.pop(0)
        for name in parent:
            count += 1
            if count > MAX_OBJECTS or depth > MAX_DEPTH:
                raise request.unreadable("HDF5", "it holds too many groups and arrays")
            if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
                continue
            item = parent[name]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Dataset):
                yield f"{prefix}{name}", item
            elif isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)
                waiting.append((f"{prefix}{name}/", item, depth + 1))


def _foreign(dataset: Any) -> str | None:
    """Why a dataset is not read: what it would take from elsewhere, or how much."""
    if dataset.is_virtual or dataset.external:
        return (
            "takes its numbers from other files, which are not read. Copy them into one file, for "
            "example with h5repack or h5py."
        )
    plist = dataset.id.get_create_plist()
    used = {int(plist.get_filter(i)[0]) for i in range(plist.get_nfilters())}
    if used - FILTERS:
        return (
            f"is compressed by filter {min(used - FILTERS)}, a plug-in, which is not loaded. Copy "
            "the file with another compression, for example gzip."
        )
    if math.prod(dataset.chunks or ()) * dataset.dtype.itemsize > MAX_CHUNK_BYTES:
        return f"has chunks of more than {MAX_CHUNK_BYTES:,} bytes. Copy it with smaller ones."
    return None


__all__ = ["read_hdf5"]
