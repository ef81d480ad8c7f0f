r"""How much each observation moves the adapted summary, and how uncertain that summary is.

The adapted summary solves :math:`g(s) = J(s)^\top (\mu(s) - \bar z_w) + \lambda C^{-1}(s - m) = 0`.
Mass :math:`\eta` at an observation x changes :math:`\bar z_w` to
:math:`(1 - \eta) \bar z_w + \eta z(x)`, so that by the implicit function theorem

.. math:: \mathrm{IF}(x) = \frac{d s^\star}{d \eta} = H^{-1} J^\top (z(x) - \bar z_w), \qquad
    H = \frac{\partial g}{\partial s} ,

the quantity of Theorem 4.1 of the paper, bounded in x because the features are. Weights that
follow the summary change it (`Response`). Its second moment over the observations gives the
sandwich covariance of the adapted summary,

.. math:: \widehat{\mathrm{Cov}}(s^\star) =
    \frac{1}{N^2} \sum_n \mathrm{IF}_n\, \mathrm{IF}_n^\top , \qquad
    \mathrm{IF}_n = \frac{w_n}{\bar w} H^{-1} J^\top (z(x_n) - \bar z_w)

at fixed weights with mean :math:`\bar w`.

**Weights that react.** A search with weights ends where :math:`s = s^\star(\bar z_{w(s, P)})`, P
the empirical measure of the data. Mass :math:`\eta` at an observation :math:`x_m` moves that point
directly, through the densities and the mass in the weights, and, because the weights follow the
summary, again by the factor T:

.. math::
    \bar w\, \mathrm{IF}(x_m) = (I - T)^{-1} \Big[ w_m A_m
        + \tfrac1N \sum_n u_n A_n \Big( 1 - \frac{k(x_n, x_m)}{p(x_n)} + \frac{\dot a_m}{a} \Big)
        \Big], \qquad
    T = \frac{1}{\sum_n w_n} \sum_n A_n \, \frac{\partial w_n}{\partial s}^\top ,

with :math:`\bar w` the mean weight, :math:`A_n = H^{-1} J^\top (z(x_n) - \bar z_w)`,
:math:`w = a\, p_s / p`, and :math:`u_n = w_n` where :math:`0 < w_n < 1`, else 0, because a clipped
weight does not react. A mass that counts as 1 does not react either; a fitted one has

.. math:: \frac{\dot a_m}{a} = \frac{p_s(x_m)}{\tfrac1N \sum_n p_s(x_n)} - 1 .

Where T is small, the weights separate two kinds of observations. Where it is near 1, almost any
summary gives weights that confirm it: data that are wider than the model contain many parts that
look like it.

References:
    Hampel, The Influence Curve and its Role in Robust Estimation, JASA 69 (1974).
    Huber, The Behavior of Maximum Likelihood Estimates under Nonstandard Conditions, 1967.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.adaptation.objective import EmbeddingDistance
from mindist.adaptation.search import View
from mindist.adaptation.weights import Observations

STEP = 1e-4  # of the finite differences, in standard deviations of the simulated summaries


@dataclass(frozen=True)
class Response:
    """How the weights of the observations of a batch of datasets react.

    Arguments:
        observations: What the kernels see.
        weight: The weights `(B, N)`.
        free: Those that are not clipped, else 0, `(B, N)`.
        slope: Their derivatives by the summary, `(B, N, d_s)`.
        mass: The relative change of the mass with mass at each observation, `(B, N)`.
    """

    observations: Observations
    weight: Tensor
    free: Tensor
    slope: Tensor
    mass: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, observations: Observations, view: View, s: Tensor, threshold: float) -> Response:
        """At summaries `(B, d_s)`, float64.

        Arguments:
            observations: What the kernels see.
            view: That of the kernel that estimates densities.
            s: The adapted summaries.
            threshold: Above it a mass of the model counts as 1.
        """
        mu, J = view.decode_with_slopes(s, observations.local.dtype)
        fit = observations.fit(mu)
        weight, mass = fit.weight(threshold), fit.used_mass(threshold)
        unclipped = ((weight > 0) & (weight < fit.share)).double() * fit.share
        fitted = ((mass < 1) & (fit.mass == mass)).double()  # neither taken as 1 nor clipped

        by_density = (observations.local @ J.mT).double()
        mu, J = mu.double(), J.double()
        square = mu.square().sum(1, keepdim=True)
        share = fit.share[..., None] / fit.share.sum(1)[:, None, None]
        by_mass = (share * by_density).sum(1) - 2 * fit.mass[:, None] * (J @ mu[..., None]).squeeze(
            -1
        )
        by_mass = fitted[:, None] * by_mass / square / mass[:, None]
        slope = mass[:, None, None] * by_density / fit.own[..., None]
        slope = unclipped[..., None] * (slope + (weight / fit.share)[..., None] * by_mass[:, None])
        mean = (fit.share * fit.density).sum(1, keepdim=True) / fit.share.sum(1, keepdim=True)
        free = torch.where(unclipped > 0, weight, 0.0)
        return cls(observations, weight, free, slope, fitted[:, None] * (fit.density / mean - 1))

    def feedback(self, fixed: Tensor) -> Tensor:
        """T, `(B, d_s, d_s)`, from A, the influences at weights of one, `(B, N, d_s)`."""
        total = self.weight.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return fixed.transpose(1, 2) @ self.slope / total[:, None, None]

    def influence(self, fixed: Tensor) -> Tensor:
        """Influences times the mean weight, `(B, N, d_s)`, from A, those at weights of one."""
        seen, pull = self.observations, self.free[..., None] * fixed
        share = seen.share[..., None]
        num = share.sum(1, keepdim=True)
        lost = share * seen.kernel.through(pull / seen.own[..., None]) / num
        mean = pull.sum(1, keepdim=True) / num
        direct = self.weight[..., None] * fixed - lost + share * (1 + self.mass[..., None]) * mean
        T = self.feedback(fixed)
        identity = torch.eye(fixed.shape[2], dtype=fixed.dtype, device=fixed.device)
        return solve(identity - T, direct.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True)
class Influence:
    """The influence of each observation on the adapted summary.

    Arguments:
        value: IF of each observation, `(B, N, d_s)`: mass 1/N more at one moves the summary by a
            N-th of it.
        covariance: Sandwich covariance of the adapted summary `(B, d_s, d_s)`.
        feedback: The largest absolute eigenvalue of T, `(B,)`: how much of a difference between two
            summaries is left when each is searched for with the weights of the other; 0 for fixed
            weights.

    Example:
        >>> found = Influence(torch.zeros(3, 20, 2), torch.eye(2).expand(3, 2, 2), torch.zeros(3))
        >>> found[torch.tensor([1])].value.shape
        torch.Size([1, 20, 2])
    """

    value: Tensor
    covariance: Tensor
    feedback: Tensor

    def __getitem__(self, index: Tensor) -> Influence:
        """Select datasets."""
        return Influence(self.value[index], self.covariance[index], self.feedback[index])

    def joined(self, other: Influence, order: Tensor) -> Influence:
        """This and another, then in the given order."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Influence(*(torch.cat(pair)[order] for pair in pairs))


