r"""Verdicts: whether rows agree with what the paper says. Every word of them is computed.

Ratios of errors :math:`a_i, b_i` of two methods have their standard error by the delta method:

.. math:: R = \frac{\sum_i a_i}{\sum_i b_i}, \qquad r_i = R + \frac{a_i - R \, b_i}{\bar b},
    \qquad \mathrm{SE}(R) = \mathrm{sd}(r_i) / \sqrt{B} .
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mindist_paper.report import statistics
from mindist_paper.report.statistics import Rows, paired_difference, select, summarise
from mindist_paper.report.style import method_style, metric_label
from mindist_paper.report.style import setting as in_words

Verdict = Callable[[Rows], str]
DECIDED = 2.0  # standard errors
CLOSE = 0.15  # relative difference up to which two methods "perform similarly"
BELOW, SIMILAR = "below", "similar to"
SIZE_SIGMAS = 3.0  # binomial standard deviations that the size of a test may be off
PAIR = ["seed", "dataset"]


def label(method: str) -> str:
    """Return a method's name in sentences."""
    return method_style(method).label


def option(rows: pd.DataFrame, name: str, default: Any = None) -> pd.Series:
    """Return one of the method's options as a column."""
    return rows.method_options.map(lambda text: json.loads(text).get(name, default))


def joined(*verdicts: Verdict) -> Verdict:
    """Return one verdict after the other."""
    return lambda rows: " ".join(text for v in verdicts if (text := v(rows)))


def at(by: str, point: statistics.Point, digits: str = ".3g") -> str:
    """Return a mean and its setting in words."""
    return f"{point.mean:{digits}} at {in_words(by, point.at)}"


@dataclass(frozen=True)
class Claim:
    """`first` is below (or similar to) `second`."""

    first: str  # A method
    second: str  # Another one
    metric: str = "rmse"  # A column, the smaller the better
    by: str = "epsilon"  # The column of the setting
    at: Sequence[float] | None = None  # Its values; None for all that the rows have
    relation: str = BELOW  # "below" or "similar to"
    where: Mapping[str, Any] = field(default_factory=dict)  # Only rows with these values


def over(first: str, *rest: str, **how: Any) -> list[Claim]:
    """Return claims that one method is below each of the others."""
    return [Claim(first, other, **how) for other in rest]


class Finding(NamedTuple):
    """The verdict of the rows on a claim at one setting: "agrees", "disagrees" or "undecided"."""

    at: float
    first: float
    second: float
    outcome: str


def findings(rows: Rows, claim: Claim) -> list[Finding]:
    """Return a finding for each setting at which both methods have rows."""
    chosen = select(rows, claim.where)
    points = summarise(chosen, claim.metric, claim.by)
    names = (claim.first, claim.second)
    first, second = ({p.at: p.mean for p in points.get(m, ())} for m in names)
    found = []
    for at in first:
        asked = claim.at is None or any(math.isclose(at, v, abs_tol=1e-9) for v in claim.at)
        if at in second and asked:
            difference, error = paired_difference(chosen, claim.metric, claim.by, at, *names)
            outcome = _outcome(claim.relation, difference, error, second[at])
            found.append(Finding(at, first[at], second[at], outcome))
    return found


def _outcome(relation: str, difference: float, error: float, scale: float) -> str:
    spread = DECIDED * error
    if not math.isfinite(difference) or not math.isfinite(error):
        return "undecided"
    if relation == SIMILAR:
        margin = CLOSE * abs(scale)
        agrees, disagrees = abs(difference) + spread <= margin, abs(difference) - spread > margin
    else:
        agrees, disagrees = difference < -spread, difference > spread
    return "agrees" if agrees else "disagrees" if disagrees else "undecided"


