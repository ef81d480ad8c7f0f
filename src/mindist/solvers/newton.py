r"""Batched damped Newton steps for smooth functions of few unknowns; Levenberg-Marquardt is one.

For each problem, minimise :math:`F(s)` by steps

.. math:: (A + \lambda D)\, \delta = -g, \qquad D = \mathrm{diag}(A) ,

with :math:`g` half the gradient and :math:`A` a positive model of half the Hessian, where the
damping :math:`\lambda` follows the ratio of the actual to the predicted decrease. For
:math:`F = \|r(s)\|^2` the model of Gauss and Newton, :math:`A = J^\top J` and :math:`g = J^\top r`,
gives Levenberg-Marquardt. Problems that have ended leave the batch.

References:
    Nielsen, Damping Parameter in Marquardt's Method, IMM-REP-1999-05.
    Nocedal and Wright, Numerical Optimization (2006), chapter 10.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

Objective = Callable[[Tensor, Tensor], Tensor]
"""`objective(s, problem)`: values `(n,)` at points `(n, d)` of the problems numbered `(n,)`."""

Quadratic = tuple[Tensor, Tensor, Tensor]
"""F `(n,)`, A `(n, d, d)` and g `(n, d)`: a quadratic model of the objective at n points."""

Model = Callable[[Tensor, Tensor], Quadratic]
"""`model(s, problem)`: the quadratic model at points `(n, d)` of the problems numbered `(n,)`."""

INITIAL_DAMPING = 1e-3  # Nielsen's tau for starts that are good approximations
MAX_DAMPING = 1e16  # beyond it a step is below the rounding of s
# A predicted decrease below this share of F is lost in float64 rounding of F itself.
NEGLIGIBLE = 1e-15


class SolverStatus(IntEnum):
    """How the search for one problem ended.

    Example:
        >>> SolverStatus.STALLED.name, SolverStatus(0).message[:9]
        ('STALLED', 'converged')
    """

    CONVERGED = 0
    MAX_ITERATIONS = 1
    STALLED = 2
    NONFINITE = 3

    @property
    def message(self) -> str:
        """A sentence for people."""
        return (
            "converged: no step would lower the objective any further",
            "stopped at the largest allowed number of iterations; the objective was still falling",
            "stalled: no step along the search direction lowered the objective",
            "the objective is not finite at the start; the start was returned",
        )[self]


@dataclass(frozen=True)
class Solution:
    """The end of a batched search.

    Example:
        >>> solution = Solution(*torch.tensor([[[1.0]], [[0.1]], [[0.0]], [[3.0]]])[:, 0])
        >>> solution.messages[0][:9]
        'converged'
    """

    value: Tensor  #: The best point found for each problem, `(n, d)`.
    objective: Tensor  #: The objective there, `(n,)`; never above the objective at the start.
    status: Tensor  #: A `SolverStatus` code for each problem, `(n,)`.
    iterations: Tensor  #: Iterations spent on each problem, `(n,)`.

    @property
    def messages(self) -> tuple[str, ...]:
        """One sentence for each problem."""
        return tuple(SolverStatus(int(code)).message for code in self.status)


@dataclass
class _Batch:
    """The problems still searched, where they are, and the quadratic model there."""

    problem: Tensor
    s: Tensor
    F: Tensor
    A: Tensor
    g: Tensor
    damping: Tensor
    growth: Tensor

    def __getitem__(self, keep: Tensor) -> "_Batch":
        return _Batch(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def damped_step(A: Tensor, g: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the damped step `(n, d)` and the decrease of the objective that it predicts, `(n,)`.

    Normal equations are safe here: they are solved in float64, scaled to a unit diagonal, so
    that the condition number of the damped matrix is at most :math:`d (1 + \lambda) / \lambda`
    and a rank-deficient Jacobian still gives a finite descent step. The decrease that the step
    :math:`\delta` predicts is :math:`\delta^\top (\lambda D \delta - g)`.
    """
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    scale = diagonal.clamp(min=torch.finfo(A.dtype).tiny).rsqrt()
    unit, pull, damping = A * scale[:, :, None] * scale[:, None], g * scale, damping[:, None]
    # What does not move the objective at all has neither slope nor curvature, and no step.
    unit.diagonal(dim1=-2, dim2=-1).add_(damping + (diagonal == 0))
    step = torch.linalg.solve_ex(unit, -pull).result
    return step * scale, torch.linalg.vecdot(step, damping * step - pull)


