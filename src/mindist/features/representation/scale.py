"""Typical sizes and spreads of simulated values, and the range to clamp them to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.features.bandwidth import power_of_two

MAX_OBSERVATIONS = 5_000  # for medians
ROUNDING = 1e-7  # of float32: a smaller relative spread is that of a constant
# Of the typical square, below which a logarithm would be of rounding errors: float32 has them at
# 1e-14, for instance at the frequencies that a smooth image lacks.
FLOOR = 1e-8
SQUARABLE = 1e-12  # the square, times a floor of 1e-8, is still far from the least float32


@dataclass(frozen=True)
class Range:
    r"""Clamp each coordinate to its simulated range, widened by half of its width on both sides.

    Far from everything simulated a kernel is 0, but its estimate by random features is noise of
    size :math:`1/\sqrt{K}`: gross outliers (1e6 among numbers about 1) would look close to some
    simulations by luck. Clamped they stay outside of the simulations, at a distance that the
    features resolve. Inside it is the identity: the simulations it was fitted to stay as they are.

    A coordinate that never varied in the simulations, but does in the data, shows that the model is
    wrong. Clamping it to its one value would hide this, so it gets the median width of the
    coordinates that vary (1 if none does): a departure is as visible there as in any other.

    Arguments:
        lo: Lower ends `(D,)`, float64.
        hi: Upper ends `(D,)`, float64.

    Example:
        >>> clamp = Range.of(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
        >>> clamp(torch.tensor([[1.5, 5.5], [1e6, -1e6]]))
        tensor([[1.5000, 5.5000],
                [3.0000, 3.0000]])
    """

    lo: Tensor
    hi: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Range:
        """The widened range of simulated values `(n, D)`."""
        lo, hi = torch.aminmax(values.double(), dim=0)
        middle, width = (lo + hi) / 2, filled(hi - lo, torch.maximum(lo.abs(), hi.abs()))
        return cls(middle - width, middle + width)

    def __call__(self, values: Tensor) -> Tensor:
        """Clamped values `(..., D)`, in their precision."""
        return values.clamp(self.lo.to(values.dtype), self.hi.to(values.dtype))


UNLIMITED = Range(torch.tensor([-torch.inf]), torch.tensor([torch.inf]))


def some(rows: Tensor, limit: int) -> Tensor:
    """At most `limit` of the rows, evenly over datasets."""
    return rows[:: -(-len(rows) // limit)]


def typical(values: Tensor) -> Tensor:
    """The median of values of at least 0; their mean if that is 0, and 1 if that is 0 too."""
    median, mean = values.median().double(), values.double().mean()
    return torch.where(median > 0, median, torch.where(mean > 0, mean, 1.0))


def filled(spread: Tensor, size: Tensor) -> Tensor:
    """The spread `(D,)` of coordinates of a size, the median of the others if it is 0, or 1."""
    varies = spread > ROUNDING * size
    return torch.where(varies, spread, spread[varies].median() if varies.any() else 1.0)


def unit_of(size: Tensor) -> float:
    """What to divide numbers of a size by before they are squared in float32.

    1 unless their squares would come near the ends of its range; else a power of two, by which a
    division is exact.

    Example:
        >>> unit_of(torch.tensor(5.0)), unit_of(torch.tensor(1e-30)) == 2.0**-100
        (1.0, True)
    """
    value = float(size)
    return 1.0 if SQUARABLE < value < 1 / SQUARABLE else power_of_two(value)


def moments(rows: Tensor) -> dict[str, Tensor]:
    """Means and standard deviations `(D,)` of rows, without a copy of these in float64."""
    scale, centre = (moment.double() for moment in torch.std_mean(rows, dim=0, correction=0))
    return {"centre": centre, "scale": filled(scale, centre.abs())}