def sentence(rows: Rows, claim: Claim) -> str:
    """Return a claim with its outcome, setting by setting."""
    found = findings(rows, claim)
    name = f"{label(claim.first)} {claim.relation} {label(claim.second)}"
    if not found:
        return f"Not compared: {name} (no rows of both)."
    parts = []
    for outcome in ("agrees", "disagrees", "undecided"):
        numbers = "; ".join(
            f"{in_words(claim.by, f.at)}: {f.first:.3g} against {f.second:.3g}"
            for f in found
            if f.outcome == outcome
        )
        if numbers:
            parts.append(f"{outcome} ({numbers})")
    return f"{name}, {metric_label(claim.metric)}: {', '.join(parts)}."


def headline(rows: Rows, claims: Sequence[Claim]) -> str:
    """Return how many settings of all claims agree."""
    outcomes = [f.outcome for claim in claims for f in findings(rows, claim)]
    agree, against = outcomes.count("agrees"), outcomes.count("disagrees")
    if not outcomes:
        return "Nothing to compare with the paper"
    rest = len(outcomes) - agree - against
    if rest > agree + against:
        word = "Mostly undecided"
    elif agree and against:
        word = "Agreement in part"
    else:
        word = "Agreement with the paper" if agree else "Disagreement with the paper"
    open_ = f", {rest} within {DECIDED:g} standard errors" if rest else ""
    return f"{word} ({agree} of {len(outcomes)} comparisons agree, {against} disagree{open_})"


def verdict(*claims: Claim, explain: str = "mds-rf") -> Verdict:
    """Return a verdict from claims: how many agree, which, what was detected."""

    def judge(rows: Rows) -> str:
        lines = [f"{headline(rows, claims)}.", *(sentence(rows, claim) for claim in claims)]
        by = claims[0].by
        points = summarise(select(rows, claims[0].where), "detected", by).get(explain, ())
        if points:
            rates = ", ".join(at(by, p, ".2f") for p in points)
            lines.append(f"{label(explain)} detects {rates}: what is not detected is not adapted.")
        return " ".join(lines)

    return judge


def rises_and_falls(rows: Rows, method: str, metric: str, by: str) -> str:
    """Say whether a metric falls again at the largest settings, as the paper reports."""
    points = summarise(rows, metric, by).get(method, ())
    if len(points) < 3:
        return ""
    worst, last = max(points, key=lambda p: p.mean), points[-1]
    error = math.hypot(worst.error, last.error)
    found = worst.at != last.at and worst.mean - last.mean > DECIDED * error
    word = "falls again, as in the paper" if found else "does not fall again, unlike the paper"
    return (
        f"{metric_label(metric)} of {label(method)} is largest at {in_words(by, worst.at)} "
        f"({worst.mean:.3g}) and {at(by, last)}: it {word}."
    )


def gain_trend(rows: Rows, method: str, baseline: str, by: str, grows: bool) -> str:
    """Say whether the gain over a baseline grows, or shrinks, from first to last setting."""
    points = summarise(rows, "rmse", by)
    ours = {p.at: p.mean for p in points.get(method, ())}
    gains = {p.at: p.mean / ours[p.at] for p in points.get(baseline, ()) if p.at in ours}
    if len(gains) < 2:
        return ""
    first, *_, last = gains
    agrees = (gains[last] > gains[first]) == grows
    return (
        f"The ratio of the RMSE of {label(baseline)} to that of {label(method)} goes from "
        f"{gains[first]:.2f} at {in_words(by, first)} to {gains[last]:.2f} at "
        f"{in_words(by, last)}; the paper's gain {'grows' if grows else 'shrinks'}: "
        f"{'agrees' if agrees else 'disagrees'}."
    )


def size_and_power(rows: Rows) -> str:
    """Hold the size against the binomial interval of the level; name the power at its ends."""
    parts = []
    clean = select(rows, {"part": "size", "alpha": 0.05})
    for method, (point, *_) in summarise(clean, "detected", "alpha").items():
        held = abs(point.mean - 0.05) <= SIZE_SIGMAS * math.sqrt(0.05 * 0.95 / max(point.count, 1))
        word = "agrees with the level .05" if held else "disagrees with the level .05"
        parts.append(f"{label(method)}: size {point.mean:.3f} on {point.count} datasets, {word}")
    for by in ("epsilon", "delta"):
        for method, points in summarise(select(rows, {"part": by}), "detected", by).items():
            low, high = points[0], points[-1]
            rises = "rises, as in the paper" if high.mean > low.mean else "does not rise"
            ends = f"from {at(by, low, '.2f')} to {at(by, high, '.2f')}"
            parts.append(f"{label(method)}: rejection {rises}, {ends}")
    return "; ".join(parts) + "."


