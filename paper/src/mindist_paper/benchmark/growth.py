r"""Time and memory as one size grows, :math:`t(n) \approx c\, n^p`, each in a process of its own.

Datasets are :math:`x_{nj} = \theta_{j \bmod 2} + \mathcal{N}(0, 1)`; making them is subtracted.
"""

import contextlib
import ctypes
import gc
import json
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindist.features import FourierFeatures
from mindist.minimum_distance import MinimumDistance
from mindist_paper.benchmark.timing import Row, at_most, num_threads, seconds_of

Say = Callable[[str], None]
CHUNK_NUMBERS, CHUNK_DATASETS = 2**22, 1_000  # in one chunk, whichever is less
FIT_OBSERVATIONS = 100  # at most, in each dataset that detection and adaptation were fitted to
STATUS, RESET, MEGABYTE = Path("/proc/self/status"), Path("/proc/self/clear_refs"), 2**20
MAX_RUNS, ENOUGH_SECONDS = 5, 2.0  # repeat a short run
FLAT_MEGABYTES = 32.0  # less memory than this above the input is as good as none
GROWN, FEWEST = 3.0, 3  # of the sizes that an exponent is fitted to


@dataclass(frozen=True)
class Setting:
    """Sizes of a problem."""

    simulations: int = 1_000  # M, datasets to fit to
    observations: int = 100  # N, of a dataset
    dimension: int = 2  # D, of an observation
    features: int = 512  # K
    datasets: int = 100  # B, observed


class Job(NamedTuple):
    """Something to measure."""

    run: Callable[[], object]
    warm: Callable[[], object]  # the same on less: loads libraries, starts threads
    input: Callable[[], object]  # the part of it that only makes the input
    kept: int = 0  # bytes of input and output that whoever calls it has to hold


