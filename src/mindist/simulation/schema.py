"""The content of a bank, JSON that is checked when read: a checksum shows damage, not good will."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mindist import checks, storage
from mindist.schema import Record
from mindist.simulation.calls import NOT_FINITE, RAISED, TIMED_OUT, WRONG_SHAPE, NumPy

CHUNKS = 100  # about: a killed process loses a hundredth, and writing all of them takes 5 s
CHUNK_BYTES = 16 * 2**20  # of data or embeddings, several of which are in memory at once
MAX_CHUNK_BYTES = 2**31  # whatever the caller asks for: a reader has to hold one
EMBEDDING_BYTES = 4 * 1_024  # of a mean embedding with 1,024 features in float32
PILOT, PILOT_BYTES = 1_000, 64 * 2**20  # datasets kept with their data, to choose the embedding on
MAX_DATASETS = 2**40

DIGEST = ("64 digits", lambda v: isinstance(v, str) and bool(re.fullmatch("[0-9a-f]{64}", v)))
TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")  # of a folder: not too long for one
TENSORS = ("names of tensors", lambda v: isinstance(v, str) and bool(TENSOR_NAME.fullmatch(v)))
ARRAYS = ("theta", "s", "x")

KINDS = {
    RAISED: "raised an error",
    TIMED_OUT: "took longer than the time limit",
    NOT_FINITE: "gave NaN or infinite values",
    WRONG_SHAPE: "gave data of the wrong shape",
}
KEEP, FAILURES = ("embedding", "data"), ("redraw", "report", "raise")
Layout = tuple[tuple[int | None, ...], str]  # shape, None where only the array says it, and type


@dataclass(frozen=True)
class Settings:
    num: int
    n_obs: int
    seed: int = 0
    keep: str = "embedding"
    failures: str = "redraw"
    chunk: int | None = None
    time_limit: float | None = None
    vectorised: bool | None = None

    def __post_init__(self) -> None:
        for name in ("num", "n_obs", *["chunk"] * (self.chunk is not None)):
            checks.positive(checks.integer(getattr(self, name), name), name)
        if checks.integer(self.seed, "seed") < 0:
            raise checks.wrong("seed", "a whole number of at least 0", self.seed)
        checks.choice(self.keep, KEEP, "keep")
        checks.choice(self.failures, FAILURES, "failures")
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            said = "a positive number of seconds or None"
            raise checks.wrong("time_limit", said, self.time_limit)


# Shapes and types of one row of "theta", "s" and "x", as the first simulation showed them.
@dataclass(frozen=True)
class Schema:
    num: int
    chunk: int  # a unit of work and of storage; each has its own seed, so that it decides the bytes
    vectorised: bool
    summary_numpy: bool
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @classmethod
    def of_rows(cls, settings: Settings, rows: dict[str, NumPy], **how: bool) -> "Schema":
        """Return the schema of a bank whose rows are like these, with chunks of a fitting size."""
        each, asked = rows["x"].nbytes, settings.chunk
        fits = CHUNK_BYTES // max(each, EMBEDDING_BYTES)
        size = min(settings.num, asked or max(1, min(settings.num // CHUNKS, fits)))
        if size * max(row.nbytes for row in rows.values()) > MAX_CHUNK_BYTES:
            said = f"chunks of at most {MAX_CHUNK_BYTES:,} bytes"
            got = f"{size} datasets of {each:,} bytes"
            raise checks.wrong("chunk", said, got, "Choose fewer datasets for a chunk.")
        shapes = {name: row.shape for name, row in rows.items()}
        dtypes = {name: str(row.dtype) for name, row in rows.items()}
        return cls(settings.num, size, shapes=shapes, dtypes=dtypes, **how)

    @property
    def num_chunks(self) -> int:
        return -(-self.num // self.chunk)

    @property
    def pilot(self) -> int:
        """Number of the first datasets that are kept with their data, whatever else is kept."""
        return min(self.num, PILOT, max(1, PILOT_BYTES // self.bytes_of("x")))

    @property
    def pilot_chunks(self) -> int:
        return -(-self.pilot // self.chunk)

    def span(self, index: int) -> tuple[int, int]:
        """Return the first row of a chunk, and the one after its last."""
        return index * self.chunk, min(self.num, (index + 1) * self.chunk)

    def rows(self, indices: Iterable[int]) -> int:
        return sum(last - first for first, last in map(self.span, indices))

    def bytes_of(self, name: str) -> int:
        return int(math.prod(self.shapes[name]) * np.dtype(self.dtypes[name]).itemsize)

    def layouts(self, keep: str, *, embedded: bool = False) -> dict[str, Layout]:
        """Return the arrays of a bank; without mean embeddings until these are chosen."""
        rows = self.num if keep == "data" else self.span(self.pilot_chunks - 1)[1]
        sizes = {"theta": self.num, "s": self.num, "x": rows}
        found: dict[str, Layout] = {"valid": ((self.num,), "bool")}
        for name, size in sizes.items():
            kept = "pilot" if name == "x" and keep != "data" else name
            found[kept] = (size, *self.shapes[name]), self.dtypes[name]
        if embedded:
            found["z_bar"] = (self.num, None), "float32"
        return found

    @staticmethod
    def file(name: str, index: int, dim: int = 2) -> str:
        """Return where in the bank a chunk of an array with `dim` axes is, such as theta/c.7.0."""
        return f"{name}/c.{index}" + ".0" * (dim - 1)

    def files(self, keep: str, index: int) -> list[str]:
        arrays = self.layouts(keep)
        if index >= self.pilot_chunks:
            arrays.pop("pilot", None)
        return sorted(self.file(name, index, len(shape)) for name, (shape, _) in arrays.items())


class SimulationError(RuntimeError):
    """Draws failed, and the caller did not want to go on, or could not."""


@dataclass(frozen=True)
class Failure:
    chunk: int
    row: int
    attempt: int  # counts draws for this row from 0
    kind: str  # "raised", "timed out", "not finite" or "wrong shape"
    error: str  # what was said
    theta: tuple[float | None, ...]
    seed: int  # of the call of the simulator,
    alone: bool  # which was for this dataset alone, or for all of its chunk

    def record(self) -> dict[str, Any]:
        """Return JSON values; parameters that are not finite are null."""
        finite = [v if v is not None and math.isfinite(v) else None for v in self.theta]
        return asdict(self) | {"theta": finite}

    def __str__(self) -> str:
        return (
            f"row {self.row}, attempt {self.attempt}: {KINDS[self.kind]} ({self.error}); theta = "
            f"{list(self.theta)}, seed = {self.seed}"
        )


@dataclass(frozen=True)
class Chunk:
    index: int
    # theta (b, d_theta), s (b, d_s), valid (b,) and, where they are made, z_bar (b, K) and
    # x (b, N, *event); rows that are not valid are NaN but for theta.
    arrays: dict[str, NumPy]
    failures: tuple[Failure, ...]
    seconds: float


def check_header(folder: Path, header: Mapping[str, Any]) -> Schema:
    top = Record(folder / "zarr.json", header)
    config, own = top.part("config"), top.part("schema")
    shapes, dtypes = own.part("shapes"), own.part("dtypes")
    num = own.whole("num", 1, MAX_DATASETS)
    chunk, how = own.whole("chunk", 1, num), (own.flag("vectorised"), own.flag("summary_numpy"))
    rows = {name: tuple(shapes.shape(name)) for name in ARRAYS}
    kinds = {name: dtypes.word(name, ("float16", "float32", "float64")) for name in ARRAYS}
    schema = Schema(num, chunk, *how, rows, kinds)
    for name, shape in schema.shapes.items():
        if (len(shape) < 1) if name == "x" else (len(shape) != 1):
            raise shapes.refuse(name, "the shape of a row")
        if schema.chunk * schema.bytes_of(name) > MAX_CHUNK_BYTES:
            raise shapes.refuse(name, f"chunks of at most {MAX_CHUNK_BYTES:,} bytes")
    config.word("keep", KEEP)
    config.word("failures", FAILURES)
    config.part("functions"), config.part("embedding")
    config.whole("num", num, num)
    config.whole("n_obs", *[schema.shapes["x"][0]] * 2)
    if "embedding" in top:
        embedding = top.part("embedding")
        embedding.part("config")
        embedding.checked("sha256", *DIGEST)
        names = embedding.items("names", *TENSORS)
        if len(set(names)) != len(names):
            raise embedding.refuse("names", "a list of different names of tensors")
    return schema


def check_record(folder: Path, index: int, record: Any, schema: Schema, keep: str) -> None:
    if folder.name != f"{index:05}" or index >= schema.num_chunks:
        raise storage.damaged(folder, f"the bank has {schema.num_chunks} chunks")
    own, (first, last) = Record(folder / "zarr.json", record), schema.span(index)
    own.checked("rows", str([first, last]), lambda v: v == [first, last])
    needed, files = set(schema.files(keep, index)), own.part("files")
    if not needed <= set(files.values) <= needed | {schema.file("z_bar", index)}:
        raise own.refuse("files", f"the files {', '.join(sorted(needed))}")
    for name in files.values:
        files.part(name).whole("bytes", most=2**40)
        files.part(name).checked("sha256", *DIGEST)
    dim = schema.shapes["theta"][0]
    for failure in own.checked("failures", "a list", lambda v: isinstance(v, list)):
        draw = Record(own.file, failure, "failures.")
        draw.only([field.name for field in fields(Failure)])
        draw.whole("chunk", index, index), draw.whole("row", first, last - 1)
        draw.whole("attempt"), draw.whole("seed", most=2**64)
        draw.word("kind", tuple(KINDS)), draw.word("error"), draw.flag("alone")
        said = f"{dim} numbers or null"
        draw.checked("theta", said, lambda v: isinstance(v, list) and len(v) == dim)
        draw.checked("theta", said, lambda v: all(n is None or type(n) is float for n in v))
