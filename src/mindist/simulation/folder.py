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

from mindist.full_disk import room_for
from mindist.simulation import zarr_arrays
from mindist.simulation.plan import Schema
from mindist.simulation.records import (
    FORMAT_VERSION,
    KIND,
    canonical,
    damage,
    digest,
    read_group,
    read_header,
    record_of_files,
    write_group,
)
from mindist.simulation.work import Chunk, NumPy

PARTS = ("theta", "s", "valid", "x", "pilot", "z_bar", "embedding", "chunks")


class BankFolder:
    """A bank on disk, to be written.

    Arguments:
        path: Its folder, which holds a bank already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        self.schema = Schema.of_record(self.header["schema"])
        self.records: dict[int, dict[str, Any]] = {}
        self._opened: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, header: dict[str, Any], schema: Schema) -> BankFolder:
        """Make an empty bank; its header comes last, so that it is there whole or not at all."""
        with room_for(path, "a new bank"):
            for name in PARTS:
                shutil.rmtree(path / name, ignore_errors=True)
            (path / "chunks").mkdir(parents=True)
            for name, (shape, dtype) in _arrays(schema, header["config"]["keep"]).items():
                zarr_arrays.create(path / name, shape, schema.chunk, dtype)
            write_group(path / "chunks", {"what": "a group for each complete chunk"})
            facts = {"kind": KIND, "format_version": FORMAT_VERSION, "created": now()}
            write_group(path, {**facts, **header, "schema": schema.record()})
        return cls(path)

    def recover(self) -> None:
        """Read the records; what is damaged, or has no record, will be simulated again."""
        for leftover in [*self.path.glob("*/*.partial"), *self.path.glob("**/.*.tmp")]:
            leftover.unlink(missing_ok=True)
        for folder in sorted((self.path / "chunks").glob("[0-9]*")):
            index = int(folder.name)
            try:
                record = read_group(folder)
                why = "it has no record"
                if record is not None:
                    why = damage(self.path, record["files"], verify=True) or ""
            except (ValueError, KeyError) as error:
                record, why = {}, str(error)
            if record is not None and not why:
                self.records[index] = record
                continue
            if record is not None:
                warnings.warn(
                    f"{self.path}: chunk {index} is damaged ({why}); it is simulated again.",
                    UserWarning,
                    stacklevel=2,
                )
            shutil.rmtree(folder)

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
        return zarr_arrays.file_of("z_bar", index, 2) in self.records[index]["files"]

    def data(self, index: int) -> tuple[NumPy, NumPy, NumPy]:
        """Data, summaries and validity of a pilot chunk."""
        first, last = self.schema.span(index)
        name = "x" if self.header["config"]["keep"] == "data" else "pilot"
        arrays = (zarr_arrays.open_array(self.path / n) for n in (name, "s", "valid"))
        x, s, valid = (array[first:last] for array in arrays)
        return x, s, valid

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
        if self.header["config"]["keep"] != "data" and "x" in arrays:
            arrays["pilot"] = arrays.pop("x")
        return arrays

    def _put(self, name: str, index: int, value: NumPy) -> str:
        first, last = self.schema.span(index)
        if name not in self._opened:
            self._opened[name] = zarr_arrays.open_array(self.path / name, write=True)
        self._opened[name][first:last] = value
        file = zarr_arrays.file_of(name, index, value.ndim)
        with open(self.path / file, "rb") as written:
            os.fsync(written.fileno())
        return file

    def _record(self, index: int, record: dict[str, Any]) -> None:
        write_group(self.path / "chunks" / f"{index:05}", {**record, "written": now()})
        self.records[index] = record


def _arrays(schema: Schema, keep: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays that are known from the start."""
    rows = schema.num if keep == "data" else schema.span(schema.pilot_chunks - 1)[1]
    return {
        "theta": ((schema.num, *schema.shapes["theta"]), schema.dtypes["theta"]),
        "s": ((schema.num, *schema.shapes["s"]), schema.dtypes["s"]),
        "valid": ((schema.num,), "bool"),
        "x" if keep == "data" else "pilot": ((rows, *schema.shapes["x"]), schema.dtypes["x"]),
    }


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


__all__ = ["PARTS", "BankFolder", "tensor_of", "tensors_digest"]
