"""One line of the benchmark: a number, its spread, and what was claimed of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mindist_paper.benchmark.timing import Ratio, Times


@dataclass(frozen=True)
class Claim:
    """What a number has to be.

    Example:
        >>> Claim("at least", 3).holds(2.9), Claim("at most", 1.3).holds(1.2)
        (False, True)
    """

    sense: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value is what was claimed."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:,g}"


@dataclass(frozen=True)
class Row:
    """A measured number.

    Arguments:
        what: The input, such as its sizes.
        measure: What the number is: for a ratio of times, "slow / fast".
        value: The number.
        low: Where most rounds, or the uncertainty of a mean, begin.
        high: Where they end.
        claim: What it has to be, or None for the record.
        unit: Of the number; empty for a ratio.
        threads: How many were allowed.
        seconds: Median time of each contender for one unit of work.
        note: What a reader has to know.
    """

    what: str
    measure: str
    value: float
    low: float
    high: float
    claim: Claim | None = None
    unit: str = ""
    threads: int = 1
    seconds: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the claim holds; None where there is none."""
        return None if self.claim is None else self.claim.holds(self.value)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "reached": self.reached}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Row:
        """What `to_json` gave.

        Example:
            >>> row = Row("x", "a / b", 2.0, 1.0, 3.0, Claim("at least", 1))
            >>> Row.from_json(row.to_json()) == row
            True
        """
        known = {name: values[name] for name in cls.__dataclass_fields__}
        claim = known["claim"]
        return cls(**{**known, "claim": None if claim is None else Claim(**claim)})


def ratio_row(
    what: str,
    times: Times,
    slow: str,
    fast: str,
    *,
    claim: Claim | None = None,
    threads: int,
    note: str = "",
) -> Row:
    """How many times as long one contender takes as another, with the times of all."""
    ratio: Ratio = times.ratio(slow, fast)
    return Row(
        what,
        f"{slow} / {fast}",
        ratio.median,
        ratio.low,
        ratio.high,
        claim,
        threads=threads,
        seconds=times.medians(),
        note=note,
    )


__all__ = ["Claim", "Row", "ratio_row"]
