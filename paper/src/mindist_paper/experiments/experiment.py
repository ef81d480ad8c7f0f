"""An experiment: the cells that it needs, and how its rows are shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.evaluation.cell import Cell
from mindist_paper.report.statistics import Anchors, Panel

# `smoke`: seconds, for CI. `quick`: the right picture in minutes. `paper`: the paper's sizes
PROFILES = ("smoke", "quick", "paper")
Rows = Any  # A pandas `DataFrame`, one row for each test dataset of each cell
NEW = "not in the paper"  # The source of an experiment that is ours


@dataclass(frozen=True)
class Experiment:
    """A figure or an ablation of the paper."""

    name: str  # As in `mindist reproduce NAME`
    title: str  # Title above its figure
    shows: str  # One line on what it shows
    source: str  # Where it stands in the paper
    panels: Sequence[Panel]  # How the rows are drawn, in reading order
    minutes: tuple[float, float, float]  # of smoke, quick and paper on two idle cores
    cells: Callable[[str, int], Sequence[Cell]] = lambda profile, seeds: ()  # that it needs
    own_rows: Callable[[str, int], Rows] | None = None  # where they are no cells
    prepare: Callable[[Rows], Rows] | None = None  # from the rows to those that are shown
    notes: Sequence[str] = ()  # What was chosen or left out, for the table and the configuration
    estimated: Sequence[str] = ("paper",)  # profiles whose minutes were not measured
    anchors: Anchors = field(default_factory=dict)  # published: metric, method, `by`
    anchors_source: str = ""  # Where they come from
    verdict: Callable[[Rows], str] | None = None  # on agreement with the paper
    unavailable: Callable[[], str | None] | None = None  # why it cannot run here
    illustration: str | None = None  # The paper's figure, where it is no curve: "figure1" or None


def panels(
    metrics: Sequence[str], by: str = "epsilon", *, log: bool = False, **where: Any
) -> list[Panel]:
    """Return a panel for each metric."""
    return [Panel(metric, by, where=where, log=log) for metric in metrics]
