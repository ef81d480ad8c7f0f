"""A bank that is being written: a Zarr store whose chunks count once they are recorded.

::

    zarr.json                      the header
    theta/ s/ valid/ z_bar/ x/     arrays; rows of chunk i are the file c.i.0 of each
    pilot/                         data of the first datasets, where not all are kept
    embedding/                     tensors of the embedding
    chunks/00000/                  the record of a complete chunk

Only the calling process writes, and only under its lock.
"""

from __future__ import annotations

import os
import shutil
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist.simulation import zarr_arrays
from mindist.simulation.bank_layout import (
    PARTS,
    ArrayLayout,
    check_header,
    check_record,
    file_of,
    files_of,
    flags,
    layouts,
)
from mindist.simulation.plan import Schema
from mindist.simulation.records import (
    FORMAT_VERSION,
    KIND,
    canonical,
    chunk_folders,
    damage,
    digest,
    read_group,
    read_header,
    record_of_files,
    write_group,
)
from mindist.simulation.work import Chunk, NumPy
from mindist.storage import room_for


class BankFolder:
    """A bank on disk, to be written.

    Arguments:
        path: Its folder, which holds a bank already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        self.schema = check_header(path, self.header)
        self.keep: str = self.header["config"]["keep"]
        self.records: dict[int, dict[str, Any]] = {}
        self._opened: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, header: dict[str, Any], schema: Schema) -> BankFolder:
        """Make an empty bank; its header comes last, so that it is there whole or not at all."""
        with room_for(path, "a new bank"):
            for name in PARTS:
                shutil.rmtree(path / name, ignore_errors=True)
            (path / "chunks").mkdir(parents=True)
            for name, own in layouts(schema, header["config"]["keep"]).items():
                shape = tuple(size for size in own.shape if size is not None)
                zarr_arrays.create(path / name, shape, own.chunk, own.dtype)
            write_group(path / "chunks", {"what": "a group for each complete chunk"})
            facts = {"kind": KIND, "format_version": FORMAT_VERSION, "created": now()}
            write_group(path, {**facts, **header, "schema": schema.record()})
        return cls(path)

    def recover(self) -> None:
        """Read the records; what is damaged, or has no record, will be simulated again."""
        for name, layout in self._layouts.items():  # before anything is removed
            zarr_arrays.check_array(self.path / name, layout)
        for leftover in [*self.path.glob("*/*.partial"), *self.path.glob("**/.*.tmp")]:
            leftover.unlink(missing_ok=True)
        for index, folder in chunk_folders(self.path):
            why = self._damage(index, folder)
            if index in self.records:
                continue
            if why:
                warnings.warn(
                    f"{self.path}: chunk {index} is damaged ({why}); it is simulated again.",
                    UserWarning,
                    stacklevel=2,
                )
            _remove(folder)
            for file in (*files_of(self.schema, self.keep, index), file_of("z_bar", index, 2)):
                _remove(self.path / file)

    def _damage(self, index: int, folder: Path) -> str:
        """Take the record of a chunk, or say what is wrong with it; nothing if there is none."""
        try:
            record = read_group(folder)
            if record is None:
                return ""
            check_record(folder, index, record, self.schema, self.keep)
            why = damage(self.path, record["files"], verify=True)
        except ValueError as error:
            return str(error)
        if why is None:
            self.records[index] = record
        return why or ""

    @property
    def _layouts(self) -> dict[str, ArrayLayout]:
        """The arrays that are there by now."""
        return layouts(self.schema, self.keep, embedded="embedding" in self.header)

    def _array(self, name: str, *, write: bool = False) -> Any:
        return zarr_arrays.open_array(self.path / name, self._layouts[name], write=write)

    def missing(self) -> list[int]:
        """Chunks that have to be simulated."""
        return [index for index in range(self.schema.num_chunks) if index not in self.records]

    def write(self, chunk: Chunk) -> None:
        """Keep a chunk: its arrays, then its record."""
        first, last = self.schema.span(chunk.index)
        with room_for(self.path, f"chunk {chunk.index}"):
            files = [self._put(name, chunk.index, v) for name, v in self._named(chunk).items()]
            failures = [failure.record() for failure in chunk.failures]
            record = {
                "rows": [first, last],
                "files": record_of_files(self.path, files),
                "failures": failures,
                "seconds": round(chunk.seconds, 3),
            }
            self._record(chunk.index, record)

    def embed(self, index: int, z_bar: NumPy) -> None:
        """Add mean embeddings to a pilot chunk, which was simulated before there was any."""
        with room_for(self.path, f"chunk {index}"):
            file = self._put("z_bar", index, z_bar)
            record = self.records[index]
            files = {**record["files"], **record_of_files(self.path, [file])}
            self._record(index, {**record, "files": files})

    def embedded(self, index: int) -> bool:
        """Whether a chunk has its mean embeddings."""
        return file_of("z_bar", index, 2) in self.records[index]["files"]

    def data(self, index: int) -> tuple[NumPy, NumPy, NumPy]:
        """Data, summaries and validity of a pilot chunk."""
        rows = slice(*self.schema.span(index))
        names = ("x" if self.keep == "data" else "pilot", "s", "valid")
        x, s, valid = (
            zarr_arrays.read(self.path / name, self._array(name, write=True), rows)
            for name in names
        )
        return x, s, flags(valid, self.path / "valid")

    def set_embedding(self, config: dict[str, Any], tensors: dict[str, Tensor], dim: int) -> None:
        """Keep what mean embeddings are made with."""
        with room_for(self.path, "the embedding"):
            shutil.rmtree(self.path / "embedding", ignore_errors=True)
            write_group(self.path / "embedding", {"what": "tensors of the embedding"})
            for name, value in tensors.items():
                zarr_arrays.store_tensor(self.path / "embedding" / name, _plain(value))
            zarr_arrays.create(
                self.path / "z_bar", (self.schema.num, dim), self.schema.chunk, "float32"
            )
            facts = {"config": config, "sha256": tensors_digest(tensors), "names": sorted(tensors)}
            self.set_header(embedding=facts)

    def set_header(self, **changes: Any) -> None:
        """Replace parts of the header."""
        self.header = {**self.header, **changes}
        write_group(self.path, self.header)

    def _named(self, chunk: Chunk) -> dict[str, NumPy]:
        """The arrays that a chunk goes to."""
        arrays = dict(chunk.arrays)
        if self.keep != "data" and "x" in arrays:
            arrays["pilot"] = arrays.pop("x")
        return arrays

    def _put(self, name: str, index: int, value: NumPy) -> str:
        first, last = self.schema.span(index)
        if name not in self._opened:
            self._opened[name] = self._array(name, write=True)
        self._opened[name][first:last] = value
        file = file_of(name, index, value.ndim)
        with open(self.path / file, "rb") as written:
            os.fsync(written.fileno())
        return file

    def _record(self, index: int, record: dict[str, Any]) -> None:
        write_group(self.path / "chunks" / f"{index:05}", {**record, "written": now()})
        self.records[index] = record


def _remove(path: Path) -> None:
    """A file, a link, or a folder with what is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _plain(value: Tensor) -> NumPy:
    return value.detach().cpu().contiguous().numpy()


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """A checksum of named tensors: names, types, shapes and bytes."""
    plain = {name: _plain(tensors[name]) for name in sorted(tensors)}
    facts = [[name, str(v.dtype), list(v.shape), digest(v.tobytes())] for name, v in plain.items()]
    return digest(canonical(facts))


def now() -> str:
    """The time, for the record."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def tensor_of(value: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with memory of its own."""
    return torch.from_numpy(np.array(value))


__all__ = ["BankFolder", "tensor_of", "tensors_digest"]
