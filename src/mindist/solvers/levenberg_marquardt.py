r"""Batched Levenberg-Marquardt for nonlinear least squares with few unknowns.

For each problem, minimise :math:`F(s) = \|r(s)\|^2` by steps

.. math:: (J^\top J + \lambda D)\, \delta = -J^\top r, \qquad D = \mathrm{diag}(J^\top J) ,

where the damping :math:`\lambda` follows the ratio of the actual to the predicted decrease.
`damped_step` and `update_damping` are the two parts; the loop only puts them together, and
problems that have ended leave the batch.

References:
    Nielsen, Damping Parameter in Marquardt's Method, IMM-REP-1999-05.
    Nocedal and Wright, Numerical Optimization (2006), chapter 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.solvers.solution import Solution, SolverStatus

Residual = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`residual(s, problem)`: residuals `(n, m)` and Jacobians `(n, m, d)` at points `(n, d)`."""

INITIAL_DAMPING = 1e-3  # Nielsen's tau for starts that are good approximations
MAX_DAMPING = 1e16  # beyond it a step is below the rounding of s
# A predicted decrease below this share of F is lost in float64 rounding of F itself.
NEGLIGIBLE = 1e-15


@dataclass
class _Batch:
    """The problems still searched; `F` is the objective, `A` and `g` its normal equations."""

    problem: Tensor
    s: Tensor
    F: Tensor
    A: Tensor
    g: Tensor
    damping: Tensor
    growth: Tensor

    def __getitem__(self, keep: Tensor) -> _Batch:
        return _Batch(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def damped_step(A: Tensor, g: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    r"""The Levenberg-Marquardt step and the decrease of the objective that it predicts.

    The normal equations are safe here: they are solved in float64, scaled to a unit diagonal, so
    that the condition number of the damped matrix is at most :math:`d (1 + \lambda) / \lambda`
    and a rank-deficient Jacobian still gives a finite descent step.

    Arguments:
        A: :math:`J^\top J`, `(n, d, d)`.
        g: :math:`J^\top r`, `(n, d)`.
        damping: :math:`\lambda`, `(n,)`.

    Returns:
        The step :math:`\delta`, `(n, d)`, and the predicted decrease of :math:`\|r\|^2`, `(n,)`,
        which is :math:`\delta^\top (\lambda D \delta - g)`.

    Example:
        >>> A, g = torch.eye(1).double()[None], torch.ones(1, 1).double()
        >>> step, decrease = damped_step(A, g, torch.zeros(1).double())
        >>> step.item(), decrease.item()
        (-1.0, 1.0)
    """
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    scale = diagonal.clamp(min=torch.finfo(A.dtype).tiny).sqrt()
    unit = A / (scale[:, :, None] * scale[:, None, :])
    unit = unit + torch.diag_embed(damping[:, None].expand_as(g) + (diagonal == 0))
    scaled_step, _ = torch.linalg.solve_ex(unit, -(g / scale))
    step = scaled_step / scale
    predicted = damping * scaled_step.square().sum(-1) - (step * g).sum(-1)
    return torch.where(diagonal == 0, 0.0, step), predicted


def update_damping(gain: Tensor, damping: Tensor, growth: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nielsen's rule: shrink the damping smoothly after a good step, grow it faster and faster.

    Arguments:
        gain: Actual over predicted decrease, `(n,)`; a step is accepted where it is positive.
        damping: :math:`\lambda`, `(n,)`.
        growth: The next factor of growth :math:`\nu`, `(n,)`, 2 at first.

    Returns:
        The next damping and growth.

    Example:
        >>> update_damping(torch.tensor([1.0, -1.0]), torch.ones(2), 2 * torch.ones(2))
        (tensor([0.3333, 2.0000]), tensor([2., 4.]))
    """
    accepted = gain > 0
    shrink = (1 - (2 * gain.clamp(0, 1) - 1) ** 3).clamp(min=1 / 3)
    damping = torch.where(accepted, damping * shrink, damping * growth)
    return damping, torch.where(accepted, torch.full_like(growth, 2.0), 2 * growth)


@torch.no_grad()
def levenberg_marquardt(
    residual: Residual, start: Tensor, *, max_iterations: int = 200, tolerance: float = 1e-13
) -> Solution:
    r"""Minimise :math:`\|r(s)\|^2` for many problems at once.

    Arguments:
        residual: Residuals and Jacobians at given points of given problems, see `Residual`.
        start: Starting points `(n, d)`, float64.
        max_iterations: Steps tried for each problem.
        tolerance: A problem has converged when a step is predicted to lower its objective by less
            than this share. Near a minimum with large residuals the convergence is linear, so
            the default leaves room for the sum of all later decreases to stay below 1e-10.

    Returns:
        A `Solution`, whose objective is never above the objective at the start.

    Example:
        >>> def rosenbrock(s, problem):
        ...     a, b = s.unbind(-1)
        ...     r = torch.stack([10 * (b - a**2), 1 - a], dim=-1)
        ...     one, zero = torch.ones_like(a), torch.zeros_like(a)
        ...     J = torch.stack([torch.stack([-20 * a, 10 * one], -1),
        ...                      torch.stack([-one, zero], -1)], dim=-2)
        ...     return r, J
        >>> solution = levenberg_marquardt(rosenbrock, torch.tensor([[-1.2, 1.0]]).double())
        >>> torch.allclose(solution.value, torch.ones(1, 2).double()), solution.messages[0][:9]
        (True, 'converged')
    """
    every = torch.arange(len(start), device=start.device)
    value, F, A, g = start.clone(), *_normal_equations(residual, start, every)
    objective = F.clone()
    finite = torch.isfinite(F) & torch.isfinite(g).all(-1) & torch.isfinite(A).all((-2, -1))
    status = torch.where(finite, SolverStatus.MAX_ITERATIONS, SolverStatus.NONFINITE)
    iterations = torch.zeros_like(every)
    damping, growth = torch.full_like(F, INITIAL_DAMPING), torch.full_like(F, 2.0)
    batch = _Batch(every, value, F, A, g, damping, growth)[finite]

    for _ in range(max_iterations):
        if not len(batch.problem):
            break
        iterations[batch.problem] += 1
        code = _advance(batch, residual, tolerance)
        value[batch.problem], objective[batch.problem] = batch.s, batch.F
        ended = code >= 0
        status[batch.problem[ended]] = code[ended]
        batch = batch[~ended]
    return Solution(value, objective, status, iterations)


def _advance(batch: _Batch, residual: Residual, tolerance: float) -> Tensor:
    """Try one step of every problem, in place; a status code where it ended, -1 elsewhere."""
    step, predicted = damped_step(batch.A, batch.g, batch.damping)
    trial = batch.s + step
    F, A, g = _normal_equations(residual, trial, batch.problem)
    usable = torch.isfinite(F) & torch.isfinite(g).all(-1) & torch.isfinite(A).all((-2, -1))
    gain = torch.where(usable, (batch.F - F) / predicted, -1.0).nan_to_num(-1.0)
    small = predicted <= tolerance * batch.F
    accepted = gain > 0
    batch.s = torch.where(accepted[:, None], trial, batch.s)
    batch.F = torch.where(accepted, F, batch.F)
    batch.A = torch.where(accepted[:, None, None], A, batch.A)
    batch.g = torch.where(accepted[:, None], g, batch.g)
    # A tiny predicted decrease under light damping means a stationary point; under heavy damping
    # it only means a short step, and the search goes on until the damping is exhausted.
    negligible = predicted <= NEGLIGIBLE * batch.F
    converged = (small & (batch.damping <= 1)) | (negligible & ~accepted)
    batch.damping, batch.growth = update_damping(gain, batch.damping, batch.growth)
    code = torch.where(converged, int(SolverStatus.CONVERGED), -1)
    return torch.where(batch.damping > MAX_DAMPING, int(SolverStatus.STALLED), code)


def _normal_equations(
    residual: Residual, s: Tensor, problem: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r, J = residual(s, problem)
    transposed = J.transpose(-2, -1)
    return r.square().sum(-1), transposed @ J, (transposed @ r[..., None]).squeeze(-1)
