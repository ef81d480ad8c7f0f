r"""Benchmarks of other papers: simulators, summaries, contaminations, and what was published.

Ports from the papers' descriptions, with code of our own (docs/benchmarks.md has the equations and
what differs). Nothing of the default was chosen on them.

The time at which a diffusion of drift v from the middle leaves an interval of width a is that of a
driftless one, kept with probability :math:`e^{-v^2 t / 2}`; which end it reaches does not depend on
when. On :math:`(-1, 1)` the driftless one is still inside at t with probability

.. math:: \tfrac4\pi \textstyle\sum_k \tfrac{(-1)^k}{2k + 1} e^{-(2k + 1)^2 \pi^2 t / 8} .
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist_paper.zoo.cases import Array, Case, Generator, Model, twists
from mindist_paper.zoo.models import LEAST, log_sd, normal, uniform

Cells = Mapping[str, Any]  # what was measured, by case
Measured = Callable[[Cells], dict[str, float]]


@dataclass(frozen=True)
class Benchmark:
    """A model with the protocol and the numbers of the paper that it comes from."""

    model: Model
    source: str
    parameters: tuple[str, ...]
    headline: str = "error"  # what was published, one of `mindist_paper.zoo.run.HEADLINES`
    truth: tuple[float, ...] | None = None  # of all datasets; None draws it from the prior
    # published headlines, by case ("clean" for none) and method
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # other ways to choose observations, from x (N, *event) to a mask (N,)
    rivals: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    # what the oracle asks where all observations are wrong, from x to s
    oracle: Callable[[Tensor], Tensor] | None = None
    # what must hold (issue 19): in words, of which values, from and up to
    claims: Sequence[tuple[str, Measured, float, float]] = ()
    shown: Callable[[Array], Array] = np.asarray  # from theta, as inferred, to what is reported


def ricker(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw counts of a population over 100 generations: log growth rate, scale of the counts."""
    log_rate, scale = theta.T[..., None]
    log_size, series = np.zeros((len(theta), num_obs)), []
    for _ in range(100):
        step = 0.3 * rng.standard_normal(log_size.shape)
        log_size = log_rate + log_size - np.exp(log_size) + step
        series.append(rng.poisson(scale * np.exp(log_size)).astype(np.float32))
    return np.stack(series, -1)


def of_populations(x: Tensor) -> Tensor:
    """Return statistics of each series, averaged over series.

    They are its mean, log(1 + variance), share of zeros and lag-1 autocorrelation.
    """
    mean, variance = x.mean(2), x.var(2, correction=0)
    z = x - mean[..., None]
    lagged = (z[..., 1:] * z[..., :-1]).mean(2) / variance.clamp_min(LEAST)
    return torch.stack([mean, variance.log1p(), (x == 0).to(x).mean(2), lagged], 2).mean(1)


