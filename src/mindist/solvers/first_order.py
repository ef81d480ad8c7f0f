r"""Gradient descent (the paper's Algorithm 1) and Adam, over all problems at once.

.. math:: s_{t+1} = s_t - \eta\, \nabla_s F(s_t)

Adam is what the paper uses where the objective is random, that is, where it is estimated from
fresh draws of a density decoder at every step.

Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.solvers.solution import Objective, Solution, SolverStatus


def gradient_descent(
    objective: Objective,
    start: Tensor,
    *,
    step_size: float = 1.0,
    max_iterations: int = 1_000,
    tolerance: float = 1e-9,
) -> Solution:
    """Algorithm 1: plain gradient descent with a fixed step size.

    Arguments:
        objective: Values `(n,)` at points `(n, d)` of the problems numbered `(n,)`, differentiable
            by autograd.
        start: Starting points `(n, d)`, float64.
        step_size: The step size; the squared distance of mean embeddings has curvature of order 1
            in units of the bandwidth, so 1 is stable there.
        max_iterations: Steps, the same for every problem.
        tolerance: Converged when the largest element of the gradient is below it.

    Returns:
        A `Solution` with the best point of each path.

    Example:
        >>> target = torch.tensor([[1.0], [3.0]]).double()
        >>> square = lambda s, problem: (s - target[problem]).square().sum(-1)
        >>> gradient_descent(square, torch.zeros(2, 1).double(), step_size=0.25).value
        tensor([[1.0000],
                [3.0000]], dtype=torch.float64)
    """
    problem = torch.arange(len(start), device=start.device)
    one = torch.ones((), dtype=start.dtype, device=start.device)
    s, best_s = start.clone(), start.clone()
    best, _ = _value_and_gradient(objective, s, one, problem)
    status = torch.where(
        torch.isfinite(best), int(SolverStatus.MAX_ITERATIONS), int(SolverStatus.NONFINITE)
    )
    iterations = torch.zeros_like(problem)
    for _ in range(max_iterations):
        value, gradient = _value_and_gradient(objective, s, one, problem)
        better = value < best
        best_s = torch.where(better[:, None], s, best_s)
        best = torch.where(better, value, best)
        status[(gradient.abs().amax(-1) <= tolerance) & (status == SolverStatus.MAX_ITERATIONS)] = 0
        running = status == SolverStatus.MAX_ITERATIONS
        if not running.any():
            break
        iterations += running
        s = s - step_size * torch.where(running[:, None], gradient, 0.0)
    return Solution(best_s, best, status, iterations)


def adam(
    objective: Objective,
    start: Tensor,
    *,
    step_size: float | Tensor = 0.05,
    max_iterations: int = 300,
) -> Solution:
    """Adam, for objectives that may be random; the step size falls to zero along a cosine.

    The point returned is the last one, because single values of a random objective cannot be
    compared; `Solution.objective` is the last value that was seen.

    Arguments:
        objective: As for `gradient_descent`; it may draw anew at every call.
        start: Starting points `(n, d)`, float64.
        step_size: First step size, one number or one for each unknown `(d,)`.
        max_iterations: Steps, the same for every problem.

    Example:
        >>> target = torch.tensor([[1.0], [3.0]]).double()
        >>> square = lambda s, problem: (s - target[problem]).square().sum(-1)
        >>> adam(square, torch.zeros(2, 1).double(), step_size=0.1).value.round(decimals=2)
        tensor([[1.],
                [3.]], dtype=torch.float64)
    """
    scale = torch.as_tensor(step_size, dtype=start.dtype, device=start.device)
    problem = torch.arange(len(start), device=start.device)
    u = start / scale
    optimiser = torch.optim.Adam([u], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max_iterations)
    first, _ = _value_and_gradient(objective, u, scale, problem)
    for _ in range(max_iterations):
        _, u.grad = _value_and_gradient(objective, u, scale, problem)
        optimiser.step()
        schedule.step()
    last, _ = _value_and_gradient(objective, u, scale, problem)
    usable = torch.isfinite(first) & torch.isfinite(last) & torch.isfinite(u).all(-1)
    value = torch.where(usable[:, None], u * scale, start)
    status = torch.where(usable, int(SolverStatus.CONVERGED), int(SolverStatus.NONFINITE))
    return Solution(
        value, torch.where(usable, last, first), status, torch.full_like(status, max_iterations)
    )


def _value_and_gradient(
    objective: Objective, u: Tensor, scale: Tensor, problem: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the objective at `u * scale` and its gradient in `u`."""
    with torch.enable_grad():
        u = u.detach().requires_grad_(True)
        value = objective(u * scale, problem)
        (gradient,) = torch.autograd.grad(value.sum(), u)
    return value.detach(), gradient
