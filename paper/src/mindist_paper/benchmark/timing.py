"""Contenders that take turns in rounds, and the ratio of their times within rounds.

On a machine that others use as well, the time of one call says little.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

LEAST_SECONDS = 0.02  # of one timing: a tick of the scheduler is 4 ms
# A run of less than so many times the least timing is made once before each timing as well: right
# after another contender's matrix product, embedding 20 x 100 x 1,024 took 5% longer.
QUICK = 10
Clock = Callable[[], float]
Run = Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """Something to time."""

    run: Run
    units: int = 1  # datasets of one run, say; times are for one of them
    warm: bool = True  # whether to run it once before it counts; not where a run takes minutes


@dataclass(frozen=True)
class Times:
    """Seconds for one unit, of each contender in each round."""

    seconds: Mapping[str, Sequence[float]]

    def ratio(self, slow: str, fast: str) -> tuple[float, float, float]:
        """Return how many times as long one takes as another: median, 5% and 95% quantiles."""
        ratios = np.divide(self.seconds[slow], self.seconds[fast])
        median, low, high = (round(float(np.quantile(ratios, q)), 12) for q in (0.5, 0.05, 0.95))
        return median, low, high


def race(
    contenders: Mapping[str, Contender],
    rounds: int,
    *,
    least: float = LEAST_SECONDS,
    clock: Clock = time.perf_counter,
) -> Times:
    """Time every contender once a round, in rotating order, after a warm-up."""
    names = list(contenders)
    repeats = {name: _repeats(contenders[name], least, clock) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for first in range(rounds):
        for name in names[first % len(names) :] + names[: first % len(names)]:
            contender, count = contenders[name], max(1, repeats[name])
            if repeats[name]:
                contender.run()
            taken = seconds_of(contender.run, count, clock)
            seconds[name].append(taken / (count * contender.units))
    return Times(seconds)


def _repeats(contender: Contender, least: float, clock: Clock) -> int:
    """Return how often a quick contender runs in one timing; 0 for one that is not quick."""
    if not contender.warm or seconds_of(contender.run, 1, clock) >= QUICK * least:
        return 0
    return max(1, math.ceil(least / max(seconds_of(contender.run, 1, clock), 1e-9)))


def seconds_of(run: Run, count: int = 1, clock: Clock = time.perf_counter) -> float:
    """Return the time of so many runs."""
    start = clock()
    for _ in range(count):
        run()
    return float(clock() - start)


@dataclass(frozen=True)
class Claim:
    """A bound that a number has to keep."""

    sense: str
    bound: float

    def holds(self, value: float) -> bool:
        """Return whether a value is what was claimed."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:,g}"


@dataclass(frozen=True)
class Row:
    """A measured number."""

    what: str  # the input, such as its sizes
    measure: str  # what the number is: for a ratio of times, "slow / fast"
    value: float
    low: float  # where most rounds, or the uncertainty of a mean, begin ...
    high: float  # ... and end
    claim: Claim | None = None  # what it has to be, if anything
    unit: str = ""
    threads: int = 1
    seconds: Mapping[str, float] = field(default_factory=dict)  # median time of each contender
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Return whether the claim holds; None where there is none."""
        return None if self.claim is None else self.claim.holds(self.value)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Row:
        """Build a row from what `asdict` and JSON made of it."""
        claim = values["claim"]
        return cls(**{**values, "claim": None if claim is None else Claim(**claim)})


def ratio_row(
    what: str, times: Times, slow: str, fast: str, claim: Claim | None = None, note: str = ""
) -> Row:
    """Return how many times as long one contender takes as another, with the times of all."""
    seconds = {name: statistics.median(values) for name, values in times.seconds.items()}
    return Row(what, f"{slow} / {fast}", *times.ratio(slow, fast), claim, "", 1, seconds, note)


at_least, at_most = partial(Claim, "at least"), partial(Claim, "at most")


def all_threads() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Let torch, BLAS and OpenMP use so many threads, then give back what they had."""
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)
