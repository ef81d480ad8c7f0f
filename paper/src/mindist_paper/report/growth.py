"""Time and memory against size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from mindist.report import new_figure, save_figure
from mindist.report.style import BLUE, GREY, VERMILION, figure_style
from mindist_paper.report.style import GREEN, Style

STYLES = {
    "fit": Style("fit", BLUE, "o"),
    "detect": Style("detect", GREEN, "s", "--"),
    "adapt": Style("adapt", VERMILION, "D", "-."),
}


class Growth(Protocol):
    """How one step grows: its name, sizes, seconds and megabytes."""

    @property
    def job(self) -> str:
        """The step."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """What grows, ascending."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """At each size."""

    @property
    def megabytes(self) -> tuple[float | None, ...]:
        """At each size; None where nobody knows."""


def draw_growth(quantity: str, lines: Sequence[Growth], path: Path) -> Path:
    """A figure of two panels, time and memory, with a line for each step.

    Arguments:
        quantity: What grows.
        lines: The steps.
        path: Of the PNG file.
    """
    with figure_style():
        figure, (time, memory) = new_figure(2)
        plot_growth(time, lines, "seconds")
        plot_growth(memory, lines, "megabytes")
        time.set(xlabel=quantity, ylabel="seconds", title="Time")
        memory.set(xlabel=quantity, ylabel="MB above the input", title="Peak memory")
        time.legend()
        return save_figure(figure, path)


def plot_growth(axes: Any, lines: Sequence[Growth], what: str) -> Any:
    """Costs against sizes, and a grey line of slope 1 through the last point of the costliest.

    Arguments:
        axes: Matplotlib axes.
        lines: The steps.
        what: `"seconds"` or `"megabytes"`.
    """
    axes.set(xscale="log", yscale="log")
    last: tuple[float, float, float] | None = None
    for line in lines:
        style = STYLES.get(line.job, Style(line.job, GREY, "."))
        points = [
            (size, cost)
            for size, cost in zip(line.sizes, getattr(line, what), strict=True)
            if cost is not None and cost > 0
        ]
        if not points:
            continue
        sizes, costs = zip(*points, strict=True)
        axes.plot(
            sizes,
            costs,
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            label=style.label,
        )
        if last is None or costs[-1] > last[2]:
            last = (sizes[0], sizes[-1], costs[-1])
    if last is not None and what == "seconds":
        first, end, cost = last
        axes.plot(
            [first, end],
            [cost * first / end, cost],
            color=GREY,
            linestyle=":",
            label="slope 1",
            zorder=0,
        )
    return axes


__all__ = ["draw_growth", "plot_growth"]