@dataclass(frozen=True)
class Derivatives:
    """Derivatives of the decoder's embedding, at one summary of each problem.

    Arguments:
        jacobian: J, `(B, d_s, K)`.
        residual: The embedding less the observed one, `(B, K)`.

    Example:
        >>> at = Derivatives(torch.zeros(3, 2, 16), torch.ones(3, 16))
        >>> (at.jacobian @ at.residual[..., None]).shape  # half the gradient
        torch.Size([3, 2, 1])
    """

    jacobian: Tensor
    residual: Tensor

    @classmethod
    def of(cls, objective: EmbeddingDistance, s: Tensor, mu: Tensor | None = None) -> Derivatives:
        """Differentiate at `(B, d_s)`, problem b at `s[b]`, with the embedding if it is known."""
        decoder = objective.decoder
        mu = decoder(s) if mu is None else mu
        if objective.cosines is not None:
            return cls(objective.cosines.jacobian(s), mu - objective.z_bar)
        slope = decoder.basis_and_jacobian(s)[1]
        return cls(slope.mT @ decoder.weight, mu - objective.z_bar)


def gradient(objective: EmbeddingDistance, s: Tensor) -> Tensor:
    """Return half the gradient of the objective, `(B, d_s)`, problem b at `s[b]`."""
    at = Derivatives.of(objective, s)
    value: Tensor = (at.jacobian @ at.residual[..., None]).squeeze(-1)
    if objective.cloud is None:
        return value
    every = torch.arange(len(s), device=s.device)
    offset = objective.cloud.residual(s, every)[..., None]
    return value + objective.stay * (objective.cloud.whitener.mT @ offset).squeeze(-1)


