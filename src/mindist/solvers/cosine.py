r"""Least squares in a basis of cosines, compiled: Newton's method for many problems.

Minimise, for each problem b,

.. math:: F_b(s) = \| c(s) A - t_b \|^2 + \| R_b (s - m_b) \|^2 , \qquad
    c(s) = \cos 2\pi (s\, \Omega + \phi) \in \mathbb{R}^P .

**Exactly, in few residuals.** Only :math:`q_b = A t_b` and :math:`\|t_b\|^2` are needed of the
target, :math:`F = \|c A\|^2 - 2\, c \cdot q + \|t\|^2 + \dots`, so that all of the target counts,
while :math:`\|c A\|^2` is that of few directions: with the principal directions of :math:`c(s) A`
over given points, :math:`A A^\top = A_1 A_1^\top + A_2 A_2^\top` and :math:`c A_2` is small. The
search runs with :math:`A_1` alone and :math:`q - A_2 A_2^\top c(s_k)`, the force of the rest frozen
at the last end :math:`s_k`, and is repeated from there: a fixed point is a stationary point of
:math:`F`, and each repetition shortens the distance from it by a factor of the order of the rest.

**Newton's.** The second derivative of a cosine costs nothing, and with it the convergence is
quadratic also where residuals are large; Gauss-Newton steps took four times as many on contaminated
OUP data (29 against 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist.solvers.solution import Solution
from mindist.threads import ranges, team

REPEATS = 4  # of the search with the rest frozen
SETTLED = 1e-3  # in units of the given scale: after a repetition that moves less, 3% of it is left
WORTH_SHARING = 8  # problems; one takes about 0.1 ms, threads as much to start

Parts = tuple[Tensor, ...]  # of problems: q, the constant, m and R
Limited = tuple[int, float, float]


@dataclass(frozen=True)
class CosineLeastSquares:
    """A basis of cosines and a matrix, for any number of targets.

    Arguments:
        frequency: In turns, `(d, P)`, float64.
        phase: In turns, `(P,)`, float64.
        main: :math:`A_1`, transposed, `(r, P)`, float64.
        rest: :math:`A_2`, transposed, `(R - r, P)`, float64.
        mixing: A, `(P, R)`, float64.
        scale: The unit of each unknown, `(d,)`.
        least: The mean square that was left to the rest.

    Example:
        >>> frequency, phase = torch.tensor([[0.1, 0.2]]).double(), torch.zeros(2).double()
        >>> points = torch.linspace(0, 2, 50)[:, None].double()
        >>> problem = CosineLeastSquares.of(
        ...     frequency, phase, torch.eye(2).double(), points, least=1e-3
        ... )
        >>> t = problem.basis(torch.tensor([[0.7]]).double())
        >>> solution = problem.solve(t, torch.ones(1, 1, 1).double())
        >>> solution.value
        tensor([[0.7000]], dtype=torch.float64)
    """

    frequency: Tensor
    phase: Tensor
    main: Tensor
    rest: Tensor
    mixing: Tensor
    scale: Tensor
    least: float

    @classmethod
    @torch.no_grad()
    def of(
        cls, frequency: Tensor, phase: Tensor, mixing: Tensor, points: Tensor, *, least: float
    ) -> CosineLeastSquares:
        """Split a matrix A, `(P, R)`.

        Arguments:
            frequency: In turns, `(d, P)`.
            phase: In turns, `(P,)`.
            mixing: A.
            points: Where the search is expected to be, `(m, d)`.
            least: The mean square over the points that may be left to the rest.
        """
        # Lengths of c A need no more columns than A has rows: A = L Q with orthonormal Q.
        wide = mixing.shape[1] > mixing.shape[0]
        short = torch.linalg.qr(mixing.T, mode="r").R.T if wide else mixing
        values = torch.cos(2 * math.pi * (points @ frequency + phase)) @ short
        energy, directions = torch.linalg.eigh(values.T @ values / len(points))
        rest = int((energy.clamp(min=0).cumsum(0) <= least).sum())
        turned = (short @ directions).T.contiguous()
        scale = points.std(0, unbiased=False)
        scale = torch.where(scale > 0, scale, 1.0)
        return cls(
            frequency.contiguous(), phase, turned[rest:], turned[:rest], mixing, scale, least
        )

    def basis(self, s: Tensor) -> Tensor:
        """c(s), `(n, P)`."""
        return torch.cos(2 * math.pi * (s @ self.frequency + self.phase))

    def distance(self, s: Tensor, target: Tensor) -> Tensor:
        """The first term, `(n,)`, at points `(n, d)`, with targets `(n, R)`."""
        return (self.basis(s) @ self.mixing - target).square().sum(1)

    @torch.no_grad()
    def solve(
        self,
        target: Tensor,
        start: Tensor,
        centre: Tensor | None = None,
        whitener: Tensor | None = None,
        *,
        repeats: int = REPEATS,
        max_iterations: int = 200,
        tolerance: float = 1e-9,
    ) -> Solution:
        """Minimise every problem.

        Arguments:
            target: t, `(n, R)`.
            start: Where the search may begin, `(n, S, d)`; it does at the lowest of the S points.
            centre: m, `(n, d)`; None for no penalty.
            whitener: R, `(n, d, d)`.
            repeats: How often at most to search again with the rest frozen. 0 leaves it out, and
                ends where a step would gain no more than was left to it.
            max_iterations: Steps tried for each problem in one search.
            tolerance: A problem has converged when a step is predicted to lower its objective by
                less than this share.

        Returns:
            A `Solution`, with an objective without the rest where there are no repeats.
        """
        n, d = len(start), start.shape[2]
        centre = start[:, 0] if centre is None else centre
        whitener = start.new_zeros(n, d, d) if whitener is None else whitener
        limits = max_iterations, tolerance, 0.0 if repeats else self.least
        pull = self._pull(target, exact=bool(repeats))
        constant = torch.linalg.vecdot(target, target)
        end = self._search((pull, constant, centre, whitener), start, limits)
        if not repeats:
            return end
        self._repeat((pull, constant, centre, whitener), limits, end, repeats)
        offset = (whitener @ (end.value - centre)[..., None]).squeeze(-1)
        objective = self.distance(end.value, target) + offset.square().sum(1)
        return replace(end, objective=objective)

    def _repeat(self, problem: Parts, limits: Limited, end: Solution, repeats: int) -> None:
        """Search again from each end, with the rest frozen there, until none moves."""
        going = torch.arange(len(end.value))
        for _ in range(repeats if len(self.rest) else 0):
            if not len(going):
                break
            value, (pull, *others) = end.value[going], [part[going] for part in problem]
            pull = pull - (self.basis(value) @ self.rest.T) @ self.rest
            new = self._search((pull, *others), value[:, None], limits)
            end.value[going], end.status[going] = new.value, new.status
            end.iterations[going] += new.iterations
            going = going[((new.value - value) / self.scale).abs().amax(1) > SETTLED]

    def _pull(self, target: Tensor, *, exact: bool) -> Tensor:
        """q, `(n, P)`; in float32 where the rest is left out, which matters more."""
        if exact:
            return target @ self.mixing.T
        return (target.float() @ self._single).double()

    @cached_property
    def _single(self) -> Tensor:
        return self.mixing.T.float().contiguous()

    def _search(self, problem: Parts, start: Tensor, limits: Limited) -> Solution:
        """A search without the rest."""
        from mindist.solvers import cosine_loops as loops

        value, objective = torch.empty_like(start[:, 0]), torch.empty_like(start[:, 0, 0])
        status, iterations = torch.empty(2, len(start), dtype=torch.long)
        basis, given = loops.Basis(*self._arrays), loops.Limits(*limits)
        arrays = [part.contiguous().numpy() for part in (*problem, start)]
        ends = [part.numpy() for part in (value, objective, status, iterations)]

        def work(share: tuple[int, int]) -> None:
            (*target, at), out = ([a[slice(*share)] for a in group] for group in (arrays, ends))
            loops.minimise(basis, loops.Target(*target), at, given, loops.Ends(*out))

        with team(worth=len(start) >= WORTH_SHARING) as threads:
            threads.do(work, ranges(len(start), threads.size))
        return Solution(value, objective, status, iterations)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], ...]:
        return self.frequency.numpy(), self.phase.numpy(), self.main.contiguous().numpy()


__all__ = ["REPEATS", "CosineLeastSquares"]
