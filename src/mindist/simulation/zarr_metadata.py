"""What the metadata of a Zarr array say, read as plain JSON before Zarr meets them.

They name codecs, of which one unpickles, and others are loaded from whatever is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

CODECS = {
    "blosc",
    "bz2",
    "bytes",
    "crc32",
    "crc32c",
    "delta",
    "gzip",
    "lz4",
    "lzma",
    "sharding_indexed",
    "shuffle",
    "transpose",
    "zlib",
    "zstd",
}
MAX_CHUNK_BYTES = 2**30
MAX_DIMENSIONS = 32
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
    EOFError,
    SystemError,  # of Blosc, for a size that is negative
    ZeroDivisionError,
)


class Facts(NamedTuple):
    """Of an array.

    Arguments:
        dtype: The type of its numbers.
        shape: Its shape.
        chunks: The shape of what one file holds.
        codecs: Names of the codecs that its files go through, in the order of writing.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: list[str]


def of_version_2(values: Mapping[str, Any]) -> Facts:
    """Of a `.zarray` file."""
    if not isinstance(values["dtype"], str):
        raise ValueError("its type is a table")
    steps = [values.get("compressor"), *(values.get("filters") or [])]
    codecs = [str(step["id"]) for step in steps if step is not None]
    dtype = np.dtype(values["dtype"])
    return Facts(dtype, _sizes(values["shape"]), _sizes(values["chunks"]), codecs)


def of_version_3(values: Mapping[str, Any]) -> Facts:
    """Of the `zarr.json` file of an array."""
    if values.get("storage_transformers"):
        raise ValueError("it has storage transformers")
    kind = values["data_type"]
    if not isinstance(kind, str) or not kind.startswith(("float", "int", "uint", "bool")):
        raise ValueError(f"its type {str(kind)[:80]} is no number")
    grid = values["chunk_grid"]
    if grid["name"] != "regular":
        raise ValueError("its chunks are not regular")
    chunks = _sizes(grid["configuration"]["chunk_shape"])
    return Facts(np.dtype(kind), _sizes(values["shape"]), chunks, _named(values["codecs"]))


def _named(codecs: Any, depth: int = 0) -> list[str]:
    """Names of codecs, and of those within them."""
    if depth > 4:
        raise ValueError("its codecs are nested too deeply")
    names = []
    for codec in codecs:
        names.append(codec if isinstance(codec, str) else str(codec["name"]))
        own = {} if isinstance(codec, str) else codec.get("configuration") or {}
        for part in ("codecs", "index_codecs"):
            names += _named(own.get(part) or [], depth + 1)
        _sizes(own.get("chunk_shape") or [])
    return names


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > MAX_DIMENSIONS:
        raise ValueError("a shape is no list of sizes")
    if not all(type(size) is int and size >= 0 for size in values):
        raise ValueError(f"a shape is {str(values)[:80]}")
    return tuple(values)


__all__ = ["BROKEN", "CODECS", "MAX_CHUNK_BYTES", "Facts", "of_version_2", "of_version_3"]
