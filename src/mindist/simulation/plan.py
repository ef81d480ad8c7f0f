"""What a bank is to hold: what the caller asked for, and what the first simulation showed.

Both are written into the bank. A chunk is a unit of work and of storage; its size is derived from
the number of datasets and their bytes, never from a clock, because the bytes of the bank depend on
it (each chunk has its own seed).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mindist import checks

# A run is cut into about this many chunks: what is lost when it is killed is a hundredth of it for
# each process, and to write a chunk takes about 50 ms, 5 s in all.
CHUNKS = 100
CHUNK_BYTES = 16 * 2**20  # of data or embeddings, several of which are in memory at once
MAX_CHUNK_BYTES = 2**31  # whatever the caller asks for: a reader has to hold one
EMBEDDING_BYTES = 4 * 1_024  # of a mean embedding: two kernels with 512 features in float32

PILOT = 1_000  # datasets that are kept with their data: the embedding is chosen on them
PILOT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Settings:
    """What the caller asked for.

    Arguments:
        num: M, the number of datasets.
        n_obs: N, of observations in each.
        seed: Of everything random.
        keep: `"embedding"` or `"data"`: whether the data are kept as well.
        failures: `"redraw"`, `"report"` or `"raise"`.
        chunk: Datasets in a chunk; None to derive it.
        time_limit: Seconds for one simulation; None for no limit.
        vectorised: Whether the simulator takes a batch; None to find out.
    """

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
        checks.choice(self.keep, ("embedding", "data"), "keep")
        checks.choice(self.failures, ("redraw", "report", "raise"), "failures")
        if self.chunk is not None:
            checks.positive(checks.integer(self.chunk, "chunk"), "chunk")
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(
                f"time_limit: expected a positive number of seconds or None, got {self.time_limit}."
            )


@dataclass(frozen=True)
class Schema:
    """Shapes and types of a bank's arrays, as the first simulation showed them.

    Arguments:
        num: M, the number of datasets.
        chunk: Datasets in a chunk.
        vectorised: Whether the simulator takes a batch.
        summary_numpy: Whether the summary takes NumPy arrays.
        shapes: Of one row of "theta", "s" and "x".
        dtypes: Of the same three.
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
        """The first row of a chunk, and the one after its last.

        Example:
            >>> Schema(10, 4, True, False, {}, {}).span(2)
            (8, 10)
        """
        return index * self.chunk, min(self.num, (index + 1) * self.chunk)

    def bytes_of(self, name: str) -> int:
        """Of one row of an array."""
        return int(math.prod(self.shapes[name]) * np.dtype(self.dtypes[name]).itemsize)

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def chunk_size(num: int, dataset_bytes: int) -> int:
    """Datasets in a chunk: a hundredth of the bank, or what 16 MB hold.

    Example:
        >>> chunk_size(100, 800), chunk_size(100_000, 800), chunk_size(10**6, 800)
        (1, 1000, 4096)
        >>> chunk_size(10**6, 2**22)
        4
    """
    return max(1, min(num // CHUNKS, CHUNK_BYTES // max(dataset_bytes, EMBEDDING_BYTES)))


__all__ = ["MAX_CHUNK_BYTES", "PILOT", "PILOT_BYTES", "Schema", "Settings", "chunk_size"]
