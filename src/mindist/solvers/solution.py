"""The result of every solver: a value, a status and a message for each problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

Objective = Callable[[Tensor, Tensor], Tensor]
"""`objective(s, problem)`: values `(n,)` at points `(n, d)` of the problems numbered `(n,)`."""


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

    Arguments:
        value: The best point found for each problem, `(n, d)`.
        objective: The objective there, `(n,)`; never above the objective at the start.
        status: A `SolverStatus` code for each problem, `(n,)`.
        iterations: Iterations spent on each problem, `(n,)`.

    Example:
        >>> import torch
        >>> solution = Solution(*torch.tensor([[[1.0]], [[0.1]], [[0.0]], [[3.0]]])[:, 0])
        >>> solution.messages[0][:9]
        'converged'
    """

    value: Tensor
    objective: Tensor
    status: Tensor
    iterations: Tensor

    @property
    def messages(self) -> tuple[str, ...]:
        """One sentence for each problem."""
        return tuple(SolverStatus(int(code)).message for code in self.status)
