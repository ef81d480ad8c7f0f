r"""The Gaussian location model in closed form: what the two theorems say, exactly.

Given the sample mean s of N observations, one of them has the law
:math:`P_{x|s} = \mathcal{N}_d(s, v I)` with :math:`v = 1 - 1/N`, whatever theta is. With the
Gaussian kernel of bandwidth :math:`\sigma` and a target :math:`Q = \sum_i w_i
\mathcal{N}(c_i, \tau_i^2 I)` (a point mass is :math:`\tau = 0`), every integral of the squared MMD
is a Gaussian one. With :math:`h_i = \sigma^2 + v + \tau_i^2` and
:math:`g_i(s) = (\sigma^2 / h_i)^{d/2} \exp(-\|s - c_i\|^2 / 2 h_i)`,

.. math::
    D(s) = \mathrm{MMD}^2(P_{x|s}, Q) = \text{const} - 2 \sum_i w_i g_i(s), \qquad
    H(s) = 2 \sum_i \frac{w_i g_i(s)}{h_i}
    \left(I - \frac{(s - c_i)(s - c_i)^\top}{h_i}\right),

the constant because :math:`\|\mu(s)\|^2` does not depend on s. Where the gradient vanishes,

.. math:: s = \frac{\sum_i w_i g_i(s) c_i / h_i}{\sum_i w_i g_i(s) / h_i} ,

a weighted mean that forgets what is far away; iterating it lowers D at every step (mean shift).

**Influence.** For :math:`Q = P_{x|\theta_0} = \mathcal{N}(\theta_0, I)`, with
:math:`b = \sigma^2 + v` and :math:`a = b + 1`, implicit differentiation at epsilon = 0 gives

.. math:: \mathrm{IF}(y) = (a/b)^{1 + d/2} (y - \theta_0) e^{-\|y - \theta_0\|^2 / 2b},
    \qquad \sup_y \|\mathrm{IF}(y)\| = (a/b)^{1 + d/2} \sqrt{b / e} ,

bounded and redescending, where the sample mean has :math:`y - \theta_0`.

**Efficiency.** On clean data :math:`s^\star` is an M-estimator with
:math:`\psi(u) = u e^{-|u|^2 / 2b}`, so that

.. math:: N \operatorname{Var}(s^\star_j) \to
    \left(\frac{(b + 1)^2}{b (b + 2)}\right)^{1 + d/2} .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ITERATIONS = 100
TOLERANCE = 1e-12
NEWTON_STEPS = 50
ROUNDING = 1e-15
MEDIAN_BANDWIDTH = 2 * math.sqrt(2 * math.log(2))
"""The median distance of two pooled observations of the 2-d task: Rayleigh with scale 2."""


@dataclass(frozen=True)
class Mixture:
    """A target Q: Gaussians with spherical covariances, or points.

    Arguments:
        weights: `(m,)`, of sum 1.
        centres: `(m, d)`.
        variances: `(m,)`; 0 for a point.
    """

    weights: Tensor
    centres: Tensor
    variances: Tensor

    @classmethod
    def of(cls, *parts: tuple[float, tuple[float, ...], float]) -> Mixture:
        """From triples of a weight, a centre and a variance.

        Example:
            >>> Mixture.of((0.9, (0.0, 0.0), 1.0), (0.1, (8.0, 0.0), 0.0)).mean
            tensor([0.8000, 0.0000], dtype=torch.float64)
        """
        weights, centres, variances = zip(*parts, strict=True)
        return cls(*(torch.tensor(t, dtype=torch.float64) for t in (weights, centres, variances)))

    @property
    def mean(self) -> Tensor:
        """The mean `(d,)`: the summary that is not robust."""
        return self.weights @ self.centres

    def contaminated(self, epsilon: float, y: tuple[float, ...]) -> Mixture:
        """(1 - epsilon) Q + epsilon times the point mass at y."""
        point = Mixture.of((epsilon, y, 0.0))
        return Mixture(
            torch.cat([(1 - epsilon) * self.weights, point.weights]),
            torch.cat([self.centres, point.centres]),
            torch.cat([self.variances, point.variances]),
        )


@dataclass(frozen=True)
class GaussianTheory:
    """The exact objective, its Hessian and its minimum.

    Arguments:
        bandwidth: Of the kernel.
        num_obs: N.
        dim: d.
    """

    bandwidth: float = MEDIAN_BANDWIDTH
    num_obs: int = 100
    dim: int = 2

    @property
    def narrow(self) -> float:
        """b = sigma^2 + v: the squared width of the pull of a single point."""
        return self.bandwidth**2 + 1 - 1 / self.num_obs

    def distance(self, s: Tensor, target: Mixture) -> Tensor:
        """The squared MMD `(B,)` between the model at summaries `(B, d)` and the target."""
        w, c, tau2 = target.weights, target.centres, target.variances
        own = self._kernel(torch.zeros(()), torch.tensor(2 * (1 - 1 / self.num_obs)))
        within = self._kernel(torch.cdist(c, c).square(), tau2[:, None] + tau2)
        return own - 2 * self._pull(s, target).sum(-1) + w @ within @ w

    def gradient(self, s: Tensor, target: Mixture) -> Tensor:
        """The gradient `(d,)` of the squared MMD at a summary `(d,)`."""
        pull = self._pull(s[None], target)[0] / (self.narrow + target.variances)
        return 2 * (pull[:, None] * (s - target.centres)).sum(0)

    def hessian(self, s: Tensor, target: Mixture) -> Tensor:
        """The Hessian `(d, d)` of the squared MMD at a summary `(d,)`."""
        h = self.narrow + target.variances
        pull = self._pull(s[None], target)[0] / h
        u = s - target.centres
        eye = torch.eye(len(s), dtype=s.dtype)
        spread = u[:, :, None] * u[:, None, :] / h[:, None, None]
        return 2 * (pull[:, None, None] * (eye - spread)).sum(0)

    def minimum(self, target: Mixture) -> Tensor:
        """The minimum-distance summary `(d,)`: mean shift from each centre and from the mean."""
        s = torch.cat([target.centres, target.mean[None]])
        h = self.narrow + target.variances
        for _ in range(MAX_ITERATIONS):
            share = self._pull(s, target) / h
            moved = share @ target.centres / share.sum(-1, keepdim=True)
            done = bool((moved - s).abs().max() < TOLERANCE)
            s = moved
            if done:
                break
        ends = torch.stack([self._newton(one, target) for one in s])
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
        """IF(y) `(*, d)` of the minimum-distance summary at N(0, I)."""
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
        r"""KL of the posteriors at two summaries: :math:`N^2 \|s - t\|^2 / 2(N + 1)`.

        Both are Gaussian with covariance I/(N + 1) and means N/(N + 1) times s and t.
        """
        return float((s - t).square().sum()) * self.num_obs**2 / (2 * (self.num_obs + 1))

    def summaries(self, x: Tensor) -> Tensor:
        """Minimum-distance summaries `(B, d)` of datasets `(B, N, d)`, by mean shift."""
        x = x.double()
        s = x.mean(1)
        for _ in range(MAX_ITERATIONS):
            squared = (x - s[:, None]).square().sum(-1)
            share = torch.exp(-squared / (2 * self.narrow))
            moved = (share[..., None] * x).sum(1) / share.sum(1, keepdim=True)
            done = bool((moved - s).abs().max() < TOLERANCE)
            s = moved
            if done:
                break
        return s

    def _kernel(self, squared: Tensor, variance: Tensor) -> Tensor:
        """E k(x, y) for Gaussians with squared distance of means and sum of variances given."""
        h = self.bandwidth**2 + variance
        return (self.bandwidth**2 / h) ** (self.dim / 2) * torch.exp(-squared / (2 * h))

    def _pull(self, s: Tensor, target: Mixture) -> Tensor:
        """w_i g_i(s), `(B, m)`."""
        squared = (s[:, None] - target.centres).square().sum(-1)
        v = 1 - 1 / self.num_obs
        return target.weights * self._kernel(squared, v + target.variances)


__all__ = ["MEDIAN_BANDWIDTH", "GaussianTheory", "Mixture"]
