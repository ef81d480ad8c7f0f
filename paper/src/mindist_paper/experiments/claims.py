"""Whether rows agree with what the paper says: every word of a verdict is computed.

A claim says that one method has a lower (or equal) metric than another at a setting. It is held
against the mean difference on the same test datasets, with its standard error: beyond two standard
errors it is decided, either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.report.statistics import paired_difference, select, summarise
from mindist_paper.report.style import (
    method_style,
    metric_label,
)
from mindist_paper.report.style import setting as in_words

Rows = Any
DECIDED = 2.0  # standard errors
CLOSE = 0.15  # relative difference up to which two methods "perform similarly"
BELOW, SIMILAR = "below", "similar to"


@dataclass(frozen=True)
class Claim:
    """`first` is below (or similar to) `second`.

    Arguments:
        first: A method.
        second: Another one.
        metric: A column, the smaller the better.
        by: The column of the setting.
        at: Its values; None for all that the rows have.
        relation: "below" or "similar to".
        where: Only rows with these values.
    """

    first: str
    second: str
    metric: str = "rmse"
    by: str = "epsilon"
    at: Sequence[float] | None = None
    relation: str = BELOW
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """What the rows say about a claim at one setting."""

    at: float
    first: float
    second: float
    error: float
    outcome: str  # "agrees", "disagrees" or "undecided"


def findings(rows: Rows, claim: Claim) -> list[Finding]:
    """A finding for each setting at which both methods have rows."""
    chosen = select(rows, claim.where)
    points = summarise(chosen, claim.metric, claim.by)
    if claim.first not in points or claim.second not in points:
        return []
    means = {name: {p.at: p.mean for p in points[name]} for name in (claim.first, claim.second)}
    found = []
    for at in means[claim.first]:
        if at not in means[claim.second] or (claim.at is not None and not _among(at, claim.at)):
            continue
        difference, error = paired_difference(
            chosen, claim.metric, claim.by, at, claim.first, claim.second
        )
        first, second = means[claim.first][at], means[claim.second][at]
        outcome = _outcome(claim.relation, difference, error, second)
        found.append(Finding(at, first, second, error, outcome))
    return found


def _among(at: float, values: Sequence[float]) -> bool:
    return any(math.isclose(at, value, abs_tol=1e-9) for value in values)


def _outcome(relation: str, difference: float, error: float, scale: float) -> str:
    if not math.isfinite(difference) or not math.isfinite(error):
        return "undecided"
    if relation == SIMILAR:
        margin, spread = CLOSE * abs(scale), DECIDED * error
        if abs(difference) + spread <= margin:
            return "agrees"
        return "disagrees" if abs(difference) - spread > margin else "undecided"
    if difference < -DECIDED * error:
        return "agrees"
    return "disagrees" if difference > DECIDED * error else "undecided"


def sentence(rows: Rows, claim: Claim) -> str:
    """A claim with its outcome, setting by setting."""
    found = findings(rows, claim)
    name = f"{label(claim.first)} {claim.relation} {label(claim.second)}"
    if not found:
        return f"Not compared: {name} (no rows of both)."
    parts = []
    for outcome in ("agrees", "disagrees", "undecided"):
        own = [f for f in found if f.outcome == outcome]
        if own:
            numbers = "; ".join(
                f"{in_words(claim.by, f.at)}: {f.first:.3g} against {f.second:.3g}" for f in own
            )
            parts.append(f"{outcome} ({numbers})")
    return f"{name}, {metric_label(claim.metric)}: {', '.join(parts)}."


def headline(rows: Rows, claims: Sequence[Claim]) -> str:
    """How many settings of all claims agree."""
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


def gate(rows: Rows, method: str, by: str, where: Mapping[str, Any]) -> str:
    """The share of test datasets that a method took for misspecified, the usual why."""
    points = summarise(select(rows, where), "detected", by)
    if method not in points:
        return ""
    rates = ", ".join(f"{p.mean:.2f} at {in_words(by, p.at)}" for p in points[method])
    return f"{label(method)} detects {rates}: what is not detected is not adapted."


def label(method: str) -> str:
    """A method's name in sentences."""
    return method_style(method).label


def verdict(
    *claims: Claim,
    explain: str | None = "mds-rf",
) -> Callable[[Rows], str]:
    """A verdict from claims: how many agree, which, what was detected."""
    main = claims[0]

    def judge(rows: Rows) -> str:
        lines = [f"{headline(rows, claims)}.", *(sentence(rows, claim) for claim in claims)]
        if explain is not None:
            lines.append(gate(rows, explain, main.by, main.where))
        return " ".join(line for line in lines if line)

    return judge


__all__ = [
    "BELOW",
    "SIMILAR",
    "Claim",
    "Finding",
    "findings",
    "headline",
    "label",
    "sentence",
    "verdict",
]
