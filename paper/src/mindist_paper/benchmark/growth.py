"""Time and memory as one size grows and the others stay, each point in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mindist_paper.benchmark.child import measure_apart
from mindist_paper.benchmark.job import Setting
from mindist_paper.benchmark.row import Claim, Row
from mindist_paper.benchmark.sizes import Sizes
from mindist_paper.benchmark.slope import fit_slope

LINEAR = Claim("at most", 1.1)
FLAT = Claim("at most", 0.1)
FLAT_MEGABYTES = 32.0  # less memory than this above the input is as good as none
MEMORY_CLAIM = Claim("at most", 256.0)


@dataclass(frozen=True)
class Sweep:
    """One quantity that grows.

    Arguments:
        quantity: A field of `Setting`.
        jobs: What is measured, by its name in `mindist_paper.benchmark.job.JOBS`.
        setting: The other sizes.
        flat: Whether memory is claimed to stay.
    """

    quantity: str
    jobs: tuple[str, ...]
    setting: Setting
    flat: bool = False


SWEEPS = (
    Sweep("simulations", ("fit",), Setting(observations=10), flat=True),
    Sweep("observations", ("fit", "detect", "adapt"), Setting(simulations=400, datasets=4)),
    Sweep(
        "dimension",
        ("fit", "detect", "adapt"),
        Setting(simulations=500, observations=50, datasets=50),
    ),
    Sweep("features", ("fit", "detect", "adapt"), Setting(datasets=50)),
    Sweep("datasets", ("detect", "adapt"), Setting(observations=20), flat=True),
)


@dataclass(frozen=True)
class Line:
    """How one step grows.

    Arguments:
        quantity: What grows.
        job: The step.
        sizes: Ascending.
        seconds: At each size.
        megabytes: At each size; None where the system does not tell.
        flat: Whether memory is claimed to stay.
        setting: The other sizes.
        failed: The size at which it did not end, and why; empty where all did.
    """

    quantity: str
    job: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    megabytes: tuple[float | None, ...]
    flat: bool
    setting: Mapping[str, int]
    failed: str = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Line:
        """What `asdict` and JSON made of it."""
        lists = ("sizes", "seconds", "megabytes")
        return cls(**{**values, **{name: tuple(values[name]) for name in lists}})

    def rows(self) -> list[Row]:
        """The exponents of time and of memory, with what is claimed of them.

        Infinite where the step did not end at some size.
        """
        if self.failed or len(self.sizes) < 2:
            what = f"{self.job} against {self.quantity}"
            inf = math.inf
            return [Row(what, "exponent of time", inf, inf, inf, LINEAR, note=self.failed)]
        slope = fit_slope(self.sizes, self.seconds)
        what = f"{self.job} against {self.quantity}, {self.sizes[0]:,} to {self.sizes[-1]:,}"
        note = f"fitted from {slope.first:,}; {_duration(self.seconds[-1])} at the largest"
        p = slope.exponent
        rows = [Row(what, "exponent of time", p, p, p, LINEAR, note=note)]
        memory = [value for value in self.megabytes if value is not None]
        if len(memory) == len(self.sizes):
            floor = [max(value, FLAT_MEGABYTES) for value in memory]
            slope = fit_slope(self.sizes[-3:], floor[-3:])
            p, claim = slope.exponent, FLAT if self.flat else None
            note = f"fitted from {slope.first:,}; {memory[-1]:,.0f} MB at the largest"
            rows.append(Row(what, "exponent of peak memory", p, p, p, claim, note=note))
        return rows


def measure_growth(sizes: Sizes, say: Callable[[str], None] = print) -> Iterator[Line]:
    """All lines, one after the other.

    Arguments:
        sizes: Of the profile.
        say: Told what is measured.
    """
    for sweep in SWEEPS:
        for job in sweep.jobs:
            yield measure_line(sweep, job, sizes.growth[sweep.quantity], say)


def measure_line(
    sweep: Sweep, job: str, sizes: tuple[int, ...], say: Callable[[str], None] = print
) -> Line:
    """One step at all sizes."""
    points, failed = [], ""
    for size in sizes:
        try:
            point = measure_apart(job, replace(sweep.setting, **{sweep.quantity: size}))
        except RuntimeError as error:
            failed = f"did not end at {size:,}: {error}"
            say(f"  {job}, {size:,} {sweep.quantity}: {error}")
            break
        memory = "" if point.megabytes is None else f", {point.megabytes:,.0f} MB"
        say(f"  {job}, {size:,} {sweep.quantity}: {_duration(point.seconds)}{memory}")
        points.append(point)
    return Line(
        sweep.quantity,
        job,
        sizes[: len(points)],
        tuple(point.seconds for point in points),
        tuple(point.megabytes for point in points),
        sweep.flat,
        asdict(sweep.setting),
        failed,
    )


def memory_rows(sizes: Sizes) -> list[Row]:
    """The memory of mean embeddings beyond input and output, whatever the number of datasets."""
    rows = []
    for num in sizes.memory:
        setting = Setting(datasets=num)
        taken = measure_apart("embed", setting).megabytes
        if taken is None:
            continue
        what = f"embedding {num:,} x {setting.observations} x {setting.dimension}, K = 512"
        measure = "peak memory above input and output"
        rows.append(Row(what, measure, taken, taken, taken, MEMORY_CLAIM, "MB"))
    return rows


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"


__all__ = ["SWEEPS", "Line", "Sweep", "measure_growth", "measure_line", "memory_rows"]
