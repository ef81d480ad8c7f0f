"""What an experiment is: which cells it needs, and how its rows are shown.

An experiment is an entry, not a program: the runner computes its cells, `mindist.report` draws its
panels and writes its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindist.evaluation.cell import Cell

PROFILES = ("smoke", "quick", "paper")
"""`smoke`: seconds, for CI. `quick`: the right picture in minutes. `paper`: the paper's sizes."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a column of the rows against another, a line for each method.

    Arguments:
        metric: The column on the vertical axis: "rmse", "reference_mmd", "predictive_mmd",
            "summary_distance", "summary_distance_standardised", "coverage" (draws level by level),
            "detected", "posterior" or another kind that `mindist.report` knows.
        by: The column on the horizontal axis: "epsilon", "delta", "num_obs", "dim", "bandwidth".
        title: Above the axes.
        where: Only rows with these values.
        log: Whether the vertical axis is logarithmic.
    """

    metric: str
    by: str = "epsilon"
    title: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    log: bool = False


@dataclass(frozen=True)
class Experiment:
    """A figure or an ablation of the paper.

    Arguments:
        name: As in `mindist reproduce NAME`.
        title: Above its figure.
        shows: One line on what it shows.
        source: Where it stands in the paper.
        cells: From a profile and a number of seeds, the cells it needs.
        panels: How the rows are drawn, in reading order.
        minutes: Measured minutes on two cores of each profile.
        anchors: Published values beside ours: metric -> method -> value of `by` -> number.
        verdict: From the rows, a line on agreement or disagreement with the paper, and why.
    """

    name: str
    title: str
    shows: str
    source: str
    cells: Callable[[str, int], Sequence[Cell]]
    panels: Sequence[Panel]
    minutes: Mapping[str, float] = field(default_factory=dict)
    anchors: Mapping[str, Mapping[str, Mapping[float, float]]] = field(default_factory=dict)
    verdict: Callable[[Any], str] | None = None


__all__ = ["PROFILES", "Experiment", "Panel"]