def weibull(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw Weibull times of scale 1, within 1e-30 and 1e30, with a log shape."""
    log = np.log(rng.exponential(size=(len(theta), num_obs, 1))) / np.exp(theta[:, None])
    return np.exp(log.clip(-69, 69))


def signed_logs(x: Tensor) -> Tensor:
    """Return variance, mean and minimum on the scale sign(s) log(1 + |s|)."""
    y = x[..., 0].double()  # variances reach 1e60
    s = torch.stack([y.var(1, correction=0), y.mean(1), y.amin(1)], 1)
    return (s.sign() * s.abs().log1p()).to(x)


def gaussian(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw normal numbers of variance 1, or 2, with a mean."""
    sd = np.sqrt(2) if twist == "variance 2" else 1
    return theta[:, None] + rng.normal(0, sd, (len(theta), num_obs, 1))


def mean_and_variance(x: Tensor) -> Tensor:
    """Return the sample mean and the sample variance."""
    return torch.cat([x.mean(1), x.var(1, correction=0)], 1)


def moving_average(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw a moving average of order 1, or stochastic volatility, as its pairs of neighbours."""
    shape = (len(theta), num_obs + 2)
    y = rng.standard_normal(shape)
    if twist == "stochastic volatility":
        log_variance = -7.36 + 0.36 / np.sqrt(1 - 0.9**2) * rng.standard_normal(len(theta))
        for t, step in enumerate(rng.standard_normal(shape[::-1])):
            log_variance = -0.736 + 0.9 * log_variance + 0.36 * step
            y[:, t] *= np.exp(log_variance / 2)
        y = y[:, 1:]
    else:
        y = y[:, 1:] + theta * y[:, :-1]
    return np.stack([y[:, :-1], y[:, 1:]], -1)


def of_pairs(x: Tensor) -> Tensor:
    """Return the autocovariances of a series about 0 at lags 0 and 1 from pairs of neighbours."""
    return torch.stack([x.square().mean((1, 2)), x.prod(2).mean(1)], 1)


@lru_cache
def exit_times() -> tuple[Array, Array]:
    """Return times, and with which probability a driftless diffusion has left (-1, 1) by then."""
    t, k = np.geomspace(0.01, 30, 4_000), np.arange(60)[:, None]
    terms = (-1.0) ** k / (2 * k + 1) * np.exp(-(((2 * k + 1) * np.pi) ** 2) * t / 8)
    return t, 1 - 4 / np.pi * terms.sum(0)


def diffusion(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw seconds and choices, 0 or 1: drift, distance of the boundaries, time before."""
    drift, width, before = np.broadcast_to(theta.T[..., None], (3, len(theta), num_obs))
    choice = rng.random(drift.shape) < 1 / (1 + np.exp(-drift * width))
    times, (t, left) = np.full(drift.shape, np.nan), exit_times()
    while (missing := np.isnan(times)).any():
        tried = np.interp(rng.random(missing.sum()), left, t) * (width[missing] / 2) ** 2
        kept = rng.random(tried.shape) < np.exp(-(drift[missing] ** 2) * tried / 2)
        times[missing] = np.where(kept, tried, np.nan)
    return np.stack([before + times, choice], -1)


def of_trials(x: Tensor) -> Tensor:
    """Return the share of choices of 1, and mean and log sd of seconds (EZ diffusion)."""
    return torch.cat([x[..., 1:].mean(1), x[..., :1].mean(1), log_sd(x[..., :1])], 1)


def near_median(x: Tensor) -> Tensor:
    """Return which trials are within 2.5 normalised median absolute deviations of the median."""
    off = (x[:, 0] - x[:, 0].median()).abs()
    return off <= 2.5 * 1.4826 * off.median()


def found(what: str, over: str = "", *, clean: bool = False) -> Measured:
    """Return what mindist gave on wrong, or clean, data, by case and parameter.

    It is relative to what another method gave: plain NPE on clean data, others on the same.
    """

    def of(cells: Cells) -> dict[str, float]:
        values: dict[str, float] = {}
        for name in [name for name in cells if (name == "clean") == clean]:
            own = np.ravel(cells[name]["methods"]["mindist"][what])
            if over:
                own = own / cells["clean" if over == "plain" else name]["methods"][over][what]
            values |= {f"{name}, {i}": float(value) for i, value in enumerate(own, 1)}
        return values

    return of


def many_counted(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
    """Replace series by those of another scale of the counts, far outside the prior."""
    return ricker(np.tile((4.0, 100.0), (len(x), 1)), x.shape[1], rng, "")


def guesses(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
    """Replace trials by a uniform time within 5 seconds and either choice."""
    return np.stack([rng.uniform(0, 5, x.shape[:2]), rng.integers(0, 2, x.shape[:2])], -1)


TRIMMED = "trimming at 2.5 MAD"
RICKER = Model(
    *("ricker-series", uniform([2, 0], [8, 20]), ricker, of_populations),
    (Case("scale 100", 0.1, many_counted), Case("scale 100", 0.2, many_counted)),
)
NEGATIVE = Case("N(-1, .2)", 0.05, lambda m, x, theta, rng: rng.normal(-1, 0.2, x.shape))
WEIBULL = Model("weibull-shape", normal([-0.4], [1.2]), weibull, signed_logs, (NEGATIVE,), 200)
WARD = Model(
    *("gaussian-variance", normal([0], [5]), gaussian, mean_and_variance, twists("variance 2"))
)
WIDER = Case("variance 7", 0.2, lambda m, x, t, rng: t[:, None] + rng.normal(0, 7**0.5, x.shape))
KELLY = Model("contaminated-normal", normal([0], [10]), gaussian, mean_and_variance, (WIDER,))
VOLATILE = twists("stochastic volatility")
PAIRS = Model("moving-average", uniform([-1], [1]), moving_average, of_pairs, VOLATILE, 99)
DIFFUSION = Model(
    *("diffusion", uniform([0.5, 0.8, 0.15], [3, 2, 0.5]), diffusion, of_trials),
    (Case("uniform", 0.05, guesses), Case("uniform", 0.1, guesses)),
    200,
)
BENCHMARKS = {
    "ricker": Benchmark(
        *(RICKER, "Huang et al. 2023, table 1", ("log r", "scale"), "over draws", (4, 10)),
        published={
            "clean": {"NPE": "2.16", "RNPE": "3.27", "NPE-RS": "2.17"},
            "scale 100, 0.1": {"NPE": "7.86", "RNPE": "5.51", "NPE-RS": "2.19"},
            "scale 100, 0.2": {"NPE": "11.25", "RNPE": "7.14", "NPE-RS": "4.67"},
        },
        claims=(
            ("clean at most 1.02 of plain NPE", found("over draws", "plain", clean=True), 0, 1.02),
            ("wrong at most 1.15 of it", found("over draws", "plain"), 0, 1.15),
            ("contaminants flagged at least .95", found("flagged"), 0.95, 1),
        ),
    ),
    "weibull": Benchmark(
        *(WEIBULL, "Kelly et al. 2026, PRNPE", ("k",), "quantiles", (float(np.log(0.8)),)),
        published={
            "N(-1, .2), 0.05": {
                "NPE": "0 / 0 / 0",
                "RNPE": "1.03 / 1.58 / 3.38",
                "PRNPE": ".68 / .76 / .86",
            }
        },
        claims=(
            ("median within 5% of .8", found("median"), 0.76, 0.84),
            ("90% intervals cover .80 to .97", found("covers"), 0.8, 0.97),
        ),
        shown=np.exp,
    ),
    "ward-gaussian": Benchmark(
        *(WARD, "Ward et al. 2022", ("mean",), "squared"),
        published={"variance 2, 1": {"NPE": ".160", "NNPE": ".038", "RNPE": ".024"}},
        oracle=lambda x: torch.cat([x.mean(1), torch.ones_like(x[:, 0])], 1),  # the model's
        claims=(
            ("squared error at most .024", found("squared"), 0, 0.024),
            ("90% intervals cover .85 to .95", found("covers"), 0.85, 0.95),
        ),
    ),
    "drift-diffusion": Benchmark(
        *(DIFFUSION, "rivals computed here", ("v", "a", "t0")),
        rivals={TRIMMED: near_median},
        claims=(
            ("at most 1.5 of the oracle", found("error", "oracle"), 0, 1.5),
            ("better than trimming", found("error", TRIMMED), 0, 1),
            ("90% intervals cover at least .80", found("covers"), 0.8, 1),
        ),
    ),
    "contaminated-normal": Benchmark(KELLY, "Kelly et al. 2024, RSNL", ("mean",), truth=(1,)),
    "moving-average": Benchmark(PAIRS, "Kelly et al. 2024, RSNL", ("theta",), truth=(0,)),
}
