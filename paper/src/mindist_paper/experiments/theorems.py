r"""Numerical checks of Theorems 4.1 (robustness) and 4.2 (consistency), on the Gaussian task.

**Robustness.** With :math:`Q_{\epsilon, y} = (1 - \epsilon) Q + \epsilon \delta_y` the theorem
bounds, over all outlier positions y, the slope in epsilon of

.. math:: \mathrm{KL}_\epsilon(y) = \mathrm{KL}[P_{\theta | s^\star(Q)},
    P_{\theta | s^\star(Q_{\epsilon, y})}] .

Two things have to be said about it.

1. KL is smooth and smallest where its arguments agree, so its derivative at epsilon = 0 is 0
   wherever :math:`s^\star` is differentiable, *for the sample mean too*: there
   :math:`\mathrm{KL}_\epsilon = \tfrac{N^2}{2 (N + 1)} \epsilon^2 |y|^2`. What tells a robust
   summary from another is whether the slope :math:`\mathrm{KL}_\epsilon(y) / \epsilon` at a fixed
   small epsilon > 0 is bounded over y. It is for :math:`s^\star` (about
   :math:`\tfrac{N^2}{2 (N + 1)} \epsilon \|\mathrm{IF}(y)\|^2`, see `gaussian_theory`), and
   grows as :math:`|y|^2` for the mean. So this slope is what the rows hold.
2. The theorem wants a non-singular M, which it defines by an average over the *model*
   :math:`P_{x | s^\star}`. The derivative of :math:`s^\star` is governed by the Hessian of the
   objective at the *target* Q; the two agree only if Q is the model. For Q half
   :math:`\mathcal{N}(m e_1, I)` and half :math:`\mathcal{N}(-m e_1, I)`, :math:`s^\star = 0` for
   :math:`m \leq \sqrt a`, M is the same multiple of the identity for every m, and

   .. math:: \mathrm{cond}\, H = \frac{1}{1 - m^2 / a} .

   At :math:`m = \sqrt a` the Hessian is singular, :math:`s^\star` moves by
   :math:`\epsilon^{1/3}`, and the slope grows without bound, as :math:`\epsilon^{-1/3}`: the
   bound does not hold there. Rows of part "gap" show it, with the conditioning of H beside it.

**Consistency.** The posterior at :math:`s^\star_N` concentrates as N grows: its error falls as
:math:`N^{-1/2}`, with the variance that `GaussianTheory.variance_ratio` predicts.

The exact minimum ("mds-exact") is compared with the estimators of the package, which know the
model by simulations only; the embedding of Q in their features is exact, so that nothing is random
but the fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mindist.adaptation import Problem, Search, search
from mindist.features import FourierFeatures
from mindist.minimum_distance import MinimumDistance
from mindist.tasks import GaussianTask
from mindist_paper.baselines.mds import unfitted
from mindist_paper.baselines.method import Options
from mindist_paper.evaluation.metrics import rmse
from mindist_paper.experiments.gaussian_theory import MEDIAN_BANDWIDTH, GaussianTheory, Mixture

OUTLIERS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0)
SLOPE_EPSILON = 0.05  # small, and far below the breakdown of the minimum
GAPS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
GAP_EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
GAP_OUTLIERS = (1.0, 2.0, 3.0, 4.0, 6.0)
VARIANTS = {"mds": "default", "mds-rf": "rf"}
NORMAL_90 = 1.6448536269514722


@dataclass(frozen=True)
class TheoremSizes:
    """How much to simulate.

    Arguments:
        simulations: M of the fitted estimators.
        datasets: For consistency, how many test datasets for each N.
        sizes: For consistency, the values of N.
        fitted_sizes: Those of them at which the estimator is fitted as well.
    """

    simulations: int
    datasets: int
    sizes: tuple[int, ...]
    fitted_sizes: tuple[int, ...]


def fit(
    variant: str, simulations: int, num_obs: int, seed: int, *, raw: bool = False
) -> MinimumDistance:
    """An estimator of the package fitted to simulations of the Gaussian task.

    Arguments:
        variant: "default", or one of the paper's.
        simulations: M.
        num_obs: N.
        seed: Of simulations and fit.
        raw: Whether the default's kernel sees observations as they are, in which alone the
            embedding of a mixture is known (`embed`); the paper's always does.
    """
    task, generator = GaussianTask(num_obs=num_obs), torch.Generator().manual_seed(seed)
    theta = task.sample_prior(simulations, generator)
    options = {"representation": "raw"} if raw and variant == "default" else {}
    mds = unfitted(variant, task.summary, Options(seed=seed, estimator=options))
    return mds.fit(task.simulate(theta, generator=generator))


def embed(target: Mixture, features: FourierFeatures) -> Tensor:
    r"""The exact mean embedding `(K,)` of a mixture.

    :math:`\mathbb{E} \cos(\omega^\top x) = \cos(\omega^\top c) e^{-\tau^2 |\omega|^2 / 2}` for
    :math:`x \sim \mathcal{N}(c, \tau^2 I)`, and the same for sines.
    """
    phase = target.centres @ features.weight
    damping = torch.exp(-target.variances[:, None] * features.weight.square().sum(0) / 2)
    waves = torch.cat([phase.cos() * damping, phase.sin() * damping], 1)
    return target.weights @ waves * math.sqrt(2 / features.num_features)


def minimum(mds: MinimumDistance, target: Mixture) -> tuple[Tensor, Tensor]:
    """The fitted estimator's minimum-distance summary `(d,)` of a target, and its Hessian."""
    fitted = mds.fitted_
    z_bar = embed(target, fitted.features)[None]
    plain = Search(starts=("observed", "nearest"), stay=0, reweight=0)
    # The theorems are about the minimum of the distance itself.
    problem = Problem(target.mean[None, None], target.mean[None], z_bar)
    found = search(fitted.wide, plain, problem, torch.Generator().manual_seed(0)).s_star

    def distance(s: Tensor) -> Tensor:
        return (fitted.decoder(s[None]) - z_bar).square().sum()

    hessian: Any = torch.autograd.functional.hessian(distance, found[0])
    return found[0], hessian


