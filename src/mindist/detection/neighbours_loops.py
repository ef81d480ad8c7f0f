"""The compiled loops of `mindist.detection.neighbours`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.compiled import jit_literal


@jit_literal
def add_squares(coordinates: Any, at: Any, total: Any) -> None:
    """Add the squared differences of coordinates `(m,)` from a number to sums `(m,)`."""
    for m in range(len(total)):
        difference = coordinates[m] - at
        total[m] += difference * difference


@jit_literal
def squared_distances(points: Any, at: Any, total: Any) -> None:
    """From one point `(d,)` to others `(d, m)`, summed in the order of SciPy's trees.

    That is four sums side by side, of every fourth coordinate, and what is left over one by one.
    """
    whole = len(at) // 4 * 4
    total[:] = 0.0
    for first in range(4 if whole else 0):
        part = np.zeros(len(total))
        for j in range(first, whole, 4):
            add_squares(points[j], at[j], part)
        for m in range(len(total)):
            total[m] += part[m]
    for j in range(whole, len(at)):
        add_squares(points[j], at[j], total)


@jit_literal
def distances(points: Any, at: Any, rank: int, out: Any) -> Any:
    """Distances `(B,)` from `(B, d)` to the rank-th nearest of points `(d, m)`, one by one.

    Whether all numbers are finite is returned; the distances mean nothing if they are not.
    """
    nearest, squared = np.empty(rank), np.empty(points.shape[1])
    for b in range(len(at)):
        squared_distances(points, at[b], squared)
        nearest[:] = np.inf
        for m in range(len(squared)):
            if squared[m] < nearest[-1]:
                k = rank - 1
                while k > 0 and nearest[k - 1] > squared[m]:
                    nearest[k] = nearest[k - 1]
                    k -= 1
                nearest[k] = squared[m]
        out[b] = np.sqrt(nearest[-1])
    return np.isfinite(at).all()
