"""Where minimum-distance summaries lose to a baseline, from the same rows as the tables.

A comparison is lost when the mean of the paired differences on the same datasets is above two of
its standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindist_paper.report.horizontal import Horizontal
from mindist_paper.report.panel import Panel
from mindist_paper.report.statistics import Rows, paired_difference, select, summarise
from mindist_paper.report.style import (
    OURS,
    REFERENCES,
    SMALLER_IS_BETTER,
    method_style,
    metric_label,
    setting,
    text,
)
from mindist_paper.report.table import Entry, Table, mean_and_error

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


@dataclass(frozen=True)
class Losses:
    """What the methods of ours lose in one metric.

    Arguments:
        metric: The metric.
        by: The column that tells settings apart.
        compared: For each method of ours how many comparisons were made.
        lost: The ones it loses.
        title: Of the panel that shows them.
    """

    metric: str
    by: str
    compared: Mapping[str, int]
    lost: tuple[Loss, ...]
    title: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each method of ours that was compared with anything."""
        before = f"{self.title}: " if self.title else ""
        return tuple(
            before + loss_sentence(method, self.metric, self.by, self._of(method), count)
            for method, count in self.compared.items()
            if count
        )

    @property
    def table(self) -> Table | None:
        """All of them, a column for each setting; None where there are none."""
        settings = list(Horizontal.of(self.by, [loss.at for loss in self.lost]).places)
        body = []
        for method, baseline in dict.fromkeys((loss.method, loss.baseline) for loss in self.lost):
            own = {loss.at: str(loss) for loss in self._of(method) if loss.baseline == baseline}
            head = f"{method_style(method).label} to {method_style(baseline).label}"
            body.append([Entry(head), *(Entry(own.get(at, "")) for at in settings)])
        if not body:
            return None
        note = (
            "Mean difference on the same datasets ± its standard error, where it is above "
            f"{BEYOND:g} of them."
        )
        title = f" ({self.title})" if self.title else ""
        header = ["loses", *(setting(self.by, at) for at in settings)]
        return Table(f"Lost in {metric_label(self.metric)}{title}", header, body, (note,))

    def _of(self, method: str) -> list[Loss]:
        return [loss for loss in self.lost if loss.method == method]


def find_losses(
    rows: Rows,
    metric: str,
    by: str = "epsilon",
    *,
    ours: Sequence[str] = OURS,
    title: str = "",
) -> Losses:
    """For each method of ours how many comparisons were made, and the ones it loses.

    References, which know what is clean, are no baselines.

    Arguments:
        rows: One row for each test dataset, method, setting and seed.
        metric: A column of which smaller is better.
        by: The column that tells settings apart.
        ours: The methods that are judged, where they are among the rows.
        title: Of the panel that shows them.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.2, 0.1, 0.1]}
        ... )
        >>> find_losses(rows, "rmse").lost
        ()
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
    return Losses(metric, by, compared, tuple(lost), title)


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


def panel_losses(panels: Sequence[Panel], rows: Rows) -> tuple[Losses, ...]:
    """What MDS loses in every panel of methods by a metric that is better when smaller.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> from mindist_paper.report import Panel
        >>> len(panel_losses([Panel("rmse"), Panel("coverage")], rows))
        1
    """
    return tuple(
        find_losses(select(rows, panel.where), panel.metric, panel.by, title=panel.title)
        for panel in panels
        if panel.metric in SMALLER_IS_BETTER and panel.series == "method"
    )


def loss_sentences(found: Sequence[Losses]) -> tuple[str, ...]:
    """All sentences, each once.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> found = find_losses(rows, "rmse")
        >>> len(loss_sentences([found, found])) == len(loss_sentences([found]))
        True
    """
    return tuple(dict.fromkeys(sentence for losses in found for sentence in losses.sentences))


def loss_tables(found: Sequence[Losses]) -> tuple[Table, ...]:
    """A table for each panel where MDS loses anything.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> loss_tables([find_losses(rows, "rmse")])
        ()
    """
    return tuple(losses.table for losses in found if losses.table)


__all__ = ["Loss", "Losses", "find_losses", "loss_sentences", "loss_tables", "panel_losses"]
