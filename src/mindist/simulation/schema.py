"""What a bank holds: what the caller asked for, what the first simulation showed, what failed.

All of it is written into the bank as JSON, and checked when it is read. A checksum shows damage,
not good will: the files of a chunk are those that the schema says and no others, wherever else a
record may point. (tests/test_hostile_banks.py has a case for each check.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mindist import checks, storage
from mindist.simulation.calls import NOT_FINITE, RAISED, TIMED_OUT, WRONG_SHAPE

# A run is cut into about this many chunks: what is lost when it is killed is a hundredth of it for
# each process, and to write a chunk takes about 50 ms, 5 s in all.
CHUNKS = 100
CHUNK_BYTES = 16 * 2**20  # of data or embeddings, several of which are in memory at once
MAX_CHUNK_BYTES = 2**31  # whatever the caller asks for: a reader has to hold one
EMBEDDING_BYTES = 4 * 1_024  # of a mean embedding: two kernels with 512 features in float32
PILOT, PILOT_BYTES = 1_000, 64 * 2**20  # datasets kept with their data, to choose the embedding on
MAX_DATASETS = 2**40
MAX_ELEMENTS = 2**31  # of a dataset

KINDS = {
    RAISED: "raised an error",
    TIMED_OUT: "took longer than the time limit",
    NOT_FINITE: "gave NaN or infinite values",
    WRONG_SHAPE: "gave data of the wrong shape",
}
KEEP, FAILURES = ("embedding", "data"), ("redraw", "report", "raise")


@dataclass(frozen=True)
class Settings:
    """What the caller asked for: the arguments of `mindist.simulate` that decide the bytes."""

    num: int
    n_obs: int
    seed: int = 0
    keep: str = "embedding"
    failures: str = "redraw"
    chunk: int | None = None
    time_limit: float | None = None
    vectorised: bool | None = None

    def __post_init__(self) -> None:
        checks.positive(checks.integer(self.num, "num"), "num")
        checks.positive(checks.integer(self.n_obs, "n_obs"), "n_obs")
        if checks.integer(self.seed, "seed") < 0:
            raise ValueError(f"seed: expected a whole number of at least 0, got {self.seed}.")
        checks.choice(self.keep, KEEP, "keep")
        checks.choice(self.failures, FAILURES, "failures")
        if self.chunk is not None:
            checks.positive(checks.integer(self.chunk, "chunk"), "chunk")
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(
                f"time_limit: expected a positive number of seconds or None, got {self.time_limit}."
            )


class Layout(NamedTuple):
    """Shape (None for a size that only the array itself says), rows in a file, type of an array."""

    shape: tuple[int | None, ...]
    chunk: int
    dtype: str


@dataclass(frozen=True)
class Schema:
    """Shapes and types of one row of "theta", "s" and "x", as the first simulation showed them.

    A chunk is a unit of work and of storage. Its size is derived from the number of datasets and
    their bytes, never from a clock, because the bytes of the bank depend on it: each chunk has its
    own seed.
    """

    num: int
    chunk: int
    vectorised: bool
    summary_numpy: bool
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def num_chunks(self) -> int:
        """How many chunks there are."""
        return -(-self.num // self.chunk)

    @property
    def pilot(self) -> int:
        """How many of the first datasets are kept with their data, whatever else is kept."""
        return min(self.num, PILOT, max(1, PILOT_BYTES // self.bytes_of("x")))

    @property
    def pilot_chunks(self) -> int:
        """How many of the first chunks hold them."""
        return -(-self.pilot // self.chunk)

    def span(self, index: int) -> tuple[int, int]:
        """Return the first row of a chunk, and the one after its last.

        Example:
            >>> Schema(10, 4, True, False, {}, {}).span(2)
            (8, 10)
        """
        return index * self.chunk, min(self.num, (index + 1) * self.chunk)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of one row of an array."""
        return int(math.prod(self.shapes[name]) * np.dtype(self.dtypes[name]).itemsize)

    def layouts(self, keep: str, *, embedded: bool = False) -> dict[str, Layout]:
        """Return the arrays of a bank; without mean embeddings until these are chosen."""
        rows = self.num if keep == "data" else self.span(self.pilot_chunks - 1)[1]
        found = {
            name: Layout((size, *self.shapes[name]), self.chunk, self.dtypes[name])
            for name, size in (("theta", self.num), ("s", self.num), ("x", rows))
        }
        if keep != "data":
            found["pilot"] = found.pop("x")
        found["valid"] = Layout((self.num,), self.chunk, "bool")
        if embedded:
            found["z_bar"] = Layout((self.num, None), self.chunk, "float32")
        return found

    def files(self, keep: str, index: int) -> list[str]:
        """Return the files of a chunk; mean embeddings come later."""
        arrays = self.layouts(keep)
        if index >= self.pilot_chunks:
            arrays.pop("pilot", None)
        return sorted(file_of(name, index, len(own.shape)) for name, own in arrays.items())


