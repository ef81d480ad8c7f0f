"""The verdict on a dataset in words, for people who do not know the method."""

from __future__ import annotations

import math

from torch import Tensor

from mindist.adaptation import Status
from mindist.adapting import UNLIKELY
from mindist.report.dataset.material import Draws, Material
from mindist.report.table import mean_and_error

STATISTICS = {
    "distance": "distance of the data from the decoder",
    "scaled wide": "distance of the data, given the summary (wide kernel)",
    "mahalanobis wide": "distance of the data, direction by direction (wide kernel)",
    "scaled local": "distance of the data, given the summary (local kernel)",
    "mahalanobis local": "distance of the data, direction by direction (local kernel)",
    "summary": "distance of the summary from simulated ones",
    "regressed summary": "summary against what the data say of it",
}
"""What the statistics of the test measure."""


def headline(material: Material) -> str:
    """The verdict in one sentence."""
    if material.result.misspecified:
        return "These data do not look like data from the simulator."
    return "Nothing in these data speaks against the simulator."


def number(value: float) -> str:
    """A number with three digits that count.

    Example:
        >>> number(0.000199), number(12.0), number(-1234.5), number(0.05)
        ('0.000199', '12', '−1.23e+03', '0.05')
    """
    return f"{value:.3g}".replace("-", "−", 1) if value < 0 else f"{value:.3g}"


def mean_and_spread(mean: float, spread: float) -> str:
    """A mean and a standard deviation, to the same digits.

    Example:
        >>> mean_and_spread(-1.234, 0.5), mean_and_spread(-0.003, 1.0)
        ('−1.23 ± 0.50', '0.0 ± 1.0')
    """
    text = mean_and_error(mean, spread)
    head, _, rest = text.partition(" ")
    head = head.removeprefix("-") if not head.strip("-0.") else head.replace("-", "−", 1)
    return f"{head} {rest}".strip()


def moments(values: Tensor) -> str:
    """The mean and the standard deviation of samples `(n,)`.

    Example:
        >>> import torch
        >>> moments(torch.tensor([1.0, 3.0])), moments(torch.zeros(0))
        ('2.0 ± 1.4', 'no samples')
    """
    if len(values) < 2:
        return "no samples"
    return mean_and_spread(float(values.double().mean()), float(values.double().std()))


def share(p: float) -> str:
    """A p-value as so many of a round number of datasets.

    Example:
        >>> share(0.37), share(0.04), share(0.0002)
        ('about 37 of 100', 'about 4 of 100', 'about 2 of 10,000')
    """
    total = max(100, 10 ** math.ceil(-math.log10(p)))
    return f"about {round(p * total):,} of {total:,}"


def p_value_sentences(material: Material) -> str:
    """What the p-value is and what it means."""
    result, alpha = material.result, material.mds.alpha
    p = float(result.p_value)
    first = (
        f"The p-value is {number(p)}: of datasets that come from the simulator itself, {share(p)} "
        "look at least as unlike the others as this one does."
    )
    fitted = material.mds.fitted_
    null = len(fitted.null.noise) if fitted.detector is None else len(fitted.detector.test.null)
    if p <= 1.5 / (null + 1):
        first = (
            f"The p-value is {number(p)}, the smallest that {null:,} simulated datasets can give: "
            "none of them looks as unlike the others as this one does."
        )
    if result.misspecified:
        return (
            f"{first} That is at most {alpha:g}, the level of the test, so the data are called "
            f"misspecified; of good datasets {100 * alpha:g} in 100 are called so by mistake. A "
            "posterior that was trained on such simulations should not be asked about these data "
            "as they are."
        )
    return (
        f"{first} That is above {alpha:g}, the level of the test. It is no proof that the model is "
        "right: what is wrong may be too little to be seen in this many observations, or of a "
        "kind that the test does not see."
    )


def done_sentences(material: Material) -> str:
    """What became of the summary."""
    result = material.result
    if result.status is Status.KEPT_OBSERVED:
        return (
            "No summary was found at which the model fits the data better, so the observed one is "
            "kept. Do not trust the posterior at it: the data differ from the simulations in a way "
            "that no other summary mends."
        )
    if not material.adapted:
        return "Nothing was adapted: the posterior is asked at the observed summary."
    shift = material.shift.abs()
    most = int(shift.argmax())
    last = f" ({result.status.message})" if result.status is Status.MAX_ITERATIONS else ""
    return (
        "The summary was moved to the one at which the model comes nearest to the bulk of the "
        f"data{last}; ask the posterior there. What moved most is {material.summary_names[most]}: "
        f"by {number(float(shift[most]))} standard deviations of simulated summaries, from "
        f"{number(float(result.s_obs[most]))} to {number(float(result.s_star[most]))}."
    )


def outlier_sentences(material: Material) -> str:
    """How many observations are suspicious, and what that means."""
    result = material.result
    found, total = int(result.outliers.sum()), len(result.outliers)
    verb = "is" if found == 1 else "are"
    first = (
        f"{found:,} of {total:,} observations {verb} suspicious"
        if found
        else (f"None of the {total:,} observations is suspicious")
    )
    means = (
        (
            ": the model at the adapted summary rarely or never gives such values. "
            if material.adapted
            else ": the model at the observed summary rarely or never gives such values. "
        )
        if found
        else ". "
    )
    threshold = material.mds.fitted_.score_threshold
    also = "; a suspicious one is also above 2/3" if threshold < UNLIKELY else ""
    return (
        f"{first}{means}An observation's outlier score is between 0 and 1: how much of the density "
        "of the data at that place the model does not account for. In simulated data 1 in 100 "
        f"exceeds {number(threshold)}{also}."
    )


def epsilon_sentence(material: Material) -> str:
    """The estimated contaminated fraction."""
    epsilon, error = float(material.result.epsilon), float(material.result.epsilon_error)
    if not material.adapted:
        return ""
    return (
        f"An estimated {max(epsilon, 0.0):.0%} ± {error:.0%} of the observations do not come from "
        "the model (estimate ± standard error)."
    )


def draws_note(drawn: Draws, where: str, asked: int) -> str:
    """That fewer samples were drawn than asked for, if so."""
    if len(drawn.theta) >= asked:
        return ""
    found = f"only {len(drawn.theta):,}" if len(drawn.theta) else "none"
    return (
        f"Of {asked:,} samples at the {where} summary {found} could be drawn: the others lie "
        "outside the prior, because that summary is far from those that the posterior was trained "
        "on."
    )


__all__ = [
    "STATISTICS",
    "done_sentences",
    "draws_note",
    "epsilon_sentence",
    "headline",
    "mean_and_spread",
    "moments",
    "number",
    "outlier_sentences",
    "p_value_sentences",
]