def hessian(
    objective: EmbeddingDistance, s: Tensor, scale: Tensor, at: Derivatives | None = None
) -> Tensor:
    """Return half the Hessian `(B, d_s, d_s)`.

    Exact for a basis of cosines, otherwise by central differences of the gradient. Where it is not
    positive definite, at a summary that is no minimum, the matrix of Gauss and Newton, which is.
    """
    at = Derivatives.of(objective, s) if at is None else at
    newton = at.jacobian @ at.jacobian.mT
    if objective.cloud is not None:
        newton = newton + objective.stay * objective.cloud.whitener.mT @ objective.cloud.whitener
    if objective.cosines is not None:
        exact = newton + objective.cosines.curvature(s, at.residual)
    else:
        exact = _differences(objective, s, scale)
    _, failed = torch.linalg.cholesky_ex(exact)
    usable = (failed == 0) & torch.isfinite(exact).all((1, 2))
    return torch.where(usable[:, None, None], exact, newton)


def _differences(objective: EmbeddingDistance, s: Tensor, scale: Tensor) -> Tensor:
    """Return half the Hessian by central differences."""
    columns = []
    for j, step in enumerate((STEP * torch.where(scale > 0, scale, 1.0)).tolist()):
        move = torch.zeros_like(s)
        move[:, j] = step
        change = gradient(objective, s + move) - gradient(objective, s - move)
        columns.append(change / (2 * step))
    exact = torch.stack(columns, dim=2)
    return (exact + exact.mT) / 2


@torch.no_grad()
def influence(
    objective: EmbeddingDistance,
    s: Tensor,
    wide: Tensor,
    weight: Tensor,
    scale: Tensor,
    response: Response | None = None,
    at: Derivatives | None = None,
) -> Influence:
    """Return the influence of every observation.

    Arguments:
        objective: What was minimised, with the weighted embeddings as its target.
        s: Adapted summaries `(B, d_s)`, float64.
        wide: Features `(B, N, K)` of the observations.
        weight: Their weights `(B, N)`.
        scale: Standard deviations of the simulated summaries `(d_s,)`.
        response: How the weights answer; None for weights that are fixed.
        at: The derivatives of the embedding at `s`, where they are known already.
    """
    at = Derivatives.of(objective, s) if at is None else at
    H = hessian(objective, s, scale, at)
    J = at.jacobian.mT
    pull = (wide @ J.to(wide.dtype)).double() - objective.z_bar[:, None] @ J  # (B, N, d_s)
    value = solve(H, pull.mT).mT
    feedback = s.new_zeros(len(s))
    if response is None:
        value = weight[..., None] * value
    else:
        feedback = torch.linalg.eigvals(response.feedback(value)).abs().amax(1)
        value = response.influence(value)
    num = wide.shape[1]
    value = value / weight.mean(1).clamp(min=torch.finfo(torch.float64).tiny)[:, None, None]
    # Copies of an observation are drawn together: their influences add up before they are squared.
    apart = value if response is None else value / response.observations.share[..., None]
    covariance = value.mT @ apart / num**2
    return Influence(value, covariance, feedback)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return solutions `(B, d, n)` of systems; that of least norm where a matrix is singular.

    `torch.linalg.lstsq` has, on a CPU, last bits that depend on where in memory its workspace lies:
    of 600 equal calls with 8 unknowns it gave 18 results, LU factors one. So LU comes first.
    """
    inverse, failed = torch.linalg.inv_ex(matrix)
    condition = _norm(matrix) * _norm(inverse)
    limit = 1 / (matrix.shape[-1] * torch.finfo(matrix.dtype).eps)
    singular = (failed != 0) | ~(condition < limit)  # also where it is NaN
    value: Tensor = torch.linalg.solve_ex(matrix, right).result
    if singular.any():
        value[singular] = torch.linalg.lstsq(matrix[singular], right[singular]).solution
    return value


def _norm(matrix: Tensor) -> Tensor:
    """Return the largest sum of absolute values in a column, `(B,)`."""
    return matrix.abs().sum(-2).amax(-1)
