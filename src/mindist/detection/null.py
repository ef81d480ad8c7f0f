r"""Null distances of the paper's test, and several statistics as one test of exact size.

**Null distances**, of held-out simulations. The paper's statistic is the squared distance :math:`D
= \|\mu(s) - \bar z\|^2` of a dataset's mean embedding from the decoder's at its own summary
(appendix "Detecting Model Misspecification"). With n null distances, k of which are at least as
large as the observed one, the p-value is

.. math:: p = \frac{1 + k}{n + 1} ,

which is never 0 and, for exchangeable simulations and a well-specified model, has
:math:`\Pr(p \le \alpha) \le \alpha` exactly.

**Other sample sizes.** Split a residual into the sampling noise of N observations, which shrinks
as :math:`1/\sqrt N`, and the decoder's own error :math:`\delta(s)`, which does not:

.. math:: \mu(s) - \bar z = \delta(s) - \frac{\nu}{\sqrt N} .

A simulation with :math:`N_0` observations then stands for one with N observations at distance

.. math::
    D(N) = \frac{N_0}{N} A + \sqrt{\frac{N_0}{N}} B + C, \qquad
    A = \frac{\|\nu\|^2}{N_0}, \quad B = -\frac{2 \langle \nu, \delta \rangle}{\sqrt{N_0}}, \quad
    C = \|\delta\|^2 .

At :math:`N = N_0` this is the held-out distance itself. Elsewhere it needs :math:`\delta(s)`: the
difference between the decoder and a better regression of :math:`\bar z` on s (the closed-form one);
for the closed-form decoder itself :math:`B = C = 0` and the null is rescaled by :math:`N_0 / N`.

**One test of several statistics**: no statistic is the sharpest everywhere, and a correction by
Bonferroni wastes level where they are correlated. So the smallest p-value is itself ranked. All n +
1 datasets, the observed one 0 and the simulations, are ranked statistic by statistic, and then by
their best rank:

.. math::
    R_{jt} = \#\{k \in 0..n : T_{kt} \ge T_{jt}\}, \qquad
    a_j = \min_t R_{jt}, \qquad
    p = \frac{\#\{j \in 0..n : a_j \le a_0\}}{n + 1} .

If the n + 1 are exchangeable, :math:`\Pr(p \le \alpha) \le \alpha` for every n, T and dependence
between the statistics: a clean dataset drawn as the simulations were, with the same N, is, because
the simulations of the null were held out of what judges them. That is on average over the prior;
statistics that are conditional on the summary make it hold in its parts too.

References:
    Westfall and Young, Resampling-Based Multiple Testing, Wiley 1993 (the min-p test).
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mindist import checks

# The squared length of a residual that float32 may have made: 3e-13 for embeddings that are a
# function of the summary. Residuals of N observations are about 1/N.
ROUNDED = 1e-11
BLOCK_ELEMENTS = 2**22  # of statistics compared at once


@dataclass(frozen=True)
class NullDistances:
    """Null distances of n held-out simulations, for any number of observations.

    Example:
        >>> null = NullDistances.of(torch.arange(1.0, 20.0), num_obs=100)
        >>> null.p_value(torch.tensor([0.0, 10.0, 100.0]), num_obs=100)
        tensor([1.0000, 0.5500, 0.0500], dtype=torch.float64)
        >>> null.threshold(0.05, num_obs=100), null.threshold(0.05, num_obs=50)
        (19.0, 38.0)
    """

    noise: Annotated[Tensor, "n"]  # A, the squared length of the sampling noise, `(n,)`, float64
    cross: Annotated[Tensor, "n"]  # B, `(n,)`, float64
    error: Annotated[Tensor, "n"]  # C, the squared error of the decoder, `(n,)`, float64
    num_obs: Annotated[int, range(1, 2**31)]  # N0, the number of observations of the simulations

    @classmethod
    def of(cls, distance: Tensor, num_obs: int) -> "NullDistances":
        """From squared distances `(n,)` to a decoder without an error of its own."""
        distance = distance.double()
        return cls(distance, distance.new_zeros(len(distance)), 0 * distance, num_obs)

    @classmethod
    def split(cls, noise: Tensor, error: Tensor, num_obs: int) -> "NullDistances":
        """From the two parts of the residuals, sampling noise and decoder error, `(n, K)`."""
        noise, error = noise.double(), error.double()
        cross = 2 * (noise * error).sum(-1)
        return cls(noise.square().sum(-1), cross, error.square().sum(-1), num_obs)

    def distances(self, num_obs: int) -> Tensor:
        """Sorted null distances `(n,)` of datasets with `num_obs` observations.

        None is below what rounding may have made: ranks of that say nothing.
        """
        ratio = self.num_obs / num_obs
        distance = ratio * self.noise + math.sqrt(ratio) * self.cross + self.error
        return distance.sort().values.clamp(min=ROUNDED)

    def mean(self, num_obs: int) -> float:
        """Return the mean null distance of datasets with `num_obs` observations."""
        return float(self.distances(num_obs).mean())

    def p_value(self, distance: Tensor, num_obs: int) -> Tensor:
        """p-values `(B,)` of squared distances `(B,)` of datasets with `num_obs` observations."""
        null = self.distances(num_obs)
        below = torch.searchsorted(null, distance.double().clamp(min=ROUNDED))
        return (1 + len(null) - below).double() / (len(null) + 1)

    def threshold(self, alpha: float, num_obs: int) -> float:
        """Return the squared distance above which, and only above which, p is at most alpha."""
        num = len(self.noise)
        allowed = math.floor(alpha * (num + 1) + 1e-9) - 1
        if allowed < 0:
            return math.inf
        return float(self.distances(num_obs)[num - 1 - allowed])


@dataclass(frozen=True)
class CombinedTest:
    """The smallest of several p-values as one p-value, whose size is at most alpha.

    Example:
        >>> null = torch.arange(19.0)[:, None].repeat(1, 2)
        >>> test = CombinedTest(null, ("distance", "summary"))
        >>> x = torch.tensor([[20.0, 20.0], [20.0, 0.0], [3.0, 17.5]])
        >>> test.p_values(x)
        tensor([[0.0500, 0.0500],
                [0.0500, 1.0000],
                [0.8500, 0.1000]], dtype=torch.float64)
        >>> test.p_value(x)
        tensor([0.0500, 0.1000, 0.1500], dtype=torch.float64)
    """

    # statistics of simulations `(n, T)`, large where a dataset does not look simulated
    null: Annotated[Tensor, "q T"]
    names: tuple[str, ...]  # what the T statistics are called

    def __post_init__(self) -> None:
        _checked(self.null, self.names, "null")

    def p_values(self, statistics: Tensor) -> Tensor:
        """p-values `(B, T)` of each statistic alone, of observed statistics `(B, T)`."""
        ranks = self._ranks(_checked(statistics, self.names, "statistics"))
        return ranks.double() / (1 + len(self.null))

    def p_value(self, statistics: Tensor) -> Tensor:
        """Combined p-values `(B,)` of observed statistics `(B, T)`."""
        statistics, null = _checked(statistics, self.names, "statistics"), self.null.double()
        alone, parts = self._ranks(null) - 1, []  # of simulations among themselves
        for rows in statistics.split(max(1, BLOCK_ELEMENTS // null.numel())):
            best = self._ranks(rows).amin(1)
            pooled = (alone + (rows[:, None] >= null).long()).amin(2)
            parts.append((pooled <= best[:, None]).sum(1))
        count = torch.cat(parts) if parts else statistics.new_zeros(0)
        return (1 + count).double() / (1 + len(null))

    def _ranks(self, statistics: Tensor) -> Tensor:
        """Return 1 plus the number of simulations at least as large, `(B, T)`."""
        ordered = self.null.double().T.contiguous().sort(dim=1).values
        below = torch.searchsorted(ordered, statistics.T.contiguous())
        return (1 + len(self.null) - below).T


def _checked(statistics: Tensor, names: tuple[str, ...], argument: str) -> Tensor:
    """Return statistics `(B, T)`, float64, without NaN, which has no rank; of a null some."""
    null, shape = argument == "null", tuple(statistics.shape)
    if len(shape) != 2 or shape[1] != len(names) or (null and not shape[0]):
        columns = f"one column for each of {', '.join(map(repr, names))}"
        said = f"shape ({'n' if null else 'B'}, {len(names)}), {columns}"
        then = f"One dataset is {argument}[None], a batch of one."
        raise checks.wrong(argument, said, f"shape {shape}", then)
    bad = statistics.isnan()
    if bad.any():
        row, column = (int(i) for i in bad.nonzero()[0])
        got = f"{int(bad.sum())} NaN (the first is {names[column]!r} of dataset {row})"
        raise checks.wrong(argument, "numbers", got, "Check that dataset and its summary.")
    return statistics.double()
