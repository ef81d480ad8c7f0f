"""Verdicts that are no comparison of two methods: trends, detection, starts, theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from mindist_paper.experiments.claims import Claim, label, sentence
from mindist_paper.experiments.gaussian_theory import GaussianTheory
from mindist_paper.experiments.theorems import SLOPE_EPSILON, log_log_slope
from mindist_paper.report.statistics import select, summarise
from mindist_paper.report.style import metric_label
from mindist_paper.report.style import setting as in_words

Rows = Any
Verdict = Callable[[Rows], str]
HALF_TOLERANCE = 0.05  # of the exponent of N, for a few hundred datasets
SIZE_SIGMAS = 3.0  # binomial standard deviations that the size may be off


def joined(*verdicts: Verdict) -> Verdict:
    """One verdict after the other."""
    return lambda rows: " ".join(text for v in verdicts if (text := v(rows)))


def rises_and_falls(method: str, metric: str, by: str) -> Verdict:
    """Whether a method's metric falls again at the largest settings, as the paper reports."""

    def judge(rows: Rows) -> str:
        points = summarise(rows, metric, by).get(method, ())
        if len(points) < 3:
            return ""
        worst = max(points, key=lambda p: p.mean)
        last = points[-1]
        found = worst.at != last.at and worst.mean - last.mean > 2 * math.hypot(
            worst.error, last.error
        )
        word = "falls again, as in the paper" if found else "does not fall again, unlike the paper"
        return (
            f"{metric_label(metric)} of {label(method)} is largest at {in_words(by, worst.at)} "
            f"({worst.mean:.3g}) and {last.mean:.3g} at {in_words(by, last.at)}: it {word}."
        )

    return judge


def gain_trend(method: str, baseline: str, by: str, *, grows: bool) -> Verdict:
    """Whether the gain over a baseline grows, or shrinks, from the first setting to the last."""

    def judge(rows: Rows) -> str:
        points = summarise(rows, "rmse", by)
        if method not in points or baseline not in points:
            return ""
        ours = {p.at: p.mean for p in points[method]}
        gains = {p.at: p.mean / ours[p.at] for p in points[baseline] if p.at in ours}
        if len(gains) < 2:
            return ""
        first, *_, last = gains
        agrees = (gains[last] > gains[first]) == grows
        expected = "grows" if grows else "shrinks"
        return (
            f"The ratio of the RMSE of {label(baseline)} to that of {label(method)} goes from "
            f"{gains[first]:.2f} at {in_words(by, first)} to {gains[last]:.2f} at "
            f"{in_words(by, last)}; the paper's gain {expected}: "
            f"{'agrees' if agrees else 'disagrees'}."
        )

    return judge


def size_and_power(rows: Rows) -> str:
    """The size against the binomial interval of the level, and the power at its ends."""
    parts = []
    clean = select(rows, {"part": "size", "alpha": 0.05})
    for method, (point, *_) in summarise(clean, "detected", "alpha").items():
        spread = math.sqrt(0.05 * 0.95 / max(point.count, 1))
        held = abs(point.mean - 0.05) <= SIZE_SIGMAS * spread
        word = "agrees with the level .05" if held else "disagrees with the level .05"
        parts.append(f"{label(method)}: size {point.mean:.3f} on {point.count} datasets, {word}")
    for by, what in (("epsilon", "epsilon"), ("delta", "delta")):
        for method, points in summarise(select(rows, {"part": by}), "detected", what).items():
            low, high = points[0], points[-1]
            rises = "rises, as in the paper" if high.mean > low.mean else "does not rise"
            parts.append(
                f"{label(method)}: rejection {rises}, from {low.mean:.2f} at "
                f"{in_words(by, low.at)} to {high.mean:.2f} at {in_words(by, high.at)}"
            )
    return "; ".join(parts) + "."


def starts(rows: Rows) -> str:
    """The paper's two observations on starts, and the nearest simulated dataset as one."""
    schemes = select(rows, {"part": "scheme"})
    named = schemes.assign(method=schemes.start)
    several = select(rows, {"part": "restarts"})
    counts = several.initialisations.map(lambda n: "one start" if n == 1 else "ten starts")
    lines = [
        sentence(named, Claim("mean", "observed", at=(0.1, 0.2, 0.3, 0.4, 0.5))),
        sentence(
            several.assign(method=counts),
            Claim("ten starts", "one start", at=(0.1, 0.2, 0.3, 0.4, 0.5)),
        ),
        sentence(named, Claim("nearest", "mean", at=(0.1, 0.2, 0.3, 0.4, 0.5))),
    ]
    spread = summarise(select(rows, {"part": "spread"}), "spread", "epsilon").get("mds-rf", ())
    if len(spread) > 1:
        first, last = spread[0], spread[-1]
        rises = "grows, as in the paper" if last.mean > first.mean else "does not grow"
        lines.append(
            f"The spread over perturbed starts {rises}: {first.mean:.3g} at "
            f"{in_words('epsilon', first.at)}, {last.mean:.3g} at {in_words('epsilon', last.at)}."
        )
    return " ".join(["The paper: the mean is the better start, ten starts help.", *lines])


