"""All of `CosineLeastSquares.solve` in one compiled call, for one problem after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.compiled import jit_reordered
from mindist.solvers.cosine_loops import Target, dot, make_room, search_one, waves


@jit_reordered
def times_symmetric(matrix: Any, vector: Any, out: Any) -> None:
    """The product of a symmetric matrix `(n, n)` with a vector, in their precision."""
    for k in range(len(matrix)):
        row, total = matrix[k], vector[0] * 0
        for p in range(len(row)):
            total += row[p] * vector[p]
        out[k] = total


@jit_reordered
def solve_each(
    basis: Any, mixing: Any, rest: Any, problems: Any, starts: Any, limits: Any, again: Any,
    ends: Any,
) -> None:  # fmt: skip
    """Minimise n problems, each from the lowest of its starts, again with the rest frozen.

    Arguments:
        basis: The cosines and the main directions.
        mixing: A `(P, R)`.
        rest: :math:`A_2 A_2^T`, `(P, P)`, float32.
        problems: t `(n, R)`, m `(n, d)` and R `(n, d, d)`.
        starts: `(n, S, d)`.
        limits: Of each search.
        again: How often at most; the scale `(d,)` of the unknowns; after a move of how little in
            units of it not again.
        ends: The results; the objective is that of the first search.
    """
    (target, centre, whitener), (repeats, scale, settled) = problems, again
    room, num = make_room(basis), len(mixing)
    pull, frozen = np.empty(num), np.empty(num)
    single, force = np.empty(num, rest.dtype), np.empty(num, rest.dtype)
    for b in range(len(starts)):
        t, s = target[b], ends.value[b]
        for p in range(num):
            pull[p] = dot(mixing[p], t)
        problem = Target(pull, dot(t, t), centre[b], whitener[b])
        F, code, count = search_one(basis, problem, starts[b], limits, s, room)
        ends.objective[b] = F
        for _ in range(repeats):
            waves(basis.frequency, basis.phase, s, room.cosine, room.sine)
            single[:] = room.cosine
            times_symmetric(rest, single, force)
            for p in range(num):
                frozen[p] = pull[p] - force[p]
            problem = Target(frozen, problem.constant, centre[b], whitener[b])
            start = s.copy()
            F, code, more = search_one(basis, problem, start.reshape(1, -1), limits, s, room)
            count += more
            moved = 0.0
            for i in range(len(s)):
                moved = max(moved, abs(s[i] - start[i]) / scale[i])
            if not moved > settled:
                break
        ends.status[b], ends.iterations[b] = code, count
