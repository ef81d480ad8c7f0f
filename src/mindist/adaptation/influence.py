r"""How much each observation moves the adapted summary, and how uncertain that summary is.

The adapted summary solves :math:`g(s) = J(s)^\top (\mu(s) - \bar z_w) + \lambda C^{-1}(s - m) = 0`.
Mass :math:`\eta` at an observation x changes :math:`\bar z_w` to
:math:`(1 - \eta) \bar z_w + \eta z(x)`, so that by the implicit function theorem

.. math:: \mathrm{IF}(x) = \frac{d s^\star}{d \eta} = H^{-1} J^\top (z(x) - \bar z_w), \qquad
    H = \frac{\partial g}{\partial s} ,

the quantity of Theorem 4.1 of the paper, bounded in x because the features are. Weights that
follow the summary change it (`mindist.adaptation.response`). Its second moment over the
observations gives the sandwich covariance of the adapted summary,

.. math:: \widehat{\mathrm{Cov}}(s^\star) =
    \frac{1}{N^2} \sum_n \mathrm{IF}_n\, \mathrm{IF}_n^\top , \qquad
    \mathrm{IF}_n = \frac{w_n}{\bar w} H^{-1} J^\top (z(x_n) - \bar z_w)

at fixed weights with mean :math:`\bar w`.

References:
    Hampel, The Influence Curve and its Role in Robust Estimation, JASA 69 (1974).
    Huber, The Behavior of Maximum Likelihood Estimates under Nonstandard Conditions, 1967.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.adaptation.linear import solve
from mindist.adaptation.objective import EmbeddingDistance
from mindist.adaptation.response import Response

STEP = 1e-4  # of the finite differences, in standard deviations of the simulated summaries


@dataclass(frozen=True)
class Influence:
    """Of each observation on the adapted summary.

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
        """That of some datasets."""
        return Influence(self.value[index], self.covariance[index], self.feedback[index])

    def joined(self, other: Influence, order: Tensor) -> Influence:
        """This and another, then in the given order."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Influence(*(torch.cat(pair)[order] for pair in pairs))


@dataclass(frozen=True)
class Derivatives:
    """Of the decoder's embedding, at one summary of each problem.

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
        """Of an objective at `(B, d_s)`, problem b at `s[b]`, with the embedding if it is known."""
        decoder = objective.decoder
        mu = decoder(s) if mu is None else mu
        if objective.cosines is not None:
            return cls(objective.cosines.jacobian(s), mu - objective.z_bar)
        slope = decoder.basis_and_jacobian(s)[1]
        return cls(slope.mT @ decoder.weight, mu - objective.z_bar)


def gradient(objective: EmbeddingDistance, s: Tensor) -> Tensor:
    """Half the gradient of the objective, `(B, d_s)`, problem b at `s[b]`."""
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
    """Half the Hessian `(B, d_s, d_s)`.

    Exact for a basis of cosines, otherwise by central differences of the gradient. Where it is not
    positive definite, at a summary that is no minimum, the matrix of Gauss and Newton, which is.

    Arguments:
        objective: What was minimised.
        s: Where, `(B, d_s)`.
        scale: Standard deviations of the simulated summaries `(d_s,)`.
        at: The derivatives of the embedding there, where they are known already.
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
    """Half the Hessian by central differences."""
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
    """The influence of every observation.

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


__all__ = ["Derivatives", "Influence", "gradient", "hessian", "influence"]
