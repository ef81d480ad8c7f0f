r"""Solvers that need only the objective and its gradient, by autograd.

.. math:: s_{t+1} = s_t - \eta\, \nabla_s F(s_t)

is the paper's Algorithm 1. L-BFGS, with a strong-Wolfe line search (torch's own), is the paper's
solver (Section 3.2, Test-Time MDS Adaptation); `damped_newton` is faster wherever the objective is
a sum of squares. Adam is what the paper uses where the objective is random, that is, where it is
estimated from fresh draws of a density decoder at every step.

References:
    Liu and Nocedal, On the Limited Memory BFGS Method, Mathematical Programming 45 (1989).
    Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
"""

import torch
from torch import Tensor

from mindist.solvers.newton import Objective, Solution, SolverStatus


def gradient_descent(
    objective: Objective,
    start: Tensor,
    *,
    step_size: float = 1.0,
    max_iterations: int = 1_000,
    tolerance: float = 1e-9,
) -> Solution:
    """Algorithm 1: gradient descent with a fixed step size, to the best point of each path.

    Arguments:
        objective: Values `(n,)` at points `(n, d)` of the problems numbered `(n,)`.
        start: Starting points `(n, d)`, float64.
        step_size: The step size; the squared distance of mean embeddings has curvature of order 1
            in units of the bandwidth, so 1 is stable there.
        max_iterations: Steps, the same for every problem.
        tolerance: Converged when the largest element of the gradient is below it.

    Example:
        >>> target = torch.tensor([[1.0], [3.0]]).double()
        >>> square = lambda s, problem: (s - target[problem]).square().sum(-1)
        >>> gradient_descent(square, torch.zeros(2, 1).double(), step_size=0.25).value.flatten()
        tensor([1.0000, 3.0000], dtype=torch.float64)
    """
    problem = torch.arange(len(start), device=start.device)
    s, best_s = start.clone(), start.clone()
    best, _ = _value_and_gradient(objective, s, problem)
    finite = torch.isfinite(best)
    status = torch.where(finite, SolverStatus.MAX_ITERATIONS, SolverStatus.NONFINITE)
    iterations = torch.zeros_like(problem)
    for _ in range(max_iterations):
        value, gradient = _value_and_gradient(objective, s, problem)
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
    compared; `Solution.objective` is the last value that was seen. Arguments are those of
    `gradient_descent`; the first step size is one number, or one for each unknown `(d,)`.

    Example:
        >>> target = torch.tensor([[1.0], [3.0]]).double()
        >>> square = lambda s, problem: (s - target[problem]).square().sum(-1)
        >>> solution = adam(square, torch.zeros(2, 1).double(), step_size=0.1)
        >>> solution.value.flatten().round(decimals=2)
        tensor([1., 3.], dtype=torch.float64)
    """
    scale = torch.as_tensor(step_size, dtype=start.dtype, device=start.device)
    problem = torch.arange(len(start), device=start.device)
    u = start / scale
    optimiser = torch.optim.Adam([u], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max_iterations)

    def scaled(u: Tensor, problem: Tensor) -> Tensor:
        return objective(u * scale, problem)

    first, _ = _value_and_gradient(scaled, u, problem)
    for _ in range(max_iterations):
        _, u.grad = _value_and_gradient(scaled, u, problem)
        optimiser.step()
        schedule.step()
    last, _ = _value_and_gradient(scaled, u, problem)
    usable = torch.isfinite(first) & torch.isfinite(last) & torch.isfinite(u).all(-1)
    value = torch.where(usable[:, None], u * scale, start)
    status = torch.where(usable, SolverStatus.CONVERGED, SolverStatus.NONFINITE)
    count = torch.full_like(status, max_iterations)
    return Solution(value, torch.where(usable, last, first), status, count)


def _value_and_gradient(objective: Objective, s: Tensor, problem: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        s = s.detach().requires_grad_(True)
        value = objective(s, problem)
        (gradient,) = torch.autograd.grad(value.sum(), s)
    return value.detach(), gradient


def lbfgs(
    objective: Objective, start: Tensor, *, max_iterations: int = 100, tolerance: float = 1e-9
) -> Solution:
    """Minimise each problem's objective from its start, one problem after the other.

    Arguments are those of `gradient_descent`; each iteration has its own line search. The objective
    of the `Solution` is never above the objective at the start.

    Example:
        >>> target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
        >>> square = lambda s, problem: (s - target[problem]).square().sum(-1)
        >>> lbfgs(square, torch.zeros(2, 2).double()).value
        tensor([[1.0000, 2.0000],
                [3.0000, 4.0000]], dtype=torch.float64)
    """
    ends = [_solve_one(objective, start, i, max_iterations, tolerance) for i in range(len(start))]
    if not ends:
        return Solution(start.clone(), start.new_empty(0), *(start.new_empty(0).long(),) * 2)
    value, best, status, iterations = zip(*ends, strict=True)
    codes, counts = (torch.tensor(numbers, device=start.device) for numbers in (status, iterations))
    return Solution(torch.stack(value), torch.stack(best), codes, counts)


def _solve_one(
    objective: Objective, start: Tensor, index: int, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, int, int]:
    problem = torch.tensor([index], device=start.device)
    s = start[index : index + 1].clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [s],
        max_iter=max_iterations,
        max_eval=25 * max_iterations,
        tolerance_grad=tolerance,
        tolerance_change=0.0,  # stop on the gradient, or when no step is left to take
        line_search_fn="strong_wolfe",
    )

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        value = objective(s, problem).sum()
        value.backward()
        return value

    with torch.enable_grad():
        first = evaluate().detach()
        if not torch.isfinite(first):
            return start[index], first, int(SolverStatus.NONFINITE), 0
        optimiser.step(evaluate)
        last = evaluate().detach()
    iterations = int(optimiser.state[s].get("n_iter", 0))
    if not last <= first:
        return start[index], first, int(SolverStatus.STALLED), iterations
    small = s.grad is not None and bool(s.grad.abs().max() <= tolerance)
    stopped = SolverStatus.MAX_ITERATIONS if iterations >= max_iterations else SolverStatus.STALLED
    return s.detach()[0], last, int(SolverStatus.CONVERGED if small else stopped), iterations