def update_damping(gain: Tensor, damping: Tensor, growth: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next damping and growth by Nielsen's rule: shrink smoothly, grow ever faster."""
    accepted = gain > 0
    shrink = (1 - (2 * gain.clamp(0, 1) - 1).pow(3)).clamp(min=1 / 3)
    return damping * torch.where(accepted, shrink, growth), torch.where(accepted, 2.0, 2 * growth)


def gauss_newton(r: Tensor, J: Tensor) -> Quadratic:
    r"""Return :math:`\|r\|^2, J^\top J, J^\top r` of residuals `(n, m)`, Jacobians `(n, m, d)`.

    Example:
        >>> line = lambda s, problem: gauss_newton(2 * s - 6, torch.full((1, 1, 1), 2.0).double())
        >>> damped_newton(line, torch.zeros(1, 1).double()).value
        tensor([[3.]], dtype=torch.float64)
    """
    return r.square().sum(-1), J.mT @ J, (J.mT @ r[..., None]).squeeze(-1)


@torch.no_grad()
def damped_newton(
    model: Model, start: Tensor, *, max_iterations: int = 200, tolerance: float = 1e-13
) -> Solution:
    """Minimise F for many problems at once; the objective returned is that before the last step.

    Arguments:
        model: F and its quadratic model at given points of given problems, see `Model`.
        start: Starting points `(n, d)`, float64.
        max_iterations: Steps tried for each problem.
        tolerance: A problem has converged when a step is predicted to lower its objective by less
            than this share; the step is taken, and not looked at.

    Example:
        >>> def cosine(s, problem):
        ...     return 1 + s[:, 0].cos(), -s.cos()[..., None] / 2, -s.sin() / 2
        >>> damped_newton(cosine, torch.tensor([[2.5]]).double()).value
        tensor([[3.1416]], dtype=torch.float64)
    """
    every = torch.arange(len(start), device=start.device)
    value, F, A, g = start.clone(), *model(start, every)
    # All numbers of a model are finite where their sum is, up to 1e308.
    objective, finite = F.clone(), torch.isfinite(F + g.sum(-1) + A.sum((-2, -1)))
    status = torch.where(finite, SolverStatus.MAX_ITERATIONS, SolverStatus.NONFINITE)
    iterations = torch.zeros_like(every)
    damping, growth = torch.full_like(F, INITIAL_DAMPING), torch.full_like(F, 2.0)
    batch = _Batch(every, start, F, A, g, damping, growth)[finite]

    def end(rows: Tensor, s: Tensor, code: SolverStatus | Tensor, count: int) -> None:
        """Write down where some problems of the batch ended, and leave them out of it."""
        nonlocal batch
        ended = batch.problem[rows]
        value[ended], objective[ended], status[ended] = s[rows], batch.F[rows], code
        iterations[ended] = count
        batch = batch[~rows]

    for count in range(1, max_iterations + 1):
        if not batch.problem.numel():
            break
        step, predicted = damped_step(batch.A, batch.g, batch.damping)
        # A tiny predicted decrease under light damping means a stationary point, and the step is
        # taken without another look; under heavy damping it only means a short step, and the search
        # goes on until the damping is exhausted.
        small = (predicted <= tolerance * batch.F) & (batch.damping <= 1)
        if small.any():
            end(small, batch.s + step, SolverStatus.CONVERGED, count)
            step, predicted = step[~small], predicted[~small]
            if not batch.problem.numel():
                break
        code = _advance(batch, model, step, predicted)
        if (code >= 0).any():
            end(code >= 0, batch.s, code[code >= 0], count)
    value[batch.problem], objective[batch.problem] = batch.s, batch.F
    iterations[batch.problem] = max_iterations
    return Solution(value, objective, status, iterations)


def _advance(batch: _Batch, model: Model, step: Tensor, predicted: Tensor) -> Tensor:
    """Try one step of every problem, in place; a status code where it ended, -1 elsewhere."""
    trial = batch.s + step
    F, A, g = model(trial, batch.problem)
    # Where F is finite but its model is not, no further step is, and the search stalls there.
    gain = ((batch.F - F) / predicted).nan_to_num(-1.0)
    batch.damping, batch.growth = update_damping(gain, batch.damping, batch.growth)
    accepted = gain > 0
    batch.s = torch.where(accepted[:, None], trial, batch.s)
    batch.F = torch.where(accepted, F, batch.F)
    batch.A = torch.where(accepted[:, None, None], A, batch.A)
    batch.g = torch.where(accepted[:, None], g, batch.g)
    code = torch.full_like(batch.problem, -1)
    code[(predicted <= NEGLIGIBLE * batch.F) & ~accepted] = SolverStatus.CONVERGED
    code[batch.damping > MAX_DAMPING] = SolverStatus.STALLED
    return code