def conditioning(hessian: Tensor) -> dict[str, float]:
    """The smallest eigenvalue of a Hessian, and its condition number (infinite if singular)."""
    low, high = torch.linalg.eigvalsh(hessian)[[0, -1]].tolist()
    singular = low <= 1e-12 * abs(high)
    return {"curvature": low, "condition": math.inf if singular else high / low}


def robustness_rows(sizes: TheoremSizes, num_seeds: int = 1) -> pd.DataFrame:
    """Slopes of KL in epsilon, by outlier position and by conditioning of the Hessian."""
    rows = [*_mean_and_exact(), *_gaps()]
    for seed in range(num_seeds):
        for method, variant in VARIANTS.items():
            mds = fit(variant, sizes.simulations, 100, seed, raw=True)
            rows += _by_outlier(method, partial(minimum, mds), seed)
    return pd.DataFrame(rows)


def _mean_and_exact() -> list[dict[str, Any]]:
    theory = GaussianTheory()

    def exact(target: Mixture) -> tuple[Tensor, Tensor]:
        s = theory.minimum(target)
        return s, theory.hessian(s, target)

    def mean(target: Mixture) -> tuple[Tensor, Tensor]:
        return target.mean, 2 * torch.eye(2, dtype=torch.float64)  # of the squared error

    return [*_by_outlier("sample-mean", mean, 0), *_by_outlier("mds-exact", exact, 0)]


def _by_outlier(method: str, minimiser: Any, seed: int) -> Iterator[dict[str, Any]]:
    theory, clean = GaussianTheory(), Mixture.of((1.0, (0.0, 0.0), 1.0))
    s_clean, _ = minimiser(clean)
    for outlier in OUTLIERS:
        s, hessian = minimiser(clean.contaminated(SLOPE_EPSILON, (outlier, 0.0)))
        yield {
            "part": "outlier",
            "method": method,
            "outlier": outlier,
            "epsilon": SLOPE_EPSILON,
            "gap": 0.0,
            "kl_slope": theory.divergence(s_clean, s) / SLOPE_EPSILON,
            "seed": seed,
            "dataset": 0,
            **conditioning(hessian),
        }


