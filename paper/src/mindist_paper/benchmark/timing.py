r"""Contenders that take turns, and the ratio of their times.

On a machine that others use as well, the time of one call says little: it may double while the
program runs. Contenders are therefore timed in rounds, each once a round and in an order that
rotates, and compared within rounds,

.. math:: \rho_r = t_r(\text{slow}) / t_r(\text{fast}), \qquad r = 1, \ldots, R ,

of which the median is reported, and the 5% and 95% quantiles as its spread.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from threadpoolctl import threadpool_limits

LEAST_SECONDS = 0.02  # of one timing: a tick of the scheduler is 4 ms
SPREAD = (0.05, 0.95)
# A run of less than so many times the least timing is made once before each timing as well. Right
# after another contender's matrix product, embedding 20 x 100 x 1,024 took 13.2 ms instead of 12.6
# on one thread; after a run of its own 12.6 again, after a pause of 50 ms still 13.2.
QUICK = 10

Clock = Callable[[], float]


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Arguments:
        run: What is timed.
        units: How many datasets, or other units, one run works on; times are for one of them.
        warm: Whether to run it once before it counts. Not worth its time where a run takes minutes.
    """

    run: Callable[[], object]
    units: int = 1
    warm: bool = True


@dataclass(frozen=True)
class Ratio:
    """A ratio of times: the median over rounds, and the quantiles that most rounds lie between."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Ratio:
        """Of the ratios of all rounds.

        Example:
            >>> Ratio.of([1.0, 2.0, 3.0])
            Ratio(median=2.0, low=1.1, high=2.9)
        """
        low, high = (round(float(np.quantile(values, q)), 12) for q in SPREAD)
        return cls(statistics.median(values), low, high)


@dataclass(frozen=True)
class Times:
    """Seconds for one unit, of each contender in each round."""

    seconds: Mapping[str, Sequence[float]]

    def medians(self) -> dict[str, float]:
        """The median of each contender."""
        return {name: statistics.median(values) for name, values in self.seconds.items()}

    def ratio(self, slow: str, fast: str) -> Ratio:
        """How many times as long one contender takes as another.

        Example:
            >>> Times({"slow": [2.0, 6.0, 4.0], "fast": [1.0, 2.0, 2.0]}).ratio("slow", "fast")
            Ratio(median=2.0, low=2.0, high=2.9)
        """
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return Ratio.of([a / b for a, b in pairs])


def seconds_of(run: Callable[[], object]) -> float:
    """The time of one run."""
    return _time(run, 1, time.perf_counter)


def race(
    contenders: Mapping[str, Contender],
    rounds: int,
    *,
    least: float = LEAST_SECONDS,
    clock: Clock = time.perf_counter,
) -> Times:
    """Time every contender once a round, in rotating order, after a warm-up.

    Arguments:
        contenders: By name.
        rounds: How many timings of each.
        least: Seconds that one timing takes at least: a quick contender runs several times in it.
        clock: Tells the time in seconds.

    Example:
        >>> ticks = iter(range(100))
        >>> times = race({"a": Contender(lambda: None)}, 3, least=1, clock=lambda: next(ticks))
        >>> times.seconds
        {'a': [1.0, 1.0, 1.0]}
    """
    names = list(contenders)
    repeats = {name: _repeats(contenders[name], least, clock) for name in names}
    quick = {name for name in names if repeats[name]}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for first in range(rounds):
        for name in names[first % len(names) :] + names[: first % len(names)]:
            contender, count = contenders[name], max(1, repeats[name])
            if name in quick:
                contender.run()
            taken = _time(contender.run, count, clock)
            seconds[name].append(taken / (count * contender.units))
    return Times(seconds)


def _repeats(contender: Contender, least: float, clock: Clock) -> int:
    """How often a quick contender runs in one timing; 0 for one that is not quick.

    The first run loads and allocates, and does not count.
    """
    if not contender.warm or _time(contender.run, 1, clock) >= QUICK * least:
        return 0
    return max(1, math.ceil(least / max(_time(contender.run, 1, clock), 1e-9)))


def _time(run: Callable[[], object], count: int, clock: Clock) -> float:
    start = clock()
    for _ in range(count):
        run()
    return float(clock() - start)


def all_threads() -> int:
    """As many threads as this process has cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Let torch, BLAS and OpenMP use so many threads, then give back what they had.

    Example:
        >>> with num_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    with threadpool_limits(count):
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


__all__ = ["Contender", "Ratio", "Times", "all_threads", "num_threads", "race", "seconds_of"]
