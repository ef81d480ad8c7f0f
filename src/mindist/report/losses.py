"""Where minimum-distance summaries lose to a baseline, from the same rows as the tables.

A comparison is lost when the mean of the paired differences on the same datasets is above two of
its standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindist.report.horizontal import Horizontal
from mindist.report.panel import Panel
from mindist.report.statistics import Rows, paired_difference, select, summarise
from mindist.report.style import (
    OURS,
    REFERENCES,
    SMALLER_IS_BETTER,
    method_style,
    metric_label,
    setting,
    text,
)
from mindist.report.table import Entry, Table, mean_and_error

BEYOND = 2.0
"""Standard errors beyond which a paired difference counts: about 5% when there is none."""


@dataclass(frozen=True)
class Loss:
    """A baseline that beats one of our methods at a setting.

    Arguments:
        method: Which of ours.
        baseline: Which beats it.
        at: The setting.
        difference: Mean of the paired differences, ours minus the baseline's.
        error: Its standard error.
    """

    method: str
    baseline: str
    at: Any
    difference: float
    error: float

    def __str__(self) -> str:
        return f"+{mean_and_error(self.difference, self.error)}"


def find_losses(
    rows: Rows, metric: str, by: str = "epsilon", *, ours: Sequence[str] = OURS
) -> tuple[dict[str, int], list[Loss]]:
    """For each method of ours how many comparisons were made, and the ones it loses.

    A comparison is lost when the mean difference on the same datasets and seeds is above two of
    its standard errors. References, which know what is clean, are no baselines.

    Arguments:
        rows: One row for each test dataset, method, setting and seed.
        metric: A column of which smaller is better.
        by: The column that tells settings apart.
        ours: The methods that are judged, where they are among the rows.
    """
    points = summarise(rows, metric, by)
    settings = {name: [p.at for p in own] for name, own in points.items()}
    parts = {at: rows[rows[by] == at] for at in {at for own in settings.values() for at in own}}
    compared = {method: 0 for method in points if method in ours}
    lost = []
    for method in compared:
        for baseline in points:
            if baseline in (*OURS, *REFERENCES):
                continue
            for at in (at for at in settings[method] if at in settings[baseline]):
                difference, error = paired_difference(parts[at], metric, by, at, method, baseline)
                compared[method] += math.isfinite(error)  # one dataset says nothing
                if difference > BEYOND * error:
                    lost.append(Loss(method, baseline, at, difference, error))
    return compared, lost


def losses(
    rows: Rows, metric: str, by: str = "epsilon", *, ours: Sequence[str] = OURS
) -> tuple[str, ...]:
    """Where MDS loses to a baseline, a sentence for each method of ours; see `find_losses`.

    A method that was compared with nothing has no sentence.
    """
    compared, lost = find_losses(rows, metric, by, ours=ours)
    return tuple(
        loss_sentence(method, metric, by, [loss for loss in lost if loss.method == method], count)
        for method, count in compared.items()
        if count
    )


def loss_sentence(method: str, metric: str, by: str, lost: Sequence[Loss], compared: int) -> str:
    """To whom a method loses, where, and by how much at worst."""
    label, words = method_style(method).label, metric_label(metric)
    if not lost:
        return (
            f"{label} loses to no baseline in {words} ({compared} paired comparisons, none lost "
            f"by more than {BEYOND:g} standard errors)."
        )
    parts = []
    for baseline in dict.fromkeys(loss.baseline for loss in lost):
        own = [loss for loss in lost if loss.baseline == baseline]
        worst = max(own, key=lambda loss: loss.difference)
        where = ", ".join(text(loss.at) for loss in own)
        most = f"{worst}" if len(own) == 1 else f"most at {text(worst.at)}: {worst}"
        parts.append(f"to {method_style(baseline).label} at {name_of(by)} {where} ({most})")
    return f"{label} loses in {words} {'; '.join(parts)}."


def name_of(by: str) -> str:
    """The letter or the words in front of the value of a setting."""
    return setting(by, "").rstrip()


def loss_table(rows: Rows, metric: str, by: str = "epsilon", *, caption: str = "") -> Table | None:
    """All comparisons that MDS loses, a column for each setting; None where there are none."""
    _, lost = find_losses(rows, metric, by)
    settings = list(Horizontal.of(by, [loss.at for loss in lost]).places)
    body = []
    for method, baseline in dict.fromkeys((loss.method, loss.baseline) for loss in lost):
        own = {
            loss.at: str(loss)
            for loss in lost
            if (loss.method, loss.baseline) == (method, baseline)
        }
        head = f"{method_style(method).label} to {method_style(baseline).label}"
        body.append([Entry(head), *(Entry(own.get(at, "")) for at in settings)])
    if not body:
        return None
    note = (
        "Mean difference on the same datasets ± its standard error, where it is above "
        f"{BEYOND:g} of them."
    )
    caption = caption or f"Lost in {metric_label(metric)}"
    return Table(caption, ["loses", *(setting(by, at) for at in settings)], body, (note,))


def panel_losses(panels: Sequence[Panel], rows: Rows) -> tuple[str, ...]:
    """Where MDS loses, for every panel whose metric is better when smaller, each sentence once."""
    return tuple(
        dict.fromkeys(
            (f"{panel.title}: " if panel.title else "") + sentence
            for panel in compared_panels(panels)
            for sentence in losses(select(rows, panel.where), panel.metric, panel.by)
        )
    )


def compared_panels(panels: Sequence[Panel]) -> list[Panel]:
    """Panels of methods by a metric that is better when smaller."""
    return [p for p in panels if p.metric in SMALLER_IS_BETTER and p.series == "method"]


def loss_tables(panels: Sequence[Panel], rows: Rows) -> tuple[Table, ...]:
    """What MDS loses, in full, a table for each panel where it loses anything."""
    tables = []
    for panel in compared_panels(panels):
        title = f" ({panel.title})" if panel.title else ""
        caption = f"Lost in {metric_label(panel.metric)}{title}"
        lost = loss_table(select(rows, panel.where), panel.metric, panel.by, caption=caption)
        tables += [lost] if lost else []
    return tuple(tables)


__all__ = ["Loss", "find_losses", "loss_table", "loss_tables", "losses", "panel_losses"]
