r"""Theorems 4.1 (robustness) and 4.2 (consistency), checked numerically on the Gaussian task.

Given the sample mean s of N observations, one of them is :math:`\mathcal{N}_d(s, v I)`, :math:`v =
1 - 1/N`. With bandwidth :math:`\sigma`, a target :math:`Q = \sum_i w_i \mathcal{N}(c_i, \tau_i^2
I)`, :math:`h_i = \sigma^2 + v + \tau_i^2`, :math:`b = \sigma^2 + v` and :math:`a = b + 1`,

.. math::
    \mathrm{MMD}^2(P_{x|s}, Q) = \text{const} - 2 \sum_i w_i g_i(s), \qquad
    g_i(s) = (\sigma^2 / h_i)^{d/2} \exp(-\|s - c_i\|^2 / 2 h_i),

.. math:: \mathrm{IF}(y) = (a/b)^{1 + d/2} (y - \theta_0) e^{-\|y - \theta_0\|^2 / 2b}, \qquad
    N \operatorname{Var}(s^\star_j) \to \left(\frac{(b + 1)^2}{b (b + 2)}\right)^{1 + d/2}

for :math:`Q = \mathcal{N}(\theta_0, I)`. The KL divergence of posteriors over a fixed small epsilon
is bounded in the outlier y for :math:`s^\star`, and grows as :math:`|y|^2` for the mean; for Q half
at :math:`m e_1` and half at :math:`-m e_1` with :math:`m = \sqrt a` the Hessian is singular.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mindist.adaptation.search import Problem, Search, search
from mindist.features import FourierFeatures
from mindist.minimum_distance import MinimumDistance
from mindist.tasks import GaussianTask
from mindist_paper.baselines.mds import unfitted
from mindist_paper.baselines.method import Options
from mindist_paper.evaluation.metrics import rmse
from mindist_paper.experiments.claims import label
from mindist_paper.experiments.experiment import Experiment, panels
from mindist_paper.experiments.profiles import THEOREM_SIZES, TheoremSizes
from mindist_paper.report.statistics import Panel

MAX_ITERATIONS, NEWTON_STEPS = 100, 50
TOLERANCE, ROUNDING = 1e-12, 1e-15
# The median distance of two pooled observations of the 2-d task: Rayleigh with scale 2
MEDIAN_BANDWIDTH = 2 * math.sqrt(2 * math.log(2))
OUTLIERS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0)
SLOPE_EPSILON = 0.05  # small, and far below the breakdown of the minimum
GAPS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
GAP_EPSILONS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
GAP_OUTLIERS = (1.0, 2.0, 3.0, 4.0, 6.0)
OUTLIER, GAP = {"part": "outlier"}, {"part": "gap"}  # the rows of a panel
CURVED = {**OUTLIER, "method": ["mds-exact", "mds", "mds-rf"]}
NORMAL_90 = 1.6448536269514722
HALF_TOLERANCE = 0.05  # of the exponent of N, for a few hundred datasets
FLOOR = 1e-3  # of slopes in the figure: the exact one falls to 1e-162


@dataclass(frozen=True)
class Mixture:
    """A target Q: Gaussians with spherical covariances, or points."""

    weights: Tensor  # `(m,)`, of sum 1
    centres: Tensor  # `(m, d)`
    variances: Tensor  # `(m,)`; 0 for a point

    @classmethod
    def of(cls, *parts: tuple[float, tuple[float, ...], float]) -> Mixture:
        """Build from triples of a weight, a centre and a variance."""
        weights, centres, variances = zip(*parts, strict=True)
        return cls(*(torch.tensor(t, dtype=torch.float64) for t in (weights, centres, variances)))

    @property
    def mean(self) -> Tensor:
        """The mean `(d,)`: the summary that is not robust."""
        return self.weights @ self.centres

    def contaminated(self, epsilon: float, y: tuple[float, ...]) -> Mixture:
        """Return (1 - epsilon) Q + epsilon times the point mass at y."""
        point = Mixture.of((epsilon, y, 0.0))
        weights = torch.cat([(1 - epsilon) * self.weights, point.weights])
        centres = torch.cat([self.centres, point.centres])
        return Mixture(weights, centres, torch.cat([self.variances, point.variances]))


CLEAN = Mixture.of((1.0, (0.0, 0.0), 1.0))


@dataclass(frozen=True)
class GaussianTheory:
    """The exact objective, its Hessian and its minimum."""

    bandwidth: float = MEDIAN_BANDWIDTH  # Bandwidth of the kernel
    num_obs: int = 100  # N
    dim: int = 2  # d

    @property
    def narrow(self) -> float:
        """b = sigma^2 + v: the squared width of the pull of a single point."""
        return self.bandwidth**2 + 1 - 1 / self.num_obs

    def distance(self, s: Tensor, target: Mixture) -> Tensor:
        """Return the squared MMD `(B,)` between the model at summaries `(B, d)` and the target."""
        w, c, tau2 = target.weights, target.centres, target.variances
        own = self._kernel(torch.zeros(()), torch.tensor(2 * (1 - 1 / self.num_obs)))
        within = self._kernel(torch.cdist(c, c).square(), tau2[:, None] + tau2)
        return own - 2 * self._pull(s, target).sum(-1) + w @ within @ w

    def gradient(self, s: Tensor, target: Mixture) -> Tensor:
        """Return the gradient `(d,)` of the squared MMD at a summary `(d,)`."""
        pull = self._pull(s[None], target)[0] / (self.narrow + target.variances)
        return 2 * (pull[:, None] * (s - target.centres)).sum(0)

    def hessian(self, s: Tensor, target: Mixture) -> Tensor:
        """Return the Hessian `(d, d)` of the squared MMD at a summary `(d,)`."""
        h = self.narrow + target.variances
        pull = self._pull(s[None], target)[0] / h
        u = s - target.centres
        eye = torch.eye(len(s), dtype=s.dtype)
        spread = u[:, :, None] * u[:, None, :] / h[:, None, None]
        return 2 * (pull[:, None, None] * (eye - spread)).sum(0)

    def minimum(self, target: Mixture) -> Tensor:
        """Return the minimum-distance summary `(d,)`: mean shift from each centre and the mean."""
        h = self.narrow + target.variances

        def shift(s: Tensor) -> Tensor:
            share = self._pull(s, target) / h
            return share @ target.centres / share.sum(-1, keepdim=True)

        ends = _fixed_point(shift, torch.cat([target.centres, target.mean[None]]))
        ends = torch.stack([self._newton(one, target) for one in ends])
        reached = self.distance(ends, target)
        slope = torch.stack([self.gradient(one, target).norm() for one in ends])
        # Of ends as low as the lowest, up to rounding errors, the one that has converged best.
        return ends[torch.where(reached <= reached.min() + ROUNDING, slope, math.inf).argmin()]

    def _newton(self, s: Tensor, target: Mixture) -> Tensor:
        """Polish: where the Hessian nearly vanishes, mean shift takes thousands of steps."""
        gradient = self.gradient(s, target)
        for _ in range(NEWTON_STEPS):
            hessian = self.hessian(s, target)
            if float(torch.linalg.eigvalsh(hessian)[0]) <= 0:
                break
            moved = s - torch.linalg.solve(hessian, gradient)
            after = self.gradient(moved, target)
            if not after.norm() < gradient.norm():
                break
            s, gradient = moved, after
        return s

    def influence(self, y: Tensor) -> Tensor:
        """Return IF(y) `(*, d)` of the minimum-distance summary at N(0, I)."""
        b = self.narrow
        factor: float = ((b + 1) / b) ** (1 + self.dim / 2)
        return factor * y * torch.exp(-y.square().sum(-1, keepdim=True) / (2 * b))

    @property
    def largest_influence(self) -> float:
        """The largest norm of IF(y), reached at distance sqrt(b)."""
        b = self.narrow
        return float(((b + 1) / b) ** (1 + self.dim / 2) * math.sqrt(b / math.e))

    @property
    def variance_ratio(self) -> float:
        """The variance of s* on clean data over that of the sample mean, for large N."""
        b = self.bandwidth**2 + 1
        return float(((b + 1) ** 2 / (b * (b + 2))) ** (1 + self.dim / 2))

    def divergence(self, s: Tensor, t: Tensor) -> float:
        r"""Return KL of the posteriors at two summaries: :math:`N^2 \|s - t\|^2 / 2(N + 1)`."""
        return float((s - t).square().sum()) * self.num_obs**2 / (2 * (self.num_obs + 1))

    def summaries(self, x: Tensor) -> Tensor:
        """Return minimum-distance summaries `(B, d)` of datasets `(B, N, d)`, by mean shift."""
        x = x.double()

        def shift(s: Tensor) -> Tensor:
            share = torch.exp(-(x - s[:, None]).square().sum(-1) / (2 * self.narrow))
            return (share[..., None] * x).sum(1) / share.sum(1, keepdim=True)

        return _fixed_point(shift, x.mean(1))

    def _kernel(self, squared: Tensor, variance: Tensor) -> Tensor:
        """Return E k(x, y) for Gaussians, from squared distance of means, sum of variances."""
        h = self.bandwidth**2 + variance
        return (self.bandwidth**2 / h) ** (self.dim / 2) * torch.exp(-squared / (2 * h))

    def _pull(self, s: Tensor, target: Mixture) -> Tensor:
        """Return w_i g_i(s), `(B, m)`."""
        squared = (s[:, None] - target.centres).square().sum(-1)
        v = 1 - 1 / self.num_obs
        return target.weights * self._kernel(squared, v + target.variances)


def _fixed_point(step: Callable[[Tensor], Tensor], s: Tensor) -> Tensor:
    for _ in range(MAX_ITERATIONS):
        before, s = s, step(s)
        if bool((s - before).abs().max() < TOLERANCE):
            break
    return s


def fit(
    variant: str, simulations: int, num_obs: int, seed: int, *, raw: bool = False
) -> MinimumDistance:
    """Fit an estimator of the package to simulations of the Gaussian task."""
    task, generator = GaussianTask(num_obs=num_obs), torch.Generator().manual_seed(seed)
    theta = task.sample_prior(simulations, generator)
    options = {"representation": "raw"} if raw and variant == "default" else {}
    mds = unfitted(variant, task.summary, Options(seed=seed, estimator=options))
    return mds.fit(task.simulate(theta, generator=generator))


def embed(target: Mixture, features: FourierFeatures) -> Tensor:
    """Return the exact mean embedding `(K,)` of a mixture."""
    phase = target.centres @ features.weight
    damping = torch.exp(-target.variances[:, None] * features.weight.square().sum(0) / 2)
    waves = torch.cat([phase.cos() * damping, phase.sin() * damping], 1)
    return target.weights @ waves * math.sqrt(2 / features.num_features)


def minimum(mds: MinimumDistance, target: Mixture) -> tuple[Tensor, Tensor]:
    """Return the fitted minimum-distance summary `(d,)` of a target, and the Hessian there."""
    fitted = mds.fitted_
    z_bar = embed(target, fitted.embedding.features)[None]
    plain = Search(starts=("observed", "nearest"), stay=0)
    # The theorems are about the minimum of the distance itself.
    problem = Problem(target.mean[None, None], target.mean[None], z_bar)
    found = search(fitted.wide, plain, problem, torch.Generator().manual_seed(0)).s_star

    def distance(s: Tensor) -> Tensor:
        return (fitted.wide.decoder(s[None]) - z_bar).square().sum()

    hessian: Any = torch.autograd.functional.hessian(distance, found[0])
    return found[0], hessian


def conditioning(hessian: Tensor) -> dict[str, float]:
    """Return the smallest eigenvalue of a Hessian, and its condition number."""
    low, high = torch.linalg.eigvalsh(hessian)[[0, -1]].tolist()
    singular = low <= 1e-12 * abs(high)
    return {"curvature": low, "condition": math.inf if singular else high / low}


def robustness_rows(sizes: TheoremSizes, num_seeds: int = 1) -> pd.DataFrame:
    """Return slopes of KL in epsilon, by outlier position and by conditioning of the Hessian."""
    theory = GaussianTheory()

    def exact(target: Mixture) -> tuple[Tensor, Tensor]:
        s = theory.minimum(target)
        return s, theory.hessian(s, target)

    def mean(target: Mixture) -> tuple[Tensor, Tensor]:
        return target.mean, 2 * torch.eye(2, dtype=torch.float64)  # of the squared error

    rows = [*_by_outlier("sample-mean", mean), *_by_outlier("mds-exact", exact), *_gaps()]
    for seed in range(num_seeds):
        for method, variant in {"mds": "default", "mds-rf": "rf"}.items():
            mds = fit(variant, sizes.simulations, 100, seed, raw=True)
            rows += _by_outlier(method, partial(minimum, mds), seed)
    return pd.DataFrame(rows)


def _by_outlier(method: str, minimiser: Any, seed: int = 0) -> Iterator[dict[str, Any]]:
    theory = GaussianTheory()
    s_clean, _ = minimiser(CLEAN)
    for outlier in OUTLIERS:
        s, hessian = minimiser(CLEAN.contaminated(SLOPE_EPSILON, (outlier, 0.0)))
        what = {**OUTLIER, "method": method, "gap": 0.0, "seed": seed, "dataset": 0}
        where = {"outlier": outlier, "epsilon": SLOPE_EPSILON}
        slope = theory.divergence(s_clean, s) / SLOPE_EPSILON
        yield {**what, **where, "kl_slope": slope, **conditioning(hessian)}


def _gaps() -> Iterator[dict[str, Any]]:
    theory = GaussianTheory()
    for gap in GAPS:
        m = gap * math.sqrt(theory.narrow + 1)
        target = Mixture.of((0.5, (m, 0.0), 1.0), (0.5, (-m, 0.0), 1.0))
        s = theory.minimum(target)
        shape = conditioning(theory.hessian(s, target))
        for epsilon in GAP_EPSILONS:
            moved = (target.contaminated(epsilon, (y, 0.0)) for y in GAP_OUTLIERS)
            slopes = [theory.divergence(s, theory.minimum(t)) / epsilon for t in moved]
            what = {**GAP, "method": "mds-exact", "gap": gap, "seed": 0, "dataset": 0, **shape}
            where = {"outlier": GAP_OUTLIERS[np.argmax(slopes)], "small_epsilon": epsilon}
            yield {**what, **where, "epsilon": epsilon, "kl_slope": max(slopes)}


def consistency_rows(sizes: TheoremSizes, num_seeds: int = 1) -> pd.DataFrame:
    """Return error, spread and coverage of the posterior at s* on clean data, by N."""
    parts = []
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
                posterior = task.posterior_given_mean(s)
                mean, sd = posterior.mean, posterior.stddev
                inside = (theta.double() - mean).abs() <= NORMAL_90 * sd
                rows = pd.DataFrame({"rmse": rmse(mean, theta.double()).tolist()})
                rows = rows.assign(posterior_sd=sd.mean(1).tolist())
                rows = rows.assign(coverage_90=inside.double().mean(1).tolist())
                what = {"method": method, "num_obs": num_obs, "epsilon": 0.0, "seed": seed}
                parts.append(rows.assign(dataset=rows.index, **what))
    return pd.concat(parts, ignore_index=True)


def log_log_slope(x: Any, y: Any) -> float:
    """Return the least-squares slope of log y on log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def judge_robustness(rows: pd.DataFrame) -> str:
    """Say that slopes are bounded for MDS, unbounded for the mean, void at a singular Hessian."""
    lines = []
    for method, own in rows[rows.part == "outlier"].groupby("method"):
        slopes = own.groupby("outlier").kl_slope.mean()
        last, largest = float(slopes.iloc[-1]), float(slopes.max())
        bounded = slopes.idxmax() < slopes.index[-1] and last < 0.5 * largest
        where = f"largest {largest:.3g} at |y| = {slopes.idxmax():g}, {last:.3g} at 50"
        if method == "sample-mean":
            word = "does not grow with |y|" if bounded else "grows with |y|, as it must"
        else:
            word = "bounded, as the theorem says" if bounded else "not bounded, unlike the theorem"
            where += f"; condition number of the Hessian at most {own.condition.max():.2f}"
        lines.append(f"{label(str(method))}: slope {word}: {where}.")
    theory = GaussianTheory()
    bound = theory.num_obs**2 / (2 * (theory.num_obs + 1)) * SLOPE_EPSILON
    lines.append(f"To first order the bound is {bound * theory.largest_influence**2:.3g}.")
    for gap, own in rows[(rows.part == "gap") & np.isinf(rows.condition)].groupby("gap"):
        own = own.sort_values("epsilon")
        small, big = own.iloc[0], own.iloc[-1]
        grows = small.kl_slope > big.kl_slope
        lines.append(
            f"At gap {gap:g} the Hessian is singular and the slope "
            f"{'grows without bound' if grows else 'stays bounded'} as epsilon falls to "
            f"{small.epsilon:g} ({big.kl_slope:.3g} to {small.kl_slope:.3g}, like epsilon^"
            f"{log_log_slope(own.epsilon, own.kl_slope):.2f}): the bound "
            f"{'does not hold' if grows else 'holds'} there."
        )
    return " ".join(lines)