def _gaps() -> Iterator[dict[str, Any]]:
    theory = GaussianTheory()
    a = theory.narrow + 1
    for gap in GAPS:
        m = gap * math.sqrt(a)
        target = Mixture.of((0.5, (m, 0.0), 1.0), (0.5, (-m, 0.0), 1.0))
        s = theory.minimum(target)
        shape = conditioning(theory.hessian(s, target))
        for epsilon in GAP_EPSILONS:
            moved = (target.contaminated(epsilon, (y, 0.0)) for y in GAP_OUTLIERS)
            slopes = [theory.divergence(s, theory.minimum(t)) / epsilon for t in moved]
            yield {
                "part": "gap",
                "method": "mds-exact",
                "outlier": GAP_OUTLIERS[slopes.index(max(slopes))],
                "epsilon": epsilon,
                "small_epsilon": epsilon,
                "gap": gap,
                "kl_slope": max(slopes),
                "seed": 0,
                "dataset": 0,
                **shape,
            }


def consistency_rows(sizes: TheoremSizes, num_seeds: int = 1) -> pd.DataFrame:
    """Error, spread and coverage of the posterior at s* on clean data, by N."""
    rows: list[dict[str, Any]] = []
    for seed in range(num_seeds):
        for num_obs in sizes.sizes:
            task, generator = GaussianTask(num_obs=num_obs), torch.Generator().manual_seed(seed)
            theta = task.sample_prior(sizes.datasets, generator)
            x = task.simulate(theta, generator=generator)
            theory = GaussianTheory(MEDIAN_BANDWIDTH, num_obs)
            summaries = {"oracle": x.mean(1).double(), "mds-exact": theory.summaries(x)}
            if num_obs in sizes.fitted_sizes:
                mds = fit("default", sizes.simulations, num_obs, seed)
                # Searched whether detected or not: the theorem is about s*, not about the gate.
                summaries["mds"] = mds.adapt(x, force=True).s_star.double()
            for method, s in summaries.items():
                rows += _posterior_rows(method, s, theta.double(), num_obs, seed)
    return pd.DataFrame(rows)


def _posterior_rows(
    method: str, s: Tensor, theta: Tensor, num_obs: int, seed: int
) -> Iterator[dict[str, Any]]:
    """One row for each dataset, from the exact posterior at a summary."""
    posterior = GaussianTask(num_obs=num_obs).posterior_given_mean(s)
    mean, sd = posterior.mean, posterior.stddev
    inside = ((theta - mean).abs() <= NORMAL_90 * sd).double().mean(1)
    error = rmse(mean, theta)
    for dataset in range(len(s)):
        yield {
            "method": method,
            "num_obs": num_obs,
            "epsilon": 0.0,
            "rmse": float(error[dataset]),
            "posterior_sd": float(sd[dataset].mean()),
            "coverage_90": float(inside[dataset]),
            "seed": seed,
            "dataset": dataset,
        }


def log_log_slope(x: pd.Series, y: pd.Series) -> float:
    """The least-squares slope of log y on log x.

    Example:
        >>> round(log_log_slope(pd.Series([1.0, 4.0]), pd.Series([3.0, 1.5])), 6)
        -0.5
    """
    u = torch.tensor(x.to_numpy(), dtype=torch.float64).log()
    v = torch.tensor(y.to_numpy(), dtype=torch.float64).log()
    u = u - u.mean()
    return float(u @ v / (u @ u))


__all__ = [
    "TheoremSizes",
    "conditioning",
    "consistency_rows",
    "embed",
    "fit",
    "log_log_slope",
    "minimum",
    "robustness_rows",
]