def chunks(num: int, setting: Setting, *, contaminated: bool = False) -> Iterator[Tensor]:
    """Make so many datasets `(b, N, D)`, a chunk at a time."""
    N, D = setting.observations, setting.dimension
    size = max(1, min(CHUNK_DATASETS, CHUNK_NUMBERS // (N * D), num))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(size, N, D, generator=generator)
    if contaminated:
        noise[:, ::5] += 4
    for first in range(0, num, size):
        theta = torch.randn(min(size, num - first), 1, 2, generator=generator)
        yield noise[: len(theta)] + theta.repeat(1, 1, -(-D // 2))[..., :D]


def _summary(x: Tensor) -> Tensor:
    return x[..., :2].mean(1)


def _fit(setting: Setting) -> Job:
    def fit(num: int) -> MinimumDistance:
        mds = MinimumDistance(_summary, num_features=setting.features)
        return mds.fit(chunks(num, setting))

    num = setting.simulations
    return Job(lambda: fit(num), lambda: fit(min(num, 400)), lambda: deque(chunks(num, setting), 0))


def _observed(setting: Setting, step: Callable[[MinimumDistance, Tensor], Tensor]) -> Job:
    few = replace(setting, observations=min(setting.observations, FIT_OBSERVATIONS))
    mds = MinimumDistance(_summary, num_features=setting.features)
    mds.fit(chunks(few.simulations, few))

    def over(num: int) -> Tensor:
        # One array for what is kept: small ones between large temporaries would pin their memory.
        kept, first = torch.empty(0), 0
        for x in chunks(num, setting, contaminated=True):
            result = step(mds, x)
            if not first:
                kept = result.new_empty(num, *result.shape[1:])
            kept[first : first + len(x)] = result
            first += len(x)
        return kept

    num = setting.datasets
    drain = lambda: deque(chunks(num, setting, contaminated=True), 0)  # noqa: E731
    return Job(lambda: over(num), lambda: over(min(num, 4)), drain)


def _embed(setting: Setting) -> Job:
    shape, generator = (setting.dimension,), torch.Generator().manual_seed(0)
    features = FourierFeatures.draw(shape, setting.features, bandwidth=1.0, generator=generator)
    x = torch.cat(list(chunks(setting.datasets, setting)))
    result = 4 * setting.datasets * setting.features
    return Job(lambda: features.mean(x), lambda: features.mean(x[:10]), lambda: None, result)


# Steps of the method at a given size, by name
JOBS: dict[str, Callable[[Setting], Job]] = {
    "fit": _fit,
    "detect": lambda setting: _observed(setting, lambda mds, x: mds.detect(x).p_value),
    "adapt": lambda setting: _observed(setting, lambda mds, x: mds.adapt(x).s_star),
    "embed": _embed,
}


class Measured(NamedTuple):
    """Costs of a job: median time without making the input, peak memory without in- and output."""

    seconds: float
    megabytes: float | None  # None off Linux


def measure(job: Job) -> Measured:
    """Run a job: first for its memory, then for its time."""
    job.warm()
    seconds: list[float] = []
    peak = peak_above(lambda: seconds.append(seconds_of(job.run)))
    while len(seconds) < MAX_RUNS and sum(seconds) < ENOUGH_SECONDS:
        seconds.append(seconds_of(job.run))
    taken = statistics.median(seconds) - min(seconds_of(job.input) for _ in range(2))
    above = None if peak is None else max(0.0, peak - job.kept / MEGABYTE)
    return Measured(max(taken, 0.0), above)


def measure_apart(name: str, setting: Setting, threads: int = 1) -> Measured:
    """Measure a job, a key of `JOBS`, in a process of its own, whose peak no other has raised."""
    order = json.dumps([name, threads, asdict(setting)])
    command = [sys.executable, "-m", "mindist_paper.benchmark.growth", order]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["killed, perhaps for want of memory"])[-1]
        raise RuntimeError(f"{name} ended with an error: {last}")
    return Measured(*json.loads(ended.stdout.splitlines()[-1]))


def main(order: str) -> None:
    """Measure what `measure_apart` ordered, and print it as JSON."""
    name, threads, setting = json.loads(order)
    with num_threads(threads):
        print(json.dumps(measure(JOBS[name](Setting(**setting)))))


def peak_above(run: Callable[[], object]) -> float | None:
    """Return the megabytes that a call takes at its peak, its result included; None off Linux."""
    if not STATUS.exists():
        return None
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc: give back what was freed but kept for later
    with contextlib.suppress(OSError):
        RESET.write_text("5")  # sets the peak to what is resident now
    before = _kilobytes("VmRSS")
    result = run()
    after = _kilobytes("VmHWM")
    del result
    return max(0.0, (after - before) / 1_024)


def _kilobytes(key: str) -> int:
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def fit_slope(sizes: Sequence[int], costs: Sequence[float]) -> tuple[float, int]:
    """Return the exponent of costs against ascending sizes, and the first size it was fitted to."""
    values = np.maximum(np.asarray(costs, dtype=float), 1e-9)
    grown = np.flatnonzero(values >= GROWN * values[0])
    start = min([max(0, len(sizes) - FEWEST), *map(int, grown[:1])])
    exponent = np.polyfit(np.log(sizes[start:]), np.log(values[start:]), 1)[0]
    return round(float(exponent), 6), sizes[start]


@dataclass(frozen=True)
class Line:
    """How one step grows."""

    quantity: str  # a field of `Setting`
    job: str  # a key of `JOBS`
    flat: bool  # whether memory is claimed to stay
    sizes: Sequence[int]  # ascending
    seconds: Sequence[float]
    megabytes: Sequence[float | None]

    def rows(self) -> list[Row]:
        """Return the exponents of time and of memory."""
        what = f"{self.job} against {self.quantity}, {self.sizes[0]:,} to {self.sizes[-1]:,}"
        p, first = fit_slope(self.sizes, self.seconds)
        note = f"fitted from {first:,}; {self.seconds[-1]:.2g} s at the largest"
        rows = [Row(what, "exponent of time", p, p, p, at_most(1.1), note=note)]
        memory = [value for value in self.megabytes if value is not None]
        if len(memory) == len(self.sizes):
            floor = [max(value, FLAT_MEGABYTES) for value in memory[-FEWEST:]]
            p, first = fit_slope(self.sizes[-FEWEST:], floor)
            note = f"fitted from {first:,}; {memory[-1]:,.0f} MB at the largest"
            claim = at_most(0.1) if self.flat else None
            rows.append(Row(what, "exponent of peak memory", p, p, p, claim, note=note))
        return rows


# What grows: the steps, the other sizes, and whether memory is claimed to stay
SWEEPS: Mapping[str, tuple[tuple[str, ...], Setting, bool]] = {
    "simulations": (("fit",), Setting(observations=10), True),
    "observations": (("fit", "detect", "adapt"), Setting(simulations=400, datasets=4), False),
    "dimension": (("fit", "detect", "adapt"), Setting(500, 50, datasets=50), False),
    "features": (("fit", "detect", "adapt"), Setting(datasets=50), False),
    "datasets": (("detect", "adapt"), Setting(observations=20), True),
}


def measure_growth(sizes: Mapping[str, Sequence[int]], say: Say = print) -> Iterator[Line]:
    """Measure all lines, each through the sizes of its quantity; `say` is told each point."""
    for quantity, (jobs, _, _) in SWEEPS.items():
        for job in jobs:
            yield measure_line(quantity, job, sizes[quantity], say)


def measure_line(quantity: str, job: str, sizes: Sequence[int], say: Say = print) -> Line:
    """Measure one step at all sizes."""
    _, setting, flat = SWEEPS[quantity]
    points: list[Measured] = []
    for size in sizes:
        points.append(measure_apart(job, replace(setting, **{quantity: size})))
        memory = points[-1].megabytes or 0.0
        say(f"  {job}, {size:,} {quantity}: {points[-1].seconds:.2g} s, {memory:,.0f} MB")
    seconds, megabytes = zip(*points, strict=True)
    return Line(quantity, job, flat, list(sizes), list(seconds), list(megabytes))


def memory_rows(numbers: Sequence[int]) -> list[Row]:
    """Measure the memory of mean embeddings beyond input and output, for numbers of datasets."""
    rows = []
    for num in numbers:
        setting = Setting(datasets=num)
        taken = measure_apart("embed", setting).megabytes
        if taken is None:
            continue
        what = f"embedding {num:,} x {setting.observations} x {setting.dimension}, K = 512"
        measure = "peak memory above input and output"
        rows.append(Row(what, measure, taken, taken, taken, at_most(256), "MB"))
    return rows


if __name__ == "__main__":
    main(sys.argv[1])