def judge_consistency(rows: pd.DataFrame) -> str:
    """Say how the error falls with N, and the coverage at the largest N."""
    lines = []
    for method, own in rows.groupby("method"):
        mean = own.groupby("num_obs").rmse.mean()
        if len(mean) > 1:
            slope, largest = log_log_slope(mean.index, mean), mean.index[-1]
            word = "agrees" if abs(slope + 0.5) < HALF_TOLERANCE else "disagrees"
            coverage = own[own.num_obs == largest].coverage_90.mean()
            lines.append(
                f"{label(str(method))}: RMSE falls as N^{slope:.2f} ({word} with -1/2), coverage "
                f"of 90% intervals {coverage:.2f} at N = {largest}."
            )
    ratio = GaussianTheory().variance_ratio
    error = 100 * (math.sqrt(ratio) - 1)
    words = f"In theory the variance of s* is {ratio:.3f} times that of the sample mean"
    return " ".join([*lines, f"{words}, so that its error is {error:.1f}% larger."])


ENTRIES = (
    Experiment(
        name="robustness",
        title="Theorem 4.1: how far one outlier moves the posterior",
        shows="slope of KL in epsilon by outlier; where a singular Hessian voids the bound",
        source="Theorem 4.1, appendix Assumptions",
        own_rows=lambda profile, seeds: robustness_rows(THEOREM_SIZES[profile], seeds),
        prepare=lambda rows: rows.assign(kl_slope=rows.kl_slope.clip(lower=FLOOR)),
        panels=[
            Panel("kl_slope", "outlier", "KL / ε at ε = 0.05, well specified", OUTLIER, True),
            Panel(
                "kl_slope", "small_epsilon", "Largest KL / ε, data in two groups", GAP, True, "gap"
            ),
            Panel("condition", "outlier", "Condition number of the Hessian at s*", CURVED),
        ],
        notes=[
            "The derivative of KL at epsilon = 0 is 0 for every differentiable summary, the mean "
            "too; what tells them apart is the slope KL / epsilon at a fixed small epsilon, over "
            f"all positions. Slopes below {FLOOR:g} are shown as {FLOOR:g}.",
            "The gap is half the distance of two equal groups of data, in units of the distance at "
            "which the Hessian becomes singular. The paper's condition averages the Hessian over "
            "the model, not over the data, and so does not see this.",
        ],
        minutes=(0.1, 0.2, 1),
        verdict=judge_robustness,
    ),
    Experiment(
        name="consistency",
        title="Theorem 4.2: the posterior at s* concentrates",
        shows="error, spread and coverage of the exact posterior at s* on clean data, by N",
        source="Theorem 4.2",
        own_rows=lambda profile, seeds: consistency_rows(THEOREM_SIZES[profile], seeds),
        panels=[
            *panels(["rmse", "posterior_sd"], "num_obs", log=True),
            Panel("coverage_90", "num_obs"),
        ],
        minutes=(0.1, 0.1, 1),
        verdict=judge_consistency,
    ),
)