def file_of(name: str, index: int, dim: int = 2) -> str:
    """Return where in the bank the rows of one chunk are, of an array with `dim` axes.

    Example:
        >>> file_of("theta", 7)
        'theta/c.7.0'
    """
    return f"{name}/c.{index}" + ".0" * (dim - 1)


def chunk_size(num: int, dataset_bytes: int) -> int:
    """Return the datasets in a chunk: a hundredth of the bank, or what 16 MB hold.

    Example:
        >>> chunk_size(100, 800), chunk_size(100_000, 800), chunk_size(10**6, 800)
        (1, 1000, 4096)
        >>> chunk_size(10**6, 2**22)
        4
    """
    return max(1, min(num // CHUNKS, CHUNK_BYTES // max(dataset_bytes, EMBEDDING_BYTES)))


class SimulationError(RuntimeError):
    """Draws failed, and the caller did not want to go on, or could not."""


@dataclass(frozen=True)
class Failure:
    """A failed draw of a bank.

    Arguments:
        chunk: In which chunk.
        row: Which dataset of the bank the draw was for.
        attempt: 0 for the first draw for this row, 1 for the first after a failure, ...
        kind: `"raised"`, `"timed out"`, `"not finite"` or `"wrong shape"`.
        error: What was said.
        theta: The parameters.
        seed: Of this call of the simulator; of the call for all datasets of the chunk, if it is
            vectorised and `alone` is False.
        alone: Whether the call was for this dataset alone.
    """

    chunk: int
    row: int
    attempt: int
    kind: str
    error: str
    theta: tuple[float | None, ...]
    seed: int
    alone: bool

    def record(self) -> dict[str, Any]:
        """Return JSON values; parameters that are not finite are null."""
        finite = [v if v is not None and math.isfinite(v) else None for v in self.theta]
        return asdict(self) | {"theta": finite}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Failure:
        """Make what `record` gave."""
        return cls(**{**record, "theta": tuple(record["theta"])})

    def __str__(self) -> str:
        return (
            f"row {self.row}, attempt {self.attempt}: {KINDS[self.kind]} ({self.error}); theta = "
            f"{list(self.theta)}, seed = {self.seed}"
        )


def describe(failures: Sequence[Failure]) -> str:
    """Say how many draws failed, of each kind.

    Example:
        >>> describe([Failure(0, 3, 0, "raised", "ValueError: no", (1.0,), 7, True)])
        '1 draw failed: 1 raised an error.'
    """
    if not failures:
        return "No draw failed."
    counts = Counter(failure.kind for failure in failures)
    parts = [f"{counts[kind]:,} {words}" for kind, words in KINDS.items() if counts[kind]]
    draws = "draw" if len(failures) == 1 else "draws"
    return f"{len(failures):,} {draws} failed: {', '.join(parts)}."


# ------------------------------------------------------------------------------- checking JSON

Test = tuple[str, Callable[[Any], bool]]
"""What is expected of a value, in words and as a function."""

TABLE: Test = ("a table of settings", lambda v: isinstance(v, dict))
LIST: Test = ("a list", lambda v: isinstance(v, list))
TEXT: Test = ("a text", lambda v: isinstance(v, str))
FLAG: Test = ("true or false", lambda v: isinstance(v, bool))
DIGEST: Test = (
    "a checksum of 64 digits",
    lambda v: isinstance(v, str) and bool(re.fullmatch("[0-9a-f]{64}", v)),
)
SIZES: Test = (
    "sizes",
    lambda v: (
        isinstance(v, list)
        and len(v) <= 32
        and all(type(size) is int and 0 < size <= MAX_DATASETS for size in v)
    ),
)
SHAPE: Test = (
    "the shape of a dataset or a vector",
    lambda v: SIZES[1](v) and len(v) > 0 and math.prod(v) <= MAX_ELEMENTS,
)
NAMES: Test = (
    "names of tensors",
    lambda v: (
        isinstance(v, list)
        and 0 < len(v) <= 1_000
        and all(isinstance(n, str) and re.fullmatch("[A-Za-z_][A-Za-z0-9_.]{0,99}", n) for n in v)
        and len(set(v)) == len(v)
    ),
)


def whole(low: int, high: int) -> Test:
    """Expect a whole number in a range."""
    words = f"a whole number from {low} to {high}"
    return words, lambda v: type(v) is int and low <= v <= high


def one_of(*allowed: Any) -> Test:
    """Expect one of a few values."""
    words = f"{'one of ' * (len(allowed) > 1)}{', '.join(map(str, allowed))}"
    return words, lambda v: v in allowed


def take(file: Path, values: Any, name: str, test: Test, where: str = "") -> Any:
    """Return a value by a name such as `"schema.num"`, or raise a ValueError that names the file.

    Arguments:
        file: Where the values are from.
        values: What it says.
        name: Of the value; dots lead into tables.
        test: What is expected.
        where: What comes before the name in a message.
    """
    path = where
    for part in name.split("."):
        if not isinstance(values, dict):
            got = f"{path.rstrip('.')!r} is {values!r:.80}"
            raise storage.damaged(file, f"{got}, expected a table of settings")
        path += f"{part}."
        if part not in values:
            raise storage.damaged(file, f"it lacks the setting {path[:-1]!r}")
        values = values[part]
    if not test[1](values):
        raise storage.damaged(file, f"{where + name!r} is {values!r:.80}, expected {test[0]}")
    return values


def check_header(folder: Path, header: Mapping[str, Any]) -> Schema:
    """Return what a header says of the arrays, or raise a ValueError that names what is wrong."""
    file = folder / "zarr.json"
    get = partial(take, file, header)
    num = get("schema.num", whole(1, MAX_DATASETS))
    names = ("theta", "s", "x")
    schema = Schema(
        num,
        get("schema.chunk", whole(1, num)),
        get("schema.vectorised", FLAG),
        get("schema.summary_numpy", FLAG),
        {name: tuple(get(f"schema.shapes.{name}", SHAPE)) for name in names},
        {
            name: get(f"schema.dtypes.{name}", one_of("float16", "float32", "float64"))
            for name in names
        },
    )
    for name, shape in schema.shapes.items():
        if name != "x" and len(shape) != 1:
            raise storage.damaged(file, f"'schema.shapes.{name}' is {shape}, expected one size")
        if schema.chunk * schema.bytes_of(name) > MAX_CHUNK_BYTES:
            most = f"chunks of at most {MAX_CHUNK_BYTES:,} bytes"
            raise storage.damaged(file, f"'schema.shapes.{name}' is {shape}, expected {most}")
    get("config.keep", one_of(*KEEP))
    get("config.failures", one_of(*FAILURES))
    get("config.functions", TABLE), get("config.embedding", TABLE)
    get("config.num", one_of(num)), get("config.n_obs", one_of(schema.shapes["x"][0]))
    if "embedding" in header:
        get("embedding.config", TABLE)
        get("embedding.sha256", DIGEST)
        get("embedding.names", NAMES)
    return schema


def check_record(folder: Path, index: int, record: Any, schema: Schema, keep: str) -> None:
    """Raise a ValueError unless this is the record of chunk `index`, in its folder."""
    file, (first, last) = folder / "zarr.json", schema.span(index)
    if folder.name != f"{index:05}" or index >= schema.num_chunks:
        raise storage.damaged(folder, f"the bank has {schema.num_chunks} chunks")
    take(file, record, "rows", one_of([first, last]))
    needed = set(schema.files(keep, index))
    files = take(file, record, "files", TABLE)
    if not needed <= set(files) <= needed | {file_of("z_bar", index)}:
        listed = ", ".join(sorted(needed))
        raise storage.damaged(file, f"'files' is {files!r:.80}, expected the files {listed}")
    for name, known in files.items():
        take(file, known, "bytes", whole(0, 2**40), f"{name}.")
        take(file, known, "sha256", DIGEST, f"{name}.")
    dim = schema.shapes["theta"][0]
    tests: dict[str, Test] = {
        "chunk": one_of(index),
        "row": whole(first, last - 1),
        "attempt": whole(0, 2**31),
        "kind": one_of(*KINDS),
        "error": TEXT,
        "theta": (
            "parameters",
            lambda v: isinstance(v, list) and len(v) == dim and all(map(_finite, v)),
        ),
        "seed": whole(0, 2**64),
        "alone": FLAG,
    }
    for failure in take(file, record, "failures", LIST):
        for name, test in tests.items():
            take(file, failure, name, test, "failures.")
        if len(failure) > len(tests):
            raise storage.damaged(file, "'failures' has an unknown setting")


def _finite(value: Any) -> bool:
    return value is None or (type(value) is float and math.isfinite(value))
