r"""The exponent of a power law, from sizes and what they cost.

.. math:: t(n) \approx c\, n^p \quad \Longrightarrow \quad
    \log t = \log c + p \log n , \text{ by least squares.}

A step with fixed costs, :math:`t(n) = a + b\,n`, has an exponent near 0 for small n that says
nothing. The fit therefore starts at the first size that costs at least `GROWN` times as much as
the smallest does, if three sizes are left, and else at the third from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROWN = 3.0
FEWEST = 3


@dataclass(frozen=True)
class Slope:
    """A fitted power law.

    Arguments:
        exponent: p.
        first: The smallest size it was fitted to.
    """

    exponent: float
    first: int


def fit_slope(sizes: Sequence[int], costs: Sequence[float]) -> Slope:
    """The exponent of costs against sizes, over the upper sizes.

    Arguments:
        sizes: In ascending order, at least two.
        costs: Of each; what is not positive counts as very small.

    Example:
        >>> fit_slope([1, 10, 100, 1000], [1.0, 10.0, 100.0, 1000.0])
        Slope(exponent=1.0, first=10)
    """
    values = np.maximum(np.asarray(costs, dtype=float), 1e-9)
    grown = np.flatnonzero(values >= GROWN * values[0])
    start = max(0, len(sizes) - FEWEST)
    if len(grown):
        start = min(start, int(grown[0]))
    exponent = np.polyfit(np.log(sizes[start:]), np.log(values[start:]), 1)[0]
    return Slope(round(float(exponent), 6), sizes[start])


__all__ = ["Slope", "fit_slope"]
