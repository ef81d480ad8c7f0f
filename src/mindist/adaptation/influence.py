r"""How much each observation moves the adapted summary, and how uncertain that summary is.

The adapted summary solves :math:`g(s) = J(s)^\top (\mu(s) - \bar z_w) + \lambda C^{-1}(s - m) = 0`.
Mass :math:`\eta` at an observation x changes :math:`\bar z_w` to
:math:`(1 - \eta) \bar z_w + \eta z(x)`, so that by the implicit function theorem

.. math:: \mathrm{IF}(x) = \frac{d s^\star}{d \eta} = H^{-1} J^\top (z(x) - \bar z_w), \qquad
    H = \frac{\partial g}{\partial s} ,

the quantity of Theorem 4.1 of the paper, bounded in x because the features are. Its second moment
over the observations gives the sandwich covariance of the adapted summary at fixed weights
:math:`w_n` with mean :math:`\bar w`,

.. math:: \widehat{\mathrm{Cov}}(s^\star) =
    \frac{1}{N^2} \sum_n \mathrm{IF}_n\, \mathrm{IF}_n^\top , \qquad
    \mathrm{IF}_n = \frac{w_n}{\bar w} H^{-1} J^\top (z(x_n) - \bar z_w) .

References:
    Hampel, The Influence Curve and its Role in Robust Estimation, JASA 69 (1974).
    Huber, The Behavior of Maximum Likelihood Estimates under Nonstandard Conditions, 1967.
"""

import torch
from torch import Tensor

from mindist.adaptation.search import EmbeddingDistance
from mindist.solvers.newton import Quadratic, gauss_newton

STEP = 1e-4  # of the finite differences, in standard deviations of the simulated summaries


def model_at(objective: EmbeddingDistance, s: Tensor) -> Quadratic:
    """Return the objective, the matrix of Gauss and Newton, and half the gradient at `(B, d_s)`."""
    return gauss_newton(*objective.residual(s, torch.arange(len(s), device=s.device)))


def hessian(objective: EmbeddingDistance, s: Tensor, scale: Tensor) -> Tensor:
    """Return half the Hessian `(B, d_s, d_s)`.

    By central differences of the gradient. Where it is not positive definite, at a summary that is
    no minimum, the matrix of Gauss and Newton, which is.
    """
    newton, columns = model_at(objective, s)[1], []
    for j, step in enumerate((STEP * torch.where(scale > 0, scale, 1.0)).tolist()):
        move = torch.zeros_like(s)
        move[:, j] = step
        change = model_at(objective, s + move)[2] - model_at(objective, s - move)[2]
        columns.append(change / (2 * step))
    exact = torch.stack(columns, dim=2)
    exact = (exact + exact.mT) / 2
    usable = (torch.linalg.cholesky_ex(exact).info == 0) & torch.isfinite(exact).all((1, 2))
    return torch.where(usable[:, None, None], exact, newton)


@torch.no_grad()
def influence(
    objective: EmbeddingDistance, s: Tensor, wide: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the influence `(B, N, d_s)` of every observation, and the sandwich covariance.

    The objective has the weighted embeddings as its target; `wide` are features `(B, N, K)` and
    `scale` the standard deviations of simulated summaries.
    """
    J = (objective.decoder.basis_and_jacobian(s)[1].mT @ objective.decoder.weight).mT
    pull = (wide @ J.to(wide.dtype)).double() - objective.z_bar[:, None] @ J  # (B, N, d_s)
    value = solve(hessian(objective, s, scale), pull.mT).mT
    mean = weight.mean(1).clamp(min=torch.finfo(torch.float64).tiny)
    value = (weight / mean[:, None])[..., None] * value
    return value, value.mT @ value / wide.shape[1] ** 2


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return solutions `(B, d, n)` of systems; that of least norm where a matrix is singular.

    `torch.linalg.lstsq` has, on a CPU, last bits that depend on where in memory its workspace lies:
    of 600 equal calls with 8 unknowns it gave 18 results, LU factors one. So LU comes first.
    """
    inverse, failed = torch.linalg.inv_ex(matrix)
    condition = torch.linalg.matrix_norm(matrix, 1) * torch.linalg.matrix_norm(inverse, 1)
    limit = 1 / (matrix.shape[-1] * torch.finfo(matrix.dtype).eps)
    singular = (failed != 0) | ~(condition < limit)  # also where it is NaN
    value: Tensor = torch.linalg.solve_ex(matrix, right).result
    if singular.any():
        value[singular] = torch.linalg.lstsq(matrix[singular], right[singular]).solution
    return value
