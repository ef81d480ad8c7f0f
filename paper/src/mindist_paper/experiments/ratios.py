r"""Errors relative to another method on the same datasets, with standard errors.

.. math::
    R = \frac{\sum_i a_i}{\sum_i b_i}, \qquad
    r_i = R + \frac{a_i - R \, b_i}{\bar b}, \qquad
    \mathrm{SE}(R) = \mathrm{sd}(r_i) / \sqrt{B}

for errors :math:`a_i, b_i` of two methods on B test datasets. The mean of the :math:`r_i` is R, and
the standard error of their mean is that of R by the delta method: a table of means of
:math:`r_i` is a table of ratios with their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mindist_paper.experiments.claims import DECIDED, label
from mindist_paper.experiments.four_tasks import NAMES
from mindist_paper.report.statistics import standard_error
from mindist_paper.report.style import setting as in_words

MARGIN = 0.05
"""How much worse than NPE is still as good."""

PAIR = ["seed", "dataset"]


def linearised(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Any:
    """The values `(B,)` whose mean is the ratio of the means, and whose error is the ratio's.

    Example:
        >>> linearised(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
        array([1., 3.])
    """
    ratio = first.mean() / second.mean()
    return ratio + (first - ratio * second) / second.mean()


def pairs(rows: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """The RMSE of two methods at one setting by seed and dataset; NaN where it is not finite."""
    wide = rows.pivot(index=PAIR, columns="method", values="rmse")
    return wide.reindex(columns=[first, second]).replace([math.inf, -math.inf], math.nan)


def ratio(rows: pd.DataFrame, first: str, second: str) -> tuple[float, float]:
    """The ratio of the RMSE of two methods at one setting, and its standard error."""
    both = pairs(rows, first, second).dropna().groupby("dataset").mean()
    if both.empty:
        return math.nan, math.nan
    values = linearised(both[first].to_numpy(), both[second].to_numpy())
    return float(values.mean()), standard_error(values)


def with_ratio(rows: pd.DataFrame, settings: Sequence[str], baseline: str = "npe") -> pd.DataFrame:
    """A column "rmse_ratio", relative to a baseline within each setting.

    Arguments:
        rows: One row for each test dataset, method, setting and seed.
        settings: The columns that tell settings apart.
        baseline: A method that every setting has.
    """
    keys = [*settings, *PAIR]
    base = rows.loc[rows.method == baseline, [*keys, "rmse"]]
    paired = rows.merge(base.rename(columns={"rmse": "base"}), on=keys, how="left")

    def own(group: pd.DataFrame) -> Any:
        known = group[["rmse", "base"]].notna().all(axis=1)
        if not known.any():
            return pd.Series(math.nan, index=group.index)
        values = linearised(*(group.loc[known, name].to_numpy() for name in ("rmse", "base")))
        return pd.Series(values, index=group.index[known]).reindex(group.index)

    parts = [own(group) for _, group in paired.groupby([*settings, "method"], dropna=False)]
    return paired.assign(rmse_ratio=pd.concat(parts)).drop(columns="base")


def relative(first: str, *others: str, by: str = "epsilon") -> Callable[[pd.DataFrame], str]:
    """A verdict: the RMSE of one method relative to others, setting by setting."""

    def judge(rows: pd.DataFrame) -> str:
        sentences = []
        for other in others:
            found = {at: ratio(own, first, other) for at, own in rows.groupby(by)}
            parts = [
                f"{value:.2f} ± {error:.2f} at {in_words(by, at)}"
                for at, (value, error) in found.items()
                if math.isfinite(value)
            ]
            if parts:
                words = f"RMSE of {label(first)} relative to {label(other)}"
                sentences.append(f"{words}: {', '.join(parts)}.")
        return " ".join(sentences)

    return judge


def nowhere_worse(method: str, baseline: str = "npe") -> Callable[[pd.DataFrame], str]:
    """A verdict: whether a method is nowhere worse than a baseline by more than 5%.

    A setting is worse where the ratio is above 1.05 by more than two standard errors, better where
    it is below 1 by as much, and undecided where it is above 1.05 by less, which is said too. A
    network may have no finite answer at all far outside its training data; such datasets are told
    apart, and are worse where the baseline has one.
    """

    def judge(rows: pd.DataFrame) -> str:
        found = [
            (f"{NAMES[task]}, {case}", compare(own, method, baseline))
            for (task, case), own in rows.groupby(["task", "case"], sort=False)
        ]
        known = [(where, c) for where, c in found if c.outcome != "not compared"]
        if not known:
            return f"{label(method)} was not compared with {label(baseline)}."

        def listed(outcome: str) -> str:
            return "; ".join(f"{where}: {c}" for where, c in known if c.outcome == outcome)

        what = f"worse than {label(baseline)} by more than {MARGIN:.0%}"
        worse, undecided = listed("worse"), listed("undecided")
        alone = "; ".join(where for where, c in known if c.outcome == "no baseline")
        head = f"{what} ({worse})" if worse else f"nowhere {what}"
        parts = [f"{label(method)} is {head}"]
        if undecided:
            parts[0] += " beyond two standard errors"
            parts.append(f"above that within them: {undecided}")
        if alone:
            parts.append(f"{label(baseline)} has no finite answer: {alone}")
        better = sum(c.outcome == "better" for _, c in known)
        return "; ".join([*parts, f"better in {better} of {len(known)} settings"]) + "."

    return judge


@dataclass(frozen=True)
class Comparison:
    """Two methods at one setting.

    Arguments:
        ratio: Of their errors, where both have one.
        error: Its standard error.
        mute: On how many datasets the first has no finite answer and the second has one.
        outcome: "worse", "undecided", "as good", "better", "no baseline" or "not compared".
    """

    ratio: float
    error: float
    mute: int
    outcome: str

    def __str__(self) -> str:
        lacking = f"no finite answer for {self.mute}" if self.mute else ""
        if not math.isfinite(self.ratio):
            return lacking
        words = f"{self.ratio:.2f} ± {self.error:.2f}"
        return f"{words}, {lacking}" if lacking else words


def compare(rows: pd.DataFrame, method: str, baseline: str) -> Comparison:
    """Whether a method is worse than a baseline at one setting."""
    both = pairs(rows, method, baseline)
    mute = int((both[method].isna() & both[baseline].notna()).sum())
    alone = int((both[method].notna() & both[baseline].isna()).sum())
    value, error = ratio(rows, method, baseline)
    if not {method, baseline} <= set(rows.method):
        outcome = "not compared"
    elif mute:
        outcome = "worse"
    elif not math.isfinite(value):
        outcome = "no baseline" if alone else "not compared"
    elif value - DECIDED * error > 1 + MARGIN:
        outcome = "worse"
    elif value > 1 + MARGIN or not math.isfinite(error):
        outcome = "undecided"
    else:
        outcome = "better" if value + DECIDED * error < 1 else "as good"
    return Comparison(value, error, mute, outcome)


__all__ = [
    "MARGIN",
    "Comparison",
    "compare",
    "linearised",
    "nowhere_worse",
    "pairs",
    "ratio",
    "relative",
    "with_ratio",
]