def starts(rows: Rows) -> str:
    """Judge the paper's two observations on starts, and the nearest simulated dataset as one."""
    schemes = select(rows, {"part": "scheme"})
    named = schemes.assign(method=schemes.start)
    several = select(rows, {"part": "restarts"})
    counts = several.initialisations.map(lambda n: "one start" if n == 1 else "ten starts")
    contaminated = (0.1, 0.2, 0.3, 0.4, 0.5)
    several = several.assign(method=counts)
    lines = [
        "The paper: the mean is the better start, ten starts help.",
        sentence(named, Claim("mean", "observed", at=contaminated)),
        sentence(several, Claim("ten starts", "one start", at=contaminated)),
        sentence(named, Claim("nearest", "mean", at=contaminated)),
    ]
    spread = summarise(select(rows, {"part": "spread"}), "spread", "epsilon").get("mds-rf", ())
    if len(spread) > 1:
        rises = "grows, as in the paper" if spread[-1].mean > spread[0].mean else "does not grow"
        ends = ", ".join(at("epsilon", p) for p in (spread[0], spread[-1]))
        lines.append(f"The spread over perturbed starts {rises}: {ends}.")
    return " ".join(lines)


def median_bandwidth(rows: Rows) -> str:
    """Judge whether the median is within a tenth of the best multiple, on the same datasets."""
    lines = []
    for method, own in rows[rows.method.str.startswith("mds")].groupby("method", sort=False):
        errors = own.pivot_table("rmse", PAIR, "bandwidth")
        known = {round(float(b), 9): b for b in errors.columns}
        if 1.0 not in known:
            continue
        means = errors.mean()
        best, median = means.idxmin(), known[1.0]
        excess = errors[median] - 1.1 * errors[best]
        word, verb = "undecided whether", "is"
        if float(excess.mean()) <= 0:
            word, verb = "agrees with", "being"
        elif float(excess.mean()) > DECIDED * float(excess.std()) / len(excess) ** 0.5:
            word, verb = "disagrees with", "being"
        lines.append(
            f"{label(str(method))}: RMSE {means[median]:.3g} at the median, best {means[best]:.3g} "
            f"at {best:g} times it: {word} the median {verb} a reliable choice (within a tenth of "
            "the best)."
        )
    return " ".join(lines)


def linearised(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> Any:
    """Return the values `(B,)` whose mean is the ratio of the means, and its error the ratio's."""
    ratio = first.mean() / second.mean()
    return ratio + (first - ratio * second) / second.mean()


def ratio(rows: pd.DataFrame, first: str, second: str) -> tuple[float, float]:
    """Return the ratio of the RMSE of two methods at one setting, and its standard error."""
    wide = rows.pivot(index=PAIR, columns="method", values="rmse").reindex(columns=[first, second])
    both = wide[np.isfinite(wide).all(axis=1)].groupby("dataset").mean()
    if both.empty:
        return math.nan, math.nan
    values = linearised(both[first].to_numpy(), both[second].to_numpy())
    return float(values.mean()), statistics.standard_error(values)


def relative(rows: pd.DataFrame, first: str, *others: str) -> str:
    """List the RMSE of one method relative to others, by epsilon."""
    sentences = []
    for other in others:
        found = {e: ratio(own, first, other) for e, own in rows.groupby("epsilon")}
        parts = [
            f"{value:.2f} ± {error:.2f} at {in_words('epsilon', e)}"
            for e, (value, error) in found.items()
            if math.isfinite(value)
        ]
        if parts:
            words = f"RMSE of {label(first)} relative to {label(other)}"
            sentences.append(f"{words}: {', '.join(parts)}.")
    return " ".join(sentences)
