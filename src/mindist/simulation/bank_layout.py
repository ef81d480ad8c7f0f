"""What the header and the records of a bank must look like: see `mindist.layout`.

A checksum shows damage, not good will. So every value is checked before anything is made of it: the
files of a chunk are those that the schema says and no others, wherever else a record may point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mindist import storage
from mindist.layout import Settings
from mindist.simulation.failure import KINDS, Failure
from mindist.simulation.plan import MAX_CHUNK_BYTES, Schema

PARTS = ("theta", "s", "valid", "x", "pilot", "z_bar", "embedding", "chunks")
TYPES = ("float16", "float32", "float64")
MAX_DATASETS = 2**40
TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")  # of a folder: not too long for one
HEX = re.compile(r"[0-9a-f]{64}")


class ArrayLayout(NamedTuple):
    """Of an array in a bank.

    Arguments:
        shape: Its shape; None for a size that only the array itself says.
        chunk: Rows in each file.
        dtype: The type of its numbers.
    """

    shape: tuple[int | None, ...]
    chunk: int
    dtype: str


def layouts(schema: Schema, keep: str, *, embedded: bool = False) -> dict[str, ArrayLayout]:
    """The arrays of a bank.

    Arguments:
        schema: Of the bank.
        keep: What it keeps.
        embedded: Whether its embedding is chosen, which decides the length of mean embeddings.
    """
    rows = schema.num if keep == "data" else schema.span(schema.pilot_chunks - 1)[1]
    sizes = {"theta": schema.num, "s": schema.num, "x": rows}
    found = {
        name: ArrayLayout((size, *schema.shapes[name]), schema.chunk, schema.dtypes[name])
        for name, size in sizes.items()
    }
    if keep != "data":
        found["pilot"] = found.pop("x")
    found["valid"] = ArrayLayout((schema.num,), schema.chunk, "bool")
    if embedded:
        found["z_bar"] = ArrayLayout((schema.num, None), schema.chunk, "float32")
    return found


def file_of(name: str, index: int, dim: int) -> str:
    """Where in the bank the rows of one chunk are, of an array with `dim` axes.

    Example:
        >>> file_of("theta", 7, 2)
        'theta/c.7.0'
    """
    return f"{name}/c.{index}" + ".0" * (dim - 1)


def files_of(schema: Schema, keep: str, index: int) -> dict[str, str]:
    """The files of a chunk, and the arrays that they belong to; mean embeddings come later."""
    arrays = layouts(schema, keep)
    if index >= schema.pilot_chunks:
        arrays.pop("pilot", None)
    return {file_of(name, index, len(own.shape)): name for name, own in arrays.items()}


def check_parts(folder: Path) -> None:
    """The parts of a bank are folders: a link may lead anywhere."""
    for name in PARTS:
        path = folder / name
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise storage.damaged(path, "it is a link or a file in the place of a folder")


def check_header(folder: Path, header: Mapping[str, Any]) -> Schema:
    """Raise a ValueError unless a bank can be read by this header; what it says of the arrays."""
    check_parts(folder)
    top = Settings(folder / "zarr.json", header)
    config, schema = top.part("config"), _schema(top.part("schema"))
    config.word("keep", ("embedding", "data"))
    config.word("failures", ("redraw", "report", "raise"))
    for name in ("functions", "embedding"):
        config.part(name)
    for name, expected in (("num", schema.num), ("n_obs", schema.shapes["x"][0])):
        if config.whole(name, 1, MAX_DATASETS) != expected:
            raise config.refuse(name, f"{expected}, as its schema says")
    if "embedding" in top:
        _embedding(top.part("embedding"))
    return schema


def _schema(own: Settings) -> Schema:
    shapes, dtypes = own.part("shapes"), own.part("dtypes")
    num = own.whole("num", 1, MAX_DATASETS)
    schema = Schema(
        num,
        own.whole("chunk", 1, num),
        own.flag("vectorised"),
        own.flag("summary_numpy"),
        {name: shapes.shape(name) for name in ("theta", "s", "x")},
        {name: dtypes.word(name, TYPES) for name in ("theta", "s", "x")},
    )
    for name, shape in schema.shapes.items():
        if (len(shape) < 1) if name == "x" else (len(shape) != 1):
            raise shapes.refuse(name, "the shape of a row")
        if schema.chunk * schema.bytes_of(name) > MAX_CHUNK_BYTES:
            raise shapes.refuse(name, f"chunks of at most {MAX_CHUNK_BYTES:,} bytes")
    return schema


def _embedding(own: Settings) -> None:
    own.part("config")
    _digest(own, "sha256")
    names = own.words("names")
    if len(set(names)) != len(names) or not all(map(TENSOR_NAME.fullmatch, names)):
        raise own.refuse("names", "names of tensors")


def check_record(
    folder: Path, index: int, record: Mapping[str, Any], schema: Schema, keep: str
) -> None:
    """Raise a ValueError unless this is the record of a chunk of such a bank.

    Arguments:
        folder: The group of the chunk.
        index: Which chunk.
        record: What it says.
        schema: Of the bank.
        keep: What the bank keeps.
    """
    own = Settings(folder / "zarr.json", record)
    if folder.name != f"{index:05}" or index >= schema.num_chunks:
        raise storage.damaged(folder, f"the bank has {schema.num_chunks} chunks")
    span = schema.span(index)
    if own.values.get("rows") != list(span):
        raise own.refuse("rows", f"{list(span)}")
    files = own.part("files")
    needed = set(files_of(schema, keep, index))
    if not needed <= set(files.values) <= needed | {file_of("z_bar", index, 2)}:
        raise own.refuse("files", f"the files {', '.join(sorted(needed))}")
    for name in files.values:
        known = files.part(name)
        known.whole("bytes", most=2**40)
        _digest(known, "sha256")
    failures = own.values.get("failures")
    if not isinstance(failures, list):
        raise own.refuse("failures", "a list")
    for failure in failures:
        _failure(Settings(own.file, failure, "failures."), index, span, schema)


def _failure(own: Settings, index: int, span: tuple[int, int], schema: Schema) -> None:
    own.only([field.name for field in fields(Failure)])
    own.whole("chunk", index, index)
    own.whole("row", span[0], span[1] - 1)
    own.whole("attempt")
    own.word("kind", tuple(KINDS))
    own.word("error")
    own.whole("seed", most=2**64)
    own.flag("alone")
    theta = own.values.get("theta")
    if not isinstance(theta, list) or len(theta) != schema.shapes["theta"][0]:
        raise own.refuse("theta", "parameters")
    if not all(v is None or (type(v) is float and math.isfinite(v)) for v in theta):
        raise own.refuse("theta", "numbers or null")


def _digest(own: Settings, name: str) -> None:
    if not HEX.fullmatch(own.word(name)):
        raise own.refuse(name, "a checksum of 64 digits")


def flags(values: np.ndarray[Any, Any], file: Path) -> np.ndarray[Any, Any]:
    """True and False as read from a file: other bytes would let NumPy miscount."""
    if values.view(np.uint8).max(initial=0) > 1:
        raise storage.damaged(file, "it has other values than True and False")
    return values


__all__ = [
    "PARTS",
    "ArrayLayout",
    "check_header",
    "check_record",
    "file_of",
    "files_of",
    "flags",
    "layouts",
]
