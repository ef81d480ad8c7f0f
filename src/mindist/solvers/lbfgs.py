r"""L-BFGS with a strong-Wolfe line search, one problem after the other (torch's own).

This is the solver of the paper (Section 3.2, Test-Time MDS Adaptation). It needs only the
objective and its gradient by autograd; `damped_newton` is faster wherever the objective is
a sum of squares.

Reference: Liu and Nocedal, On the Limited Memory BFGS Method, Mathematical Programming 45 (1989).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.solvers.solution import Objective, Solution, SolverStatus


def lbfgs(
    objective: Objective, start: Tensor, *, max_iterations: int = 100, tolerance: float = 1e-9
) -> Solution:
    """Minimise each problem's objective from its start.

    Arguments:
        objective: Values `(n,)` at points `(n, d)` of the problems numbered `(n,)`, differentiable
            by autograd.
        start: Starting points `(n, d)`, float64.
        max_iterations: Iterations for each problem, each with its own line search.
        tolerance: Converged when the largest element of the gradient is below it.

    Returns:
        A `Solution`, whose objective is never above the objective at the start.

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
    codes = torch.tensor(status, device=start.device)
    counts = torch.tensor(iterations, device=start.device)
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
