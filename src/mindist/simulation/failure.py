"""Draws that failed: what kind, of which parameters and seed, and what was said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

RAISED, TIMED_OUT, NOT_FINITE, WRONG_SHAPE = "raised", "timed out", "not finite", "wrong shape"
KINDS = {
    RAISED: "raised an error",
    TIMED_OUT: "took longer than the time limit",
    NOT_FINITE: "gave NaN or infinite values",
    WRONG_SHAPE: "gave data of the wrong shape",
}
MAX_TEXT = 500  # characters of an error's text that are kept


@dataclass(frozen=True)
class Problem:
    """Why one call of the simulator, or of the summary, gave nothing of use.

    Arguments:
        kind: One of `KINDS`.
        error: What was said.
    """

    kind: str
    error: str

    @classmethod
    def of(cls, error: BaseException, whose: str = "") -> Problem:
        """From an error that was raised."""
        return cls(RAISED, f"{whose}{type(error).__name__}: {error}"[:MAX_TEXT])


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
        """As JSON values; parameters that are not finite are null."""
        finite = [v if v is not None and math.isfinite(v) else None for v in self.theta]
        return asdict(self) | {"theta": finite}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Failure:
        """What `record` gave."""
        return cls(**{**record, "theta": tuple(record["theta"])})

    def __str__(self) -> str:
        return (
            f"row {self.row}, attempt {self.attempt}: {KINDS[self.kind]} ({self.error}); theta = "
            f"{list(self.theta)}, seed = {self.seed}"
        )


class SimulationError(RuntimeError):
    """Draws failed, and the caller did not want to go on, or could not."""


def describe(failures: Sequence[Failure]) -> str:
    """How many draws failed, of each kind, in words.

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


__all__ = ["KINDS", "Failure", "Problem", "SimulationError", "describe"]