def median_bandwidth(rows: Rows) -> str:
    """Whether the median is within a tenth of the best multiple of it, on the same datasets."""
    lines = []
    for method, own in rows[rows.method.str.startswith("mds")].groupby("method", sort=False):
        errors = own.pivot_table("rmse", ["seed", "dataset"], "bandwidth")
        at = {round(float(b), 9): b for b in errors.columns}
        if 1.0 not in at:
            continue
        best, median = errors.mean().idxmin(), at[1.0]
        means, excess = errors.mean(), errors[median] - 1.1 * errors[best]
        decided = 2 * float(excess.std()) / len(excess) ** 0.5
        word = "undecided whether the median is a reliable choice"
        if float(excess.mean()) <= 0:
            word = "agrees with the median being a reliable choice"
        elif float(excess.mean()) > decided:
            word = "disagrees with the median being a reliable choice"
        lines.append(
            f"{label(str(method))}: RMSE {means[median]:.3g} at the median, best "
            f"{means[best]:.3g} at {best:g} times it: {word} (within a tenth of the best)."
        )
    return " ".join(lines)


def robustness(rows: pd.DataFrame) -> str:
    """Bounded for MDS, unbounded for the mean, void where the Hessian is singular."""
    outlier = rows[rows.part == "outlier"]
    lines = []
    theory = GaussianTheory()
    bound = theory.num_obs**2 / (2 * (theory.num_obs + 1)) * SLOPE_EPSILON
    bound *= theory.largest_influence**2
    for method, own in outlier.groupby("method"):
        slopes = own.groupby("outlier").kl_slope.mean()
        last, largest = float(slopes.iloc[-1]), float(slopes.max())
        bounded = slopes.idxmax() < slopes.index[-1] and last < 0.5 * largest
        where = f"largest {largest:.3g} at |y| = {slopes.idxmax():g}, {last:.3g} at 50"
        condition = f"condition number of the Hessian at most {own.condition.max():.2f}"
        if method == "sample-mean":
            word = "does not grow with |y|" if bounded else "grows with |y|, as it must"
            lines.append(f"Slope of the sample mean {word}: {where}.")
        else:
            word = "bounded, as the theorem says" if bounded else "not bounded, unlike the theorem"
            lines.append(f"{label(str(method))}: {word}: {where}; {condition}.")
    lines.append(f"To first order the bound is {bound:.3g}.")
    for gap, own in rows[rows.part == "gap"].groupby("gap"):
        own = own.sort_values("epsilon")
        smallest, biggest = own.iloc[0], own.iloc[-1]
        if math.isinf(float(smallest.condition)):
            grows = smallest.kl_slope > biggest.kl_slope
            exponent = log_log_slope(own.epsilon, own.kl_slope)
            lines.append(
                f"At gap {gap:g} the Hessian is singular and the slope "
                f"{'grows without bound' if grows else 'stays bounded'} as epsilon falls to "
                f"{smallest.epsilon:g} ({biggest.kl_slope:.3g} to {smallest.kl_slope:.3g}, like "
                f"epsilon^{exponent:.2f}): the bound "
                f"{'does not hold' if grows else 'holds'} there."
            )
    return " ".join(lines)


def consistency(rows: pd.DataFrame) -> str:
    """The exponent of the error in N, and the coverage at the largest N."""
    lines = []
    for method, own in rows.groupby("method"):
        mean = own.groupby("num_obs").rmse.mean()
        if len(mean) < 2:
            continue
        slope = log_log_slope(mean.index.to_series(), mean)
        word = "agrees" if abs(slope + 0.5) < HALF_TOLERANCE else "disagrees"
        largest = own[own.num_obs == mean.index[-1]]
        lines.append(
            f"{label(str(method))}: RMSE falls as N^{slope:.2f} ({word} with -1/2), coverage of "
            f"90% intervals {largest.coverage_90.mean():.2f} at N = {mean.index[-1]}."
        )
    ratio = GaussianTheory().variance_ratio
    lines.append(
        f"In theory the variance of s* is {ratio:.3f} times that of the sample mean, so that its "
        f"error is {100 * (math.sqrt(ratio) - 1):.1f}% larger."
    )
    return " ".join(lines)


__all__ = [
    "consistency",
    "gain_trend",
    "joined",
    "median_bandwidth",
    "rises_and_falls",
    "robustness",
    "size_and_power",
    "starts",
]
