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
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mindist.solvers.solution import Solution
from mindist.threads import ranges, team

if TYPE_CHECKING:
    from mindist.solvers.cosine_loops import Basis, Ends, Limits

REPEATS = 4  # of the search with the rest frozen
SETTLED = 1e-3  # in units of the given scale: after a repetition that moves less, 3% of it is left
MAX_ITERATIONS, TOLERANCE = 200, 1e-9
FEW = 4  # problems: so many products with one vector take the time of one with so many
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
        phase, frequency = self._angles
        return torch.addmm(phase, s, frequency).cos_()

    @cached_property
    def _angles(self) -> tuple[Tensor, Tensor]:
        return 2 * math.pi * self.phase, 2 * math.pi * self.frequency

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
        objective: bool = True,
    ) -> Solution:
        """Minimise every problem.

        Arguments:
            target: t, `(n, R)`.
            start: Where the search may begin, `(n, S, d)`; it does at the lowest of the S points.
            centre: m, `(n, d)`; None for no penalty.
            whitener: R, `(n, d, d)`.
            repeats: How often at most to search again with the rest frozen. 0 leaves it out, and
                ends where a step would gain no more than was left to it.
            objective: Whether it has to be exact, rather than with the rest frozen or left out.
        """
        n, d = start.shape[0], start.shape[2]
        centre = start[:, 0] if centre is None else centre
        whitener = start.new_zeros(n, d, d) if whitener is None else whitener
        limits = MAX_ITERATIONS, TOLERANCE, 0.0 if repeats else self.least
        if n <= FEW and repeats and not objective:
            return self._solve_few((target, centre, whitener), start, limits, repeats)
        pull = self._pull(target, exact=bool(repeats))
        parts = pull, torch.linalg.vecdot(target, target), centre, whitener
        end = self._search(parts, start, limits)
        self._repeat(parts, limits, end, repeats)
        if not objective:
            return end
        offset = (whitener @ (end.value - centre)[..., None]).squeeze(-1)
        exact = self.distance(end.value, target) + offset.square().sum(1)
        return replace(end, objective=exact)

    def _repeat(self, problem: Parts, limits: Limited, end: Solution, repeats: int) -> None:
        """Search again from each end, with the rest frozen there, until none moves."""
        going = torch.arange(end.value.shape[0])
        for _ in range(repeats if len(self.rest) else 0):
            value, (pull, *others) = end.value[going], [part[going] for part in problem]
            # What was left to the rest is small: in float32 it is rounded by less than the target.
            cosine = self.basis(value).float()
            pull = pull - cosine @ self._rest_square
            new = self._search((pull, *others), value[:, None], limits)
            end.value[going], end.status[going] = new.value, new.status
            end.iterations[going] += new.iterations
            going = going[((new.value - value) / self.scale).abs().amax(1) > SETTLED]
            if not going.numel():
                break

    @cached_property
    def _rest_square(self) -> Tensor:
        """:math:`A_2 A_2^T`, `(P, P)`, float32."""
        return (self.rest.T @ self.rest).float()

    def _solve_few(self, problems: Parts, start: Tensor, limits: Limited, most: int) -> Solution:
        """Search and search again in one compiled call, from t, m and R of each problem."""
        from mindist.solvers import cosine_few_loops
        from mindist.solvers import cosine_loops as loops

        end = _no_solution(start)
        again = most if len(self.rest) else 0, self.scale.numpy(), SETTLED
        cosine_few_loops.solve_each(
            self.loops_basis,
            self.mixing.contiguous().numpy(),
            self._rest_square.numpy(),
            tuple(part.contiguous().numpy() for part in problems),
            start.contiguous().numpy(),
            loops.Limits(*limits),
            again,
            _arrays(end),
        )
        return end

    def _pull(self, target: Tensor, *, exact: bool) -> Tensor:
        """q, `(n, P)`; in float32 where the rest is left out, which matters more."""
        if exact:
            return target @ self.mixing.T
        return (target.float() @ self.single).double()

    @cached_property
    def single(self) -> Tensor:
        """A transposed, `(R, P)`, float32: q of a target is their product."""
        return self.mixing.T.float().contiguous()

    def _search(self, problem: Parts, start: Tensor, limits: Limited) -> Solution:
        """A search without the rest."""
        from mindist.solvers import cosine_loops as loops

        end = _no_solution(start)
        basis, given, ends = self.loops_basis, loops.Limits(*limits), _arrays(end)
        arrays = [part.contiguous().numpy() for part in (*problem, start)]

        def work(share: tuple[int, int]) -> None:
            (*target, at), out = ([a[slice(*share)] for a in group] for group in (arrays, ends))
            loops.minimise(basis, loops.Target(*target), at, given, loops.Ends(*out))

        with team(worth=len(start) >= WORTH_SHARING) as threads:
            threads.do(work, ranges(len(start), threads.size))
        return end

    @cached_property
    def loops_basis(self) -> Basis:
        """The basis and :math:`A_1`, as the compiled loops want them."""
        from mindist.solvers.cosine_loops import Basis

        return Basis(self.frequency.numpy(), self.phase.numpy(), self.main.contiguous().numpy())

    @cached_property
    def loose_limits(self) -> Limits:
        """Of a search without repeats."""
        from mindist.solvers.cosine_loops import Limits

        return Limits(MAX_ITERATIONS, TOLERANCE, self.least)


def _no_solution(start: Tensor) -> Solution:
    """Memory for where searches from points `(n, S, d)` end."""
    n, _, d = start.shape
    status, iterations = torch.empty(2, n, dtype=torch.long)
    return Solution(start.new_empty(n, d), start.new_empty(n), status, iterations)


def _arrays(end: Solution) -> Ends:
    """The same memory, for loops to write to."""
    from mindist.solvers.cosine_loops import Ends

    parts = end.value, end.objective, end.status, end.iterations
    return Ends(*(part.numpy() for part in parts))


__all__ = ["REPEATS", "CosineLeastSquares"]
