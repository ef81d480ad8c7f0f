"""What an experiment is: which cells it needs, and how its rows are shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.evaluation.cell import Cell
from mindist_paper.report import Anchors, Panel

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
    # About how many minutes the profiles smoke, quick and paper take on two idle cores
    minutes: tuple[float, float, float]
    # From a profile and a number of seeds to the cells it needs
    cells: Callable[[str, int], Sequence[Cell]] = lambda profile, num_seeds: ()
    # From a profile and a number of seeds to its rows, where they are no cells
    own_rows: Callable[[str, int], Rows] | None = None
    # From the rows of the cells to those that are shown: columns that only this experiment has, or
    # the best of several settings of a method
    prepare: Callable[[Rows], Rows] | None = None
    notes: Sequence[str] = ()  # What was chosen or left out, for the table and the configuration
    # The profiles whose minutes were not measured but scaled from others
    estimated: Sequence[str] = ("paper",)
    # Published values beside ours: metric -> method -> value of `by` -> number
    anchors: Anchors = field(default_factory=dict)
    anchors_source: str = ""  # Where they come from
    # From the shown rows to a line on agreement with the paper, and why
    verdict: Callable[[Rows], str] | None = None
    # Returns why it cannot run here, with what to do, or None
    unavailable: Callable[[], str | None] | None = None
    illustration: str | None = None  # The paper's figure, where it is no curve: "figure1" or None


def panels(
    metrics: Sequence[str], by: str = "epsilon", *, log: bool = False, **where: Any
) -> list[Panel]:
    """Return a panel for each metric."""
    return [Panel(metric, by, where=where, log=log) for metric in metrics]
