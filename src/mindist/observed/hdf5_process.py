"""The only place where HDF5's library meets a file: a process of its own, run by `hdf5.py`.

Damaged files make the library crash or run for ever (docs/files.md); here that harms nobody. The
process reads requests from its standard input and answers on its standard output: four bytes of
length and a JSON header, followed by as many bytes of numbers as the header says. It imports
nothing of mindist, so that it starts quickly, and limits its own time and memory.

A file may name other files (external links, external storage, virtual datasets) and filters that
are loaded as shared libraries. None of these is followed: only hard links, and only the filters
that every HDF5 library has built in.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from collections.abc import Iterator
from typing import IO, Any

# deflate, shuffle, fletcher32, szip, nbit, scaleoffset; and lzf, which h5py brings.
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
MAX_OBJECTS, MAX_DEPTH = 10_000, 32
MAX_CHUNK_BYTES = 2**30
CPU_SECONDS = 5  # for a request, ...
CPU_BYTES = 10_000_000  # ... and for so many bytes each another second
SPARE_BYTES = 2**32  # of memory beyond what is read


def send(stream: IO[bytes], header: dict[str, Any], data: Any = b"") -> None:
    """Write a message."""
    text = json.dumps(header).encode()
    stream.write(struct.pack("<I", len(text)) + text)
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read a message; None at the end."""
    size = stream.read(4)
    if len(size) < 4:
        return None
    text = stream.read(struct.unpack("<I", size)[0])
    header = json.loads(text)
    data = stream.read(header.get("bytes", 0))
    return (header, data) if len(data) == header.get("bytes", 0) else None


def _limit(size: int) -> None:
    """End this process if the next answer takes too much time or memory."""
    try:
        import resource
    except ImportError:  # not on Windows, where the other side waits for a while
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    until = math.ceil(usage.ru_utime + usage.ru_stime + CPU_SECONDS + size / CPU_BYTES)
    for what, wanted in (
        (resource.RLIMIT_CPU, until),
        (resource.RLIMIT_AS, 2 * size + SPARE_BYTES),
    ):
        most = resource.getrlimit(what)[1]  # what the system allows, which may not be raised
        limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(what, (limit, most))


class Server:
    """Answers requests, with the last file open."""

    def __init__(self) -> None:
        self.name: Any = None
        self.file: Any = None

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """A header and, for numbers, their bytes."""
        _limit(0)
        self._open(request["path"])
        if request["key"] is None:
            return {"arrays": dict(_arrays(self.file))}, b""
        return self._numbers(request["key"], request["index"])

    def _open(self, path: str) -> None:
        import h5py

        state = os.stat(path)
        name = (path, state.st_mtime_ns, state.st_size, state.st_ino)
        if name != self.name:
            if self.file is not None:
                self.name = None
                self.file.close()
            self.file, self.name = h5py.File(path, "r", locking=False), name

    def _numbers(self, key: str, index: int | None) -> tuple[dict[str, Any], Any]:
        import numpy as np

        dataset = self.file[key]
        shape = dataset.shape if index is None else dataset.shape[1:]
        _limit(math.prod(shape) * dataset.dtype.itemsize)
        array = np.ascontiguousarray(dataset[...] if index is None else dataset[index])
        header = {"bytes": array.nbytes, "dtype": array.dtype.str, "shape": array.shape}
        return header, array.data if array.nbytes else b""


def _arrays(file: Any) -> Iterator[tuple[str, tuple[str, list[int], str | None]]]:
    """Of every dataset its name, type, shape, and why it is not read."""
    for name, dataset in _walk(file):
        shape = [int(size) for size in dataset.shape or ()]
        yield name, (dataset.dtype.str, shape, _foreign(dataset))


def _walk(group: Any) -> Iterator[tuple[str, Any]]:
    """The datasets of a file by their paths, through hard links only."""
    import h5py

    waiting, count = [("", group, 0)], 0
    seen = {h5py.h5o.get_info(group.id).addr}  # links may go in circles
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


def main() -> None:
    """Answer until the other side has gone."""
    server = Server()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # nothing else may write there
    while (message := receive(sys.stdin.buffer)) is not None:
        try:
            header, data = server.answer(message[0])
        except BaseException as error:
            header, data = {"error": f"{type(error).__name__}: {error}"[:500]}, b""
        send(answers, header, data)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are not meant to be imported like this
    main()
