"""NumPy's own formats: `.npy`, mapped into memory, and `.npz`, read as a stream.

The header of an array says its type and shape. It is compared with what follows before anything is
allocated, and objects, which NumPy would unpickle, are refused by their type.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from mindist.observed.arrays import ArraySource, chosen_keys, plan
from mindist.observed.shape import check_array, split
from mindist.observed.source import Request

MAX_HEADER = 10_000  # characters: NumPy's own limit
READ_BYTES = 2**24
BROKEN = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    MemoryError,
    RecursionError,
    RuntimeError,  # a member with a password
    NotImplementedError,  # a compression that Python has not
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Header:
    """What an array says of itself."""

    dtype: Any
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @classmethod
    def read(cls, file: IO[bytes]) -> Header:
        """Read it from the beginning of a file."""
        version = npy_format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its version {version} is for tables, not for arrays of numbers")
        one = version == (1, 0)
        read = npy_format.read_array_header_1_0 if one else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=MAX_HEADER)
        if any(size < 0 for size in shape):
            raise ValueError(f"its shape {shape} is negative")
        return cls(dtype, tuple(int(size) for size in shape), bool(fortran), file.tell())

    def check(self, size: int, request: Request, where: str) -> None:
        """Compare with the number of bytes that there are, header included."""
        expected = self.offset + check_array(where, self.dtype, self.shape, request)
        if expected != size:
            raise ValueError(f"it says that it has {expected:,} bytes, and has {size:,}")


def read_npy(request: Request) -> ArraySource:
    """The datasets of a `.npy` file; what is not asked for stays on the disk."""
    where = f"path: {request.path}"
    with request.reading("npy", BROKEN), request.path.open("rb") as file:
        header = Header.read(file)
        header.check(request.path.stat().st_size, request, where)
    names, event, many = plan({"x": (header.dtype, header.shape)}, request, compressed=False)

    @contextmanager
    def opened() -> Iterator[Callable[[str, bool], Iterator[NDArray[Any]]]]:
        array = np.memmap(
            request.path,
            header.dtype,
            "r",
            header.offset,
            header.shape,
            "F" if header.fortran else "C",
        )
        yield lambda key, many: split(array, many)

    return ArraySource(names, event, many, opened)


def read_npz(request: Request) -> ArraySource:
    """The datasets of an `.npz` file, whose arrays are decompressed dataset by dataset."""
    with request.reading("npz", BROKEN), zipfile.ZipFile(request.path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        available = [info.filename.removesuffix(".npy") for info in members]
    keys = chosen_keys(available, request)
    request.check_size(sum(i.file_size for i in members if i.filename[:-4] in keys))
    headers = _headers(request, keys)
    arrays = {key: (header.dtype, header.shape) for key, header in headers.items()}
    names, event, many = plan(arrays, request)

    @contextmanager
    def opened() -> Iterator[Callable[[str, bool], Iterator[NDArray[Any]]]]:
        with request.reading("npz", BROKEN), zipfile.ZipFile(request.path) as archive:
            yield lambda key, many: _stream(archive, key, headers[key], many)

    return ArraySource(names, event, many, opened)


def _headers(request: Request, keys: list[str]) -> dict[str, Header]:
    headers = {}
    with request.reading("npz", BROKEN), zipfile.ZipFile(request.path) as archive:
        for key in keys:
            with archive.open(f"{key}.npy") as file:
                headers[key] = Header.read(file)
            size = archive.getinfo(f"{key}.npy").file_size
            headers[key].check(size, request, f"path: {request.path}, {key[:80]!r}")
    return headers


def _stream(
    archive: zipfile.ZipFile, key: str, header: Header, many: bool
) -> Iterator[NDArray[Any]]:
    """The datasets of a member of an archive, one after the other."""
    with archive.open(f"{key}.npy") as file:
        Header.read(file)
        if header.fortran or not many:
            flat = _numbers(file, header, math.prod(header.shape))
            order = header.shape[::-1] if header.fortran else header.shape
            array = flat.reshape(order)
            yield from split(array.T if header.fortran else array, many)
        else:
            shape = header.shape[1:]
            for _ in range(header.shape[0]):
                yield _numbers(file, header, math.prod(shape)).reshape(shape)
        if file.read(1):  # and, at the end of a member, its checksum is compared
            raise ValueError("it goes on after its last number")


def _numbers(file: IO[bytes], header: Header, count: int) -> NDArray[Any]:
    """So many numbers, of which no more memory is taken than there are bytes."""
    missing, parts = count * header.dtype.itemsize, []
    while missing:
        part = file.read(min(missing, READ_BYTES))
        if not part:
            raise EOFError("it ends before its last number")
        parts.append(part)
        missing -= len(part)
    return np.frombuffer(b"".join(parts), header.dtype)


__all__ = ["read_npy", "read_npz"]
