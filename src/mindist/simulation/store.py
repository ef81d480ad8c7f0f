"""A bank on disk: a Zarr store whose chunks count once they are recorded.

The layout is in docs/simulations.md. Header and records are attributes of Zarr groups, with a
checksum of their own. Only the calling process writes, and only under its lock. Zarr meets only
arrays whose codecs are ours, and what a file says of its size is compared with the schema first.
"""

import json
import math
import os
import re
import shutil
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindist import checks, storage
from mindist.simulation import schema as schemas
from mindist.simulation.calls import NumPy, need
from mindist.simulation.schema import Chunk, Failure, Layout, Schema
from mindist.storage import damaged, digest, room_for

KIND, FORMAT_VERSION = "mindist simulation bank", 1
PARTS = ("theta", "s", "valid", "x", "pilot", "z_bar", "embedding", "chunks")
MAX_RECORD_BYTES = 2**28  # some 400,000 failed draws of one chunk
CODECS = ["bytes", "zstd"]  # what mindist writes; others may run what a file says
MAX_TENSOR_BYTES = 2**30
CONFIG = {"write_empty_chunks": True}  # also of zeros: what is not there was never written
ZSTD = b"\x28\xb5\x2f\xfd"  # what its data begin with


class BankLockedError(RuntimeError):
    """Another process writes this bank."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a bank, `.NAME.lock` beside it, or say who does (from `.NAME.writer`)."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True)
    writer = folder.parent / f".{folder.name}.writer"
    try:
        with FileLock(folder.parent / f".{folder.name}.lock", timeout=0):
            who = f"process {os.getpid()} on {socket.gethostname()} (since {now()})"
            writer.write_text(who, encoding="utf-8")
            try:
                yield
            finally:
                writer.unlink(missing_ok=True)
    except Timeout as error:
        who = writer.read_text(encoding="utf-8")[:200] if writer.is_file() else "another process"
        then = "Wait for it, or end it and give the same call, which will go on from there."
        raise BankLockedError(f"out: {folder} is being written by {who}. {then}") from error


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_group(folder: Path, attributes: dict[str, Any]) -> None:
    group = {"zarr_format": 3, "node_type": "group", "attributes": storage.sealed(attributes)}
    storage.write_whole(folder / "zarr.json", (json.dumps(group, indent=1) + "\n").encode())


def read_group(folder: Path) -> dict[str, Any] | None:
    """Return the attributes of a group, or None where there is none; ValueError if damaged."""
    path = folder / "zarr.json"
    linked = path.is_symlink() or (folder.is_symlink() and folder.parent.name == "chunks")
    if not linked and not path.exists():
        return None
    if linked or not path.is_file():
        raise damaged(path, "it is a link or a folder in the place of a file")
    group = storage.read_json(path, MAX_RECORD_BYTES)
    attributes = group.get("attributes") if isinstance(group, dict) else None
    if not isinstance(attributes, dict):
        raise damaged(path, "it is not what mindist wrote")
    storage.unseal(path, attributes)
    return attributes


def _open(folder: Path, mode: Any) -> Any:
    """Open an array, if it is no link and its files go through no other codecs than ours."""
    file = folder / "zarr.json"
    if folder.is_symlink() or file.is_symlink() or not file.is_file():
        raise damaged(file, "it is missing, or a link")
    values = storage.read_json(file)
    codecs = values.get("codecs") if isinstance(values, dict) else None
    steps = codecs if isinstance(codecs, list) else []
    names = [step.get("name") if isinstance(step, dict) else step for step in steps]
    if names != CODECS or values.get("storage_transformers"):
        what = "its codecs are {!r:.80}, or it has storage transformers; mindist runs {}"
        raise damaged(file, what.format(codecs, CODECS))
    with _reading(file):
        # Of version 3 only: in version 2 an array may be made of pickles.
        array = need("zarr").open_array(str(folder), mode=mode, zarr_format=3, config=CONFIG)
        if _chunk_bytes(array) > schemas.MAX_CHUNK_BYTES:
            raise ValueError(f"its chunks have shape {array.chunks}")
    return array


def _chunk_bytes(array: Any) -> int:
    return int(math.prod(array.chunks) * array.dtype.itemsize)


def _check_files(folder: Path, array: Any) -> None:
    """Raise a ValueError for links, and for files that would be decompressed to more."""
    for file in folder.rglob("*"):
        ours = file.is_file() and file.suffix not in (".json", ".partial")
        if (file.is_symlink() or ours) and (why := _unfit(file, array)):
            raise damaged(file, why)


def _unfit(file: Path, array: Any) -> str:
    """Say what is wrong with a file of an array: all of them have one size when decompressed."""
    if file.is_symlink():
        return "it is a link, or no file"
    with open(file, "rb") as opened:
        held, size = frame_size(opened.read(18)), _chunk_bytes(array)
    return "" if held == size else f"it holds {held} bytes of numbers instead of {size}"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever Zarr raises on a broken file into a ValueError that names it."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
        raise damaged(path, f"it cannot be read ({why})") from error


def frame_size(head: bytes) -> int | None:
    """Return the decompressed bytes that zstd data claim, or None (RFC 8878, section 3.1.1.1)."""
    if head[:4] != ZSTD or len(head) < 6:
        return None
    flags = head[4]
    single, kind = flags >> 5 & 1, flags >> 6
    size = (single, 2, 4, 8)[kind]
    first = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    if not size or len(head) < first + size:
        return None
    return int.from_bytes(head[first : first + size], "little") + (256 if kind == 1 else 0)


def _create(folder: Path, shape: Any, dtype: Any, chunk: int = 0) -> Any:
    """Make an array; with some rows in each file, rows that nobody wrote are NaN or False."""
    zarr = need("zarr")
    how = {"zarr_format": 3, "compressors": zarr.codecs.ZstdCodec(), "overwrite": True}
    if chunk:
        how |= {"chunks": (chunk, *shape[1:]), "fill_value": dtype != "bool" and math.nan}
        how |= {"chunk_key_encoding": {"name": "default", "separator": "."}, "config": CONFIG}
    return zarr.create_array(store=str(folder), shape=shape, dtype=dtype, **how)


class Store:  # a bank on disk, complete or not, to be read
    mode = "r"

    def __init__(self, path: Path) -> None:
        header = read_group(path.resolve())  # a link to a bank is one; in it there are none
        if header is None:
            found = f"found none at {path}. Give the path passed to mindist.simulate as out."
            raise FileNotFoundError(f"path: expected a simulation bank, {found}")
        if header.get("kind") != KIND:
            raise ValueError(f"path: {path} is a Zarr group, but no simulation bank.")
        version = header.get("format_version")
        if type(version) is not int or version < 1:
            raise damaged(path / "zarr.json", f"its format version is {str(version)[:80]}")
        storage.check_version(path, version, FORMAT_VERSION)
        for part in (path / name for name in PARTS):  # a link may lead anywhere
            if part.is_symlink() or (part.exists() and not part.is_dir()):
                raise damaged(part, "it is a link or a file in the place of a folder")
        self.path, self.header = path, header
        self.schema, self.keep = schemas.check_header(path, header), str(header["config"]["keep"])
        self.records: dict[int, dict[str, Any]] = {}
        self._opened: dict[str, Any] = {}
        self._looked_at: set[str] = set()
        for name in self.layouts:
            self.handle(name)

    @property
    def layouts(self) -> dict[str, Layout]:
        return self.schema.layouts(self.keep, embedded="embedding" in self.header)

    def handle(self, name: str) -> Any:
        """Open an array, once, and compare it with the schema."""
        if name not in self._opened:
            array, (shape, dtype) = _open(self.path / name, self.mode), self.layouts[name]
            sizes = [*array.shape, 0, 0]
            shape = tuple(sizes[i] if size is None else size for i, size in enumerate(shape))
            got = f"{array.dtype} of shape {tuple(array.shape)}, {tuple(array.chunks)} in a file"
            expected = f"{dtype} of shape {shape}, {(self.schema.chunk, *shape[1:])} in a file"
            if got != expected:
                raise damaged(self.path / name / "zarr.json", f"it says {got}, expected {expected}")
            self._opened[name] = array
        return self._opened[name]

    def array(self, name: str) -> Any:
        """Return an array, which gives NumPy when it is sliced, after one look at its files."""
        if name not in self._looked_at:
            _check_files(self.path / name, self.handle(name))
            self._looked_at.add(name)
        return self.handle(name)

    def rows(self, first: int, last: int, name: str) -> NumPy:
        """Read some rows of an array, or raise a ValueError if a file does not hold them."""
        array = self.array(name)
        with _reading(self.path / name):
            values = np.asarray(array[first:last])
        if name == "valid" and values.view(np.uint8).max(initial=0) > 1:  # NumPy would miscount
            raise damaged(self.path / name, "it has other values than True and False")
        return values

    def data(self, first: int, last: int) -> tuple[NumPy, NumPy, NumPy]:
        read = partial(self.rows, first, last)
        return read("x" if self.keep == "data" else "pilot"), read("s"), read("valid")

    def chunk_folders(self) -> list[tuple[int, Path]]:
        found = (self.path / "chunks").glob("[0-9]*")
        return sorted((int(p.name), p) for p in found if re.fullmatch("[0-9]{5,15}", p.name))

    def read_record(self, index: int, folder: Path) -> dict[str, Any] | None:
        record = read_group(folder)
        if record is not None:
            schemas.check_record(folder, index, record, self.schema, self.keep)
        return record

    def damage(self, record: Mapping[str, Any], *, verify: bool) -> str:
        """Say what is wrong with the files of a record; `verify` compares contents too."""
        for name, known in record["files"].items():
            path = self.path / name
            if path.is_symlink() or not path.is_file():
                return f"{name} is missing, or a link"
            if path.stat().st_size != known["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {known['bytes']}"
            if verify:
                if digest(path.read_bytes()) != known["sha256"]:
                    return f"the checksum of {name} does not match its content"
                if path.parent.name not in self.layouts:
                    return f"{name} belongs to no array"
                if why := _unfit(path, self.handle(path.parent.name)):
                    return f"{name}: {why}"
        return ""

    def embedded(self, index: int) -> bool:
        files = self.records[index]["files"]
        return "embedding" in self.header and self.schema.file("z_bar", index) in files

    def embedding(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts, folder, tensors = self.header["embedding"], self.path / "embedding", {}
        for name in facts["names"]:  # small arrays, such as feature weights
            array, kinds = _open(folder / name, "r"), ("float32", "float64", "int64")
            if str(array.dtype) not in kinds or array.nbytes > MAX_TENSOR_BYTES:
                got = f"it says {array.dtype} of shape {array.shape}"
                raise damaged(folder / name / "zarr.json", got)
            _check_files(folder / name, array)
            with _reading(folder / name):
                tensors[name] = torch.from_numpy(np.array(array[...]))
        if _tensors_digest(tensors) != facts["sha256"]:
            raise damaged(folder, "it has other tensors: their checksum does not match")
        return facts["config"], tensors


class BankChunk(NamedTuple):
    theta: NumPy  # (b, d_theta)
    s: NumPy  # (b, d_s)
    z_bar: NumPy | None  # (b, K) in float32; None where the embedding is not chosen yet
    x: NumPy | None  # (b, N, *event); None where data are not kept


class SimulationBank:
    """Simulations on disk, as `mindist.simulate` wrote them; read-only.

    A bank is a Zarr store, which `zarr.open(path)` reads as well. Parameters are independent draws
    from the prior, so that it comes in random order: any part of it is a sample.

    Example:
        >>> import tempfile, mindist
        >>> prior = lambda n, rng: rng.normal(size=(n, 1))
        >>> simulator = lambda theta, n_obs, rng: rng.normal(theta, size=(n_obs, 1))
        >>> path = tempfile.mkdtemp() + "/bank"
        >>> bank = mindist.simulate(
        ...     prior, simulator, lambda x: x.mean(1), 100, n_obs=5, out=path, chunk=50
        ... )
        >>> len(bank), bank.theta.shape, bank.s[:2].shape, bank.complete
        (100, (100, 1), (2, 1), True)
        >>> bank.report()
        '100 of 100 datasets are there. No draw failed.'
    """

    def __init__(self, store: Store) -> None:
        self.path, self._store = store.path, store

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> "SimulationBank":
        """Open a bank, complete or not; compare sizes and, with `verify`, all checksums."""
        bank = cls(store := Store(Path(path)))
        for index, folder in store.chunk_folders():
            if (record := store.read_record(index, folder)) is not None:
                store.records[index] = record
                bank._check(index, verify=verify)
        return bank

    def _check(self, index: int, *, verify: bool) -> None:
        if why := self._store.damage(self._store.records[index], verify=verify):
            then = "The call of mindist.simulate that wrote it simulates it again."
            raise ValueError(f"path: chunk {index} of {self.path} is damaged: {why}. {then}")

    def __len__(self) -> int:
        return self._store.schema.num

    def __repr__(self) -> str:
        return f"<SimulationBank {str(self.path)!r}: {self.report()}>"

    @property
    def complete(self) -> bool:
        """Return whether all chunks are there, with their mean embeddings."""
        store, there = self._store, self._store.records
        return all(map(store.embedded, there)) and len(there) == store.schema.num_chunks

    @property
    def config(self) -> dict[str, Any]:
        """The settings asked for: size, seed, what is kept, names of functions, embedding."""
        return dict(self._store.header["config"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything the bank says of itself: versions, dates, configuration, shapes."""
        return dict(self._store.header)

    @property
    def num_obs(self) -> int:
        """N, the number of observations of a dataset."""
        return int(self.config["n_obs"])

    @property
    def theta(self) -> Any:
        """Parameters `(M, d_theta)`: a Zarr array, NumPy when sliced; NaN where none are yet."""
        return self._store.array("theta")

    @property
    def s(self) -> Any:
        """Summaries `(M, d_s)`, as `theta`; NaN also where `valid` is False."""
        return self._store.array("s")

    @property
    def valid(self) -> Any:
        """Flags `(M,)` of rows with a dataset: all of a complete bank, unless failures="report"."""
        return self._store.array("valid")

    @property
    def z_bar(self) -> Any:
        """Mean embeddings `(M, K)` in float32, as `s`; None before the embedding is chosen."""
        return self._store.array("z_bar") if "embedding" in self._store.header else None

    @property
    def x(self) -> Any:
        """Data `(M, N, *event)`, as `s`; None where only embeddings are kept."""
        return self._store.array("x") if self._store.keep == "data" else None

    @property
    def pilot(self) -> tuple[Tensor, Tensor]:
        """The first valid datasets `(P, N, *event)`, always kept, with summaries `(P, d_s)`."""
        x, s, valid = self._store.data(0, self._store.schema.pilot)
        return torch.from_numpy(x[valid]), torch.from_numpy(s[valid])

    @property
    def embedding_state(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Plain values and tensors of the embedding that made `z_bar`; None before it is chosen."""
        return self._store.embedding() if "embedding" in self._store.header else None

    def chunks(self, *, verify: bool = True) -> Iterator[BankChunk]:
        """Yield what is there, one chunk in memory at a time; `verify` compares checksums first."""
        for index in sorted(self._store.records):
            self._check(index, verify=verify)
            read = partial(self._store.rows, *self._store.schema.span(index))
            valid = read("valid")
            theta, s = read("theta")[valid], read("s")[valid]
            z_bar = read("z_bar")[valid] if self._store.embedded(index) else None
            x = read("x")[valid] if self._store.keep == "data" else None
            yield BankChunk(theta, s, z_bar, x)

    @property
    def failures(self) -> list[Failure]:
        """Every draw that failed, with parameters, seed, kind and error."""
        records = (record for _, record in sorted(self._store.records.items()))
        every = (draw for record in records for draw in record["failures"])
        return [Failure(**{**draw, "theta": tuple(draw["theta"])}) for draw in every]

    def report(self) -> str:
        """Say what is there and what failed."""
        rows, failures = self._store.schema.rows(self._store.records), self.failures
        what = self.config["failures"]
        if what == "report":
            rows -= len({failure.row for failure in failures})
        there = f"{rows:,} of {len(self):,} datasets are there."
        if not failures:
            return f"{there} No draw failed."
        counts, known = Counter(failure.kind for failure in failures), schemas.KINDS.items()
        kinds = ", ".join(f"{counts[kind]:,} {said}" for kind, said in known if counts[kind])
        draws = f"{len(failures):,} draw{'s' * (len(failures) > 1)}"
        again = " Each was drawn again." * (what == "redraw")
        return f"{there} {draws} failed: {kinds}.{again}"


class Writer(Store):
    mode = "r+"

    @classmethod
    def create(cls, path: Path, header: dict[str, Any], schema: dict[str, Any]) -> "Writer":
        """Make an empty bank; its header comes last, so that it is there whole or not at all."""
        facts = {"kind": KIND, "format_version": FORMAT_VERSION, "created": now()}
        with room_for(path, "a new bank"):
            for name in PARTS:
                shutil.rmtree(path / name, ignore_errors=True)
            for name, layout in Schema(**schema).layouts(header["config"]["keep"]).items():
                _create(path / name, *layout, schema["chunk"])
            write_group(path / "chunks", {"what": "a group for each complete chunk"})
            write_group(path, {**facts, **header, "schema": schema})
        return cls(path)

    def recover(self) -> None:
        """Read the records; what is damaged, or has no record, will be simulated again."""
        for leftover in [*self.path.glob("*/*.partial"), *self.path.glob("**/.*.tmp")]:
            leftover.unlink(missing_ok=True)
        for index, folder in self.chunk_folders():
            try:
                record = self.read_record(index, folder)
                why = "" if record is None else self.damage(record, verify=True)
            except ValueError as error:
                record, why = None, str(error)
            if record is not None and not why:
                self.records[index] = record
                continue
            if why:
                said = f"chunk {index} is damaged ({why}); it is simulated again."
                checks.warn_user(f"{self.path}: {said}")
            files = (*self.schema.files(self.keep, index), self.schema.file("z_bar", index))
            for path in (folder, *(self.path / file for file in files)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def write(self, chunk: Chunk) -> None:
        arrays = dict(chunk.arrays)
        if self.keep != "data" and "x" in arrays:
            arrays["pilot"] = arrays.pop("x")
        with room_for(self.path, f"chunk {chunk.index}"):
            record = {
                "rows": list(self.schema.span(chunk.index)),
                "files": dict(self._put(name, chunk.index, v) for name, v in arrays.items()),
                "failures": [failure.record() for failure in chunk.failures],
                "seconds": round(chunk.seconds, 3),
            }
            self._record(chunk.index, record)

    def embed(self, index: int, z_bar: NumPy) -> None:
        """Add mean embeddings to a pilot chunk, which was simulated before there was any."""
        with room_for(self.path, f"chunk {index}"):
            record, (file, known) = self.records[index], self._put("z_bar", index, z_bar)
            self._record(index, {**record, "files": {**record["files"], file: known}})

    def set_embedding(self, config: dict[str, Any], tensors: dict[str, Tensor], dim: int) -> None:
        folder = self.path / "embedding"
        with room_for(self.path, "the embedding"):
            shutil.rmtree(folder, ignore_errors=True)
            write_group(folder, {"what": "tensors of the embedding"})
            for name, value in ((name, tensor.numpy()) for name, tensor in tensors.items()):
                _create(folder / name, value.shape, value.dtype)[...] = value
            _create(self.path / "z_bar", (self.schema.num, dim), "float32", self.schema.chunk)
            sums = {"sha256": _tensors_digest(tensors), "names": sorted(tensors)}
            self.set_header(embedding={"config": config, **sums})

    def set_header(self, **changes: Any) -> None:
        self.header = {**self.header, **changes}
        write_group(self.path, self.header)

    def _put(self, name: str, index: int, value: NumPy) -> tuple[str, dict[str, Any]]:
        first, last = self.schema.span(index)
        self.handle(name)[first:last] = value
        file = self.schema.file(name, index, value.ndim)
        with open(self.path / file, "rb") as written:
            os.fsync(written.fileno())
            content = written.read()
        return file, {"bytes": len(content), "sha256": digest(content)}

    def _record(self, index: int, record: dict[str, Any]) -> None:
        write_group(self.path / "chunks" / f"{index:05}", {**record, "written": now()})
        self.records[index] = record


def _tensors_digest(tensors: dict[str, Tensor]) -> str:
    """Return a checksum of named tensors: names, types, shapes and bytes."""
    plain = [(name, value.numpy()) for name, value in sorted(tensors.items())]
    facts = [[name, str(v.dtype), list(v.shape), digest(v.tobytes())] for name, v in plain]
    return digest(storage.canonical(facts))
