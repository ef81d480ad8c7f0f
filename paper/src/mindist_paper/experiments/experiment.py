"""What an experiment is: which cells it needs, and how its rows are shown.

An experiment is an entry, not a program: the runner computes its cells, `mindist.report` draws its
panels and writes its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.evaluation.cell import Cell
from mindist_paper.report.panel import Panel

PROFILES = ("smoke", "quick", "paper")
"""`smoke`: seconds, for CI. `quick`: the right picture in minutes. `paper`: the paper's sizes."""

Rows = Any
"""A pandas `DataFrame`, one row for each test dataset of each cell."""


def no_cells(profile: str, num_seeds: int) -> Sequence[Cell]:
    """Of an experiment that makes its own rows."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """A figure or an ablation of the paper.

    Arguments:
        name: As in `mindist reproduce NAME`.
        title: Above its figure.
        shows: One line on what it shows.
        source: Where it stands in the paper.
        panels: How the rows are drawn, in reading order.
        cells: From a profile and a number of seeds, the cells it needs.
        own_rows: From a profile and a number of seeds, its rows, where they are no cells.
        prepare: From the rows of the cells to those that are shown: columns that only this
            experiment has, or the best of several settings of a method.
        notes: What was chosen or left out, for the table and the configuration.
        minutes: About how many minutes each profile takes on two idle cores, alone.
        estimated: The profiles whose minutes were not measured but scaled from others.
        anchors: Published values beside ours: metric -> method -> value of `by` -> number.
        anchors_source: Where they come from.
        verdict: From the shown rows, a line on agreement with the paper, and why.
        unavailable: Why it cannot run here, with what to do, or None.
        illustration: The paper's figure, where it is no curve: "figure1" or None.
    """

    name: str
    title: str
    shows: str
    source: str
    panels: Sequence[Panel]
    cells: Callable[[str, int], Sequence[Cell]] = no_cells
    own_rows: Callable[[str, int], Rows] | None = None
    prepare: Callable[[Rows], Rows] | None = None
    notes: Sequence[str] = ()
    minutes: Mapping[str, float] = field(default_factory=dict)
    estimated: Sequence[str] = ("paper",)
    anchors: Mapping[str, Mapping[str, Mapping[float, float]]] = field(default_factory=dict)
    anchors_source: str = ""
    verdict: Callable[[Rows], str] | None = None
    unavailable: Callable[[], str | None] | None = None
    illustration: str | None = None


__all__ = ["PROFILES", "Experiment", "Panel", "Rows", "no_cells"]
