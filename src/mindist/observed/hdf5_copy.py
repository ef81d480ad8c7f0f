"""A program of its own, the only place where HDF5's library meets a file: run by `read_hdf5`.

It reads a task as JSON, copies the arrays that are asked for to `.npy` files, and writes of every
array its type, its shape, and why it is not read. It imports nothing of mindist, to start quickly.
Only hard links are followed, and only filters run that every HDF5 library has built in.
"""

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

# deflate, shuffle, fletcher32, szip, nbit, scaleoffset; and lzf, which h5py brings.
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
MAX_OBJECTS, MAX_DEPTH = 10_000, 32
MAX_CHUNK_BYTES = 2**30
CPU_SECONDS, CPU_BYTES = 5, 10_000_000  # of computing, and a second more for so many bytes each
SPARE_BYTES = 2**32  # of memory beyond what is copied


def main(path: str, folder: str, keys: list[str] | None, max_bytes: int) -> None:
    """Copy arrays to `folder/NUMBER.npy`: those of some keys, of all ("*"), or the only one."""
    import h5py
    import numpy as np

    limit(0)
    arrays = dict(walk(h5py.File(path, "r", locking=False)))
    found = {k: (a.dtype.str, list(map(int, a.shape or ())), unfit(a)) for k, a in arrays.items()}
    if keys is None or keys == ["*"]:
        keys = list(arrays) if keys or len(arrays) == 1 else []
    wanted = {key: arrays[key] for key in keys if key in arrays}
    total = sum(math.prod(found[key][1]) * a.dtype.itemsize for key, a in wanted.items())
    fine = all(found[k][2] is None and a.dtype.kind in "fiub" and a.size for k, a in wanted.items())
    if fine and total <= max_bytes:
        limit(total)
        for key, array in wanted.items():
            target = f"{folder}/{list(arrays).index(key)}.npy"
            array.read_direct(np.lib.format.open_memmap(target, "w+", array.dtype, array.shape))
    json.dump(found, sys.stdout)


def limit(size: int) -> None:
    """End this process if to copy so many bytes takes too much time or memory."""
    try:
        import resource
    except ImportError:  # not on Windows, where the other side waits for a while
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(usage.ru_utime + usage.ru_stime + CPU_SECONDS + size / CPU_BYTES)
    for what, value in ((resource.RLIMIT_CPU, until), (resource.RLIMIT_AS, 2 * size + SPARE_BYTES)):
        most = resource.getrlimit(what)[1]  # what the system allows, which may not be raised
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(what, (bound, most))


def walk(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield the datasets of a file by their paths, through hard links only."""
    import h5py

    waiting, count = [("", file, 0)], 0
    seen = {h5py.h5o.get_info(file.id).addr}  # links may go in circles
    while waiting:
        prefix, parent, depth = waiting.pop(0)
        for name in parent:
            count += 1
            if count > MAX_OBJECTS or depth > MAX_DEPTH:
                raise ValueError("it holds too many groups and arrays")
            if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
                continue
            item = parent[name]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Dataset):
                yield f"{prefix}{name}", item
            elif isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)
                waiting.append((f"{prefix}{name}/", item, depth + 1))


def unfit(array: Any) -> str | None:
    """Return why an array is not read: what it would take from elsewhere, or how much."""
    if array.is_virtual or array.external:
        return (
            "takes its numbers from other files, which are not read. Copy them into one file, for "
            "example with h5repack or h5py."
        )
    plist = array.id.get_create_plist()
    used = {int(plist.get_filter(i)[0]) for i in range(plist.get_nfilters())}
    if used - FILTERS:
        return (
            f"is compressed by filter {min(used - FILTERS)}, a plug-in, which is not loaded. Copy "
            "the file with another compression, for example gzip."
        )
    if math.prod(array.chunks or ()) * array.dtype.itemsize > MAX_CHUNK_BYTES:
        return f"has chunks of more than {MAX_CHUNK_BYTES:,} bytes. Copy it with smaller ones."
    return None


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are not meant to be imported like this
    main(**json.load(sys.stdin))
