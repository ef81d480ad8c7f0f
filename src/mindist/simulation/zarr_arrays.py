"""The bridge to Zarr: arrays whose files hold one chunk of a bank each. Nothing else imports it.

What the metadata of an array say is compared with what the bank says before Zarr meets it, and what
its files say of their size before they are decompressed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindist import storage
from mindist.simulation.bank_layout import ArrayLayout
from mindist.simulation.extras import need
from mindist.simulation.plan import MAX_CHUNK_BYTES
from mindist.simulation.zarr_metadata import BROKEN, Facts, of_version_3

CODECS = ["bytes", "zstd"]  # what mindist writes
TENSOR_TYPES = ("float32", "float64", "int64")
MAX_TENSOR_BYTES = 2**30
FRAME = b"\x28\xb5\x2f\xfd"  # what zstd data begin with
FRAME_BYTES = 18  # the longest header of them


def create(path: Path, shape: tuple[int, ...], chunk: int, dtype: str) -> None:
    """Make an array with `chunk` rows in each file; rows that nobody wrote are NaN or False."""
    zarr = need("zarr")
    zarr.create_array(
        store=str(path),
        shape=shape,
        chunks=(chunk, *shape[1:]),
        dtype=dtype,
        fill_value=False if dtype == "bool" else math.nan,
        zarr_format=3,
        chunk_key_encoding={"name": "default", "separator": "."},
        compressors=zarr.codecs.ZstdCodec(),
        # A file for every chunk, also of zeros: what is not there was never written.
        config={"write_empty_chunks": True},
        overwrite=True,
    )


def open_array(path: Path, layout: ArrayLayout, *, write: bool = False) -> Any:
    """A Zarr array of a bank, which gives NumPy arrays when it is sliced; or a clear error."""
    facts = check_array(path, layout)
    if not write:
        _check_files(path, facts)
    return _open(path, facts, write=write)


def check_array(path: Path, layout: ArrayLayout) -> Facts:
    """Raise a ValueError unless an array says what the bank says of it."""
    facts, file = _facts(path), path / "zarr.json"
    fits = len(facts.shape) == len(layout.shape) and str(facts.dtype) == layout.dtype
    if not fits or any(b not in (None, a) for a, b in zip(facts.shape, layout.shape, strict=True)):
        got, expected = (f"{own.dtype} of shape {own.shape}" for own in (facts, layout))
        raise storage.damaged(file, f"it holds {got}, expected {expected}")
    if facts.chunks != (layout.chunk, *facts.shape[1:]) or _bytes(facts) > MAX_CHUNK_BYTES:
        raise storage.damaged(file, f"its chunks have shape {facts.chunks}")
    return facts


def read(path: Path, array: Any, rows: slice) -> np.ndarray[Any, Any]:
    """Some rows of an array, or a clear error where a file does not hold them."""
    try:
        return np.asarray(array[rows])
    except BROKEN as error:
        raise storage.damaged(path, f"it cannot be read ({_short(error)})") from error


def read_tensor(path: Path) -> np.ndarray[Any, Any]:
    """A small array, such as feature weights, that `store_tensor` wrote."""
    facts = _facts(path)
    size = math.prod(facts.shape) * facts.dtype.itemsize
    if str(facts.dtype) not in TENSOR_TYPES or size > MAX_TENSOR_BYTES:
        raise storage.damaged(path / "zarr.json", f"it says {facts.dtype} {facts.shape}")
    if _bytes(facts) > MAX_TENSOR_BYTES:
        raise storage.damaged(path / "zarr.json", f"its chunks have shape {facts.chunks}")
    _check_files(path, facts)
    return read(path, _open(path, facts), slice(None)) if facts.shape else _scalar(path, facts)


def _scalar(path: Path, facts: Facts) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(_open(path, facts)[()])
    except BROKEN as error:
        raise storage.damaged(path, f"it cannot be read ({_short(error)})") from error


def _facts(path: Path) -> Facts:
    """What an array says of itself, if its files go through no other codecs than ours."""
    file = path / "zarr.json"
    if path.is_symlink() or file.is_symlink() or not file.is_file():
        raise storage.damaged(file, "it is missing, or a link")
    values = storage.read_json(file)
    try:
        facts = of_version_3(values)
    except BROKEN as error:
        raise storage.damaged(file, _short(error)) from error
    if facts.codecs != CODECS:
        raise storage.damaged(
            file, f"its codecs are {str(facts.codecs)[:80]}, and mindist writes and runs {CODECS}"
        )
    if len(facts.chunks) != len(facts.shape) or not all(0 < size < 2**40 for size in facts.chunks):
        raise storage.damaged(file, f"its chunks have shape {facts.chunks}")
    return facts


def _open(path: Path, facts: Facts, *, write: bool = False) -> Any:
    try:
        # Of version 3 only: in version 2 an array may be made of pickles.
        array = need("zarr").open_array(
            str(path),
            mode="r+" if write else "r",
            zarr_format=3,
            config={"write_empty_chunks": True},
        )
    except BROKEN as error:
        raise storage.damaged(path / "zarr.json", _short(error)) from error
    if (array.dtype, tuple(array.shape), tuple(array.chunks)) != facts[:3]:
        raise storage.damaged(path / "zarr.json", "Zarr reads it otherwise than mindist")
    return array


def _check_files(path: Path, facts: Facts) -> None:
    """No links, and no file that would be decompressed to more than a chunk."""
    for file in _files(path):
        why = None if file.name == "zarr.json" else unfit(file, _bytes(facts))
        if why is not None:
            raise storage.damaged(file, why)


def _files(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                raise storage.damaged(Path(folder, name), "it is a link")
        yield from (Path(folder, name) for name in files if not name.endswith(".partial"))


def unfit(file: Path, size: int) -> str | None:
    """What is wrong with a file of a chunk that holds `size` bytes when decompressed, or None."""
    if file.is_symlink() or not file.is_file():
        return "it is a link, or no file"
    with open(file, "rb") as opened:
        held = frame_size(opened.read(FRAME_BYTES))
    return None if held == size else f"it holds {held} bytes of numbers instead of {size}"


def frame_size(head: bytes) -> int | None:
    """How many bytes zstd data say that they are decompressed; None if they do not say.

    Section 3.1.1.1 of RFC 8878: a byte of flags, a window unless it is one segment, the number of a
    dictionary, the size.

    Example:
        >>> frame_size(FRAME + bytes([0x20, 64]))
        64
    """
    if head[:4] != FRAME or len(head) < 6:
        return None
    flags = head[4]
    single, kind = flags >> 5 & 1, flags >> 6
    size = (single, 2, 4, 8)[kind]
    first = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    if not size or len(head) < first + size:
        return None
    return int.from_bytes(head[first : first + size], "little") + (256 if kind == 1 else 0)


def chunk_bytes(path: Path) -> int:
    """Of what one file of an array holds."""
    return _bytes(_facts(path))


def _bytes(facts: Facts) -> int:
    return math.prod(facts.chunks) * facts.dtype.itemsize


def _short(error: BaseException) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]


def store_tensor(path: Path, value: np.ndarray[Any, Any]) -> None:
    """Write a small array, such as feature weights, in one piece."""
    zarr = need("zarr")
    array = zarr.create_array(
        store=str(path),
        shape=value.shape,
        dtype=value.dtype,
        zarr_format=3,
        compressors=zarr.codecs.ZstdCodec(),
        overwrite=True,
    )
    array[...] = value


__all__ = [
    "check_array",
    "chunk_bytes",
    "create",
    "open_array",
    "read",
    "read_tensor",
    "store_tensor",
    "unfit",
]
