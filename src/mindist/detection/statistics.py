r"""Statistics that are large when a dataset does not look simulated, each sharp where others miss.

Of the residual :math:`r = \bar z - \mu(s)` of one kernel, with null residuals
:math:`r_1, \ldots, r_M` of simulations that were held out of the decoder's fit:

.. math::
    T_1 = \log \|r\|^2 - g(s), \quad g(s) \approx \mathbb{E}[\log \|r\|^2 \mid s], \qquad
    T_2 = \log r^\top (S + 0.01\, t\, I)^{-1} r, \quad S = \tfrac1M \textstyle\sum_i r_i r_i^\top ,

with t the top eigenvalue of S. :math:`T_1` sees what is small by the standard of all simulations
and large by that of simulations with the same summary: in SIR it raises the power at epsilon .05
from .12 to .83. :math:`T_2` sees small residuals in directions in which simulations have none: in
Cryo-EM it raises the power at epsilon .3 from .34 to .70. Both are functions of what is not
explained by s; how unusual s itself is, is the third statistic, the distance to the fifth nearest
simulated summary in whitened coordinates.

**Other sample sizes.** Residuals of datasets with N observations are multiplied by
:math:`\sqrt{N / N_0}` to stand for datasets with the simulations' :math:`N_0`, because sampling
noise shrinks as :math:`1/\sqrt N`. The decoder's own error does not shrink: far above :math:`N_0`
it is blown up with the rest, and clean data are rejected too often (docs/method.md, "Detection",
has the table). The spread of s around its mean given theta changes with N as well, and
`SummaryOutlyingness` does not correct for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist.decoders import RidgeDecoder
from mindist.decoders.standardise import Standardiser
from mindist.detection.mahalanobis import ROUNDED, TINY, Mahalanobis, squared_length
from mindist.detection.neighbours import Neighbours
from mindist.schema import INLINE

SCALE_BASIS = 100  # for one smooth number; at 128 the decoder's K numbers are flat (docs/method.md)
NEIGHBOURS = 5  # a single neighbour is noisy, many reach into the bulk
MAX_SUMMARIES = 10_000  # as many null p-values have a standard deviation of .002 at .05
# Of the largest eigenvalue of the summaries' correlations: a direction a thousand times narrower
# than the widest is rounding of redundant summaries.
REDUNDANT = 1e-6
# In standard deviations: nearer than that two summaries may be one, computed in another order. The
# fifth neighbour among 10,000 of one dimension is at 6e-4.
SAME = 1e-5


@dataclass(frozen=True)
class ResidualStatistics:
    r"""What one kernel says about a dataset: scaled and Mahalanobis distance, both as logarithms.

    The scale g is a ridge regression on s. Outside the simulations nothing is known of it, so it is
    evaluated at s clamped to the simulated range of each coordinate, and clamped to the range of
    its values there: an observed summary far away is neither excused nor accused by it.

    Arguments:
        log_scale: g, a decoder of one number.
        low: Smallest simulated value of each summary, `(d_s,)`, float64.
        high: Largest simulated value of each summary, `(d_s,)`, float64.
        span: Smallest and largest value of g at simulated summaries, `(2,)`, float64.
        mahalanobis: The covariance of the residuals.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> s = torch.linspace(-1, 1, 1_000)[:, None]
        >>> noise = torch.randn(1_000, 8, generator=generator, dtype=torch.float64)
        >>> statistics = ResidualStatistics.of(s.exp() * noise, s, generator)
        >>> residual = torch.ones(2, 8)  # the same where the scales are exp(-.5) and exp(.5)
        >>> statistics(residual, torch.tensor([[-0.5], [0.5]])).diff(dim=0).round()
        tensor([[-2., 0.]], dtype=torch.float64)
    """

    NAMES = ("scaled", "mahalanobis")

    log_scale: Annotated[RidgeDecoder, {"K": 1}]
    low: Annotated[Tensor, "d"]
    high: Annotated[Tensor, "d"]
    span: Annotated[Tensor, "2"]
    mahalanobis: Annotated[Mahalanobis, INLINE]

    @classmethod
    def of(cls, residual: Tensor, s: Tensor, generator: torch.Generator) -> ResidualStatistics:
        """Learn scale and covariance from null residuals.

        Arguments:
            residual: Residuals `(M, K)` of simulations held out of the decoder's fit, each in
                turn or all at once.
            s: Their summaries `(M, d_s)`.
            generator: Draws the basis of the regression.
        """
        if residual.dim() != 2 or s.dim() != 2 or len(residual) != len(s) or len(s) < 2:
            raise ValueError(
                "residual, s: expected null residuals (M, K) and summaries (M, d_s) of the same "
                f"simulations, at least 2, got shapes {tuple(residual.shape)} and "
                f"{tuple(s.shape)}."
            )
        s, target = s.double(), _log_length(residual)[:, None]
        log_scale = RidgeDecoder(SCALE_BASIS).fit(s, target, generator=generator)
        fitted = log_scale(s)
        span = torch.stack([fitted.min(), fitted.max()])
        return cls(log_scale, s.amin(0), s.amax(0), span, Mahalanobis.of(residual))

    @torch.no_grad()
    def __call__(self, residual: Tensor, s: Tensor, ratio: float = 1.0) -> Tensor:
        """Both statistics, `(B, 2)`, float64.

        Arguments:
            residual: Residuals `(B, K)` from a decoder that did not see these datasets.
            s: Their summaries `(B, d_s)`.
            ratio: N / N0, observations of these datasets over observations of the simulations.
                Exact for sampling noise only, see the module's docstring.
        """
        self._check(residual, s)
        if not 0 < ratio < math.inf:
            raise ValueError(
                f"ratio: expected a positive number of observations over that of the simulations, "
                f"got {ratio}."
            )
        squares = self.mahalanobis.squares(residual)
        torch.maximum(squares, self._least, out=squares).log_()
        length = squares[0]
        both = torch.stack([length - self._log_scale(s.double()), squares[1]], dim=1)
        if ratio == 1:
            return both
        # Both are quadratic in the residual: a factor sqrt(ratio) adds log(ratio), except to
        # rounding, which does not shrink with N.
        return both + math.log(ratio) * (length > math.log(ROUNDED))[:, None]

    def _log_scale(self, s: Tensor) -> Tensor:
        """g, `(B,)`, at summaries `(B, d_s)`, float64."""
        inside = s.clamp(self.low, self.high)
        return self.log_scale(inside).clamp(self.span[0], self.span[1])[:, 0]

    @cached_property
    def _least(self) -> Tensor:
        """What squared lengths and squared Mahalanobis lengths count as at least, `(2, 1)`."""
        least = [[ROUNDED], [TINY]]
        return torch.tensor(least, dtype=torch.float64, device=self.span.device)

    @torch.no_grad()
    def leave_one_out(self, residual: Tensor, s: Tensor) -> Tensor:
        """Statistics `(M, 2)` of the simulations that `of` saw, each left out of scale and S.

        The null for `CombinedTest`: a simulation that pulled the scale towards itself looks more
        ordinary than fresh data do. The regression's own formula does it for g, that of
        `mindist.detection.mahalanobis` for S.

        Available after `of`, not after loading: the regression's matrices are not stored.

        Arguments:
            residual: The residuals that `of` saw, `(M, K)`.
            s: The summaries that `of` saw, `(M, d_s)`.
        """
        self._check(residual, s)
        log_distance = _log_length(residual)
        left_out = self.log_scale.leave_one_out_residuals(s.double(), log_distance[:, None])
        scale = (log_distance - left_out[:, 0]).clamp(self.span[0], self.span[1])
        columns = [log_distance - scale, self.mahalanobis.leave_one_out(residual)]
        return torch.stack(columns, dim=1)

    def _check(self, residual: Tensor, s: Tensor) -> None:
        K, d_s = len(self.mahalanobis.whitener), len(self.low)
        if residual.shape != (len(s), K) or s.shape != (len(residual), d_s):
            raise ValueError(
                f"residual, s: expected shapes (B, {K}) and (B, {d_s}), as in the null, got "
                f"{tuple(residual.shape)} and {tuple(s.shape)}."
            )


@dataclass(frozen=True)
class SummaryOutlyingness:
    """How far summaries lie from simulated ones: the distance to the fifth nearest of them.

    Summaries are standardised and then whitened, so that units and correlations do not matter. A
    summary that never varies is ignored; of redundant ones, directions in which simulations
    have next to no spread are damped rather than divided by zero.

    Arguments:
        points: Whitened simulated summaries `(m, d_s)`, float64, m at most 10,000.
        index: Which of the simulations they are, `(m,)`, increasing.
        centre: Means of the summaries `(d_s,)`, float64.
        whitener: `(d_s, d_s)`, float64; `(s - centre) whitener` are the whitened coordinates.

    Example:
        >>> s = torch.arange(100.0)[:, None]
        >>> outlyingness = SummaryOutlyingness.of(s, torch.Generator())
        >>> spread = s.double().std(unbiased=False)
        >>> outlyingness(torch.tensor([[50.0], [109.0]])) * spread  # to 48 or 52, to 95
        tensor([ 2.0000, 14.0000], dtype=torch.float64)
        >>> outlyingness.leave_one_out()[[50, 99]] * spread  # to 47 or 53, to 94
        tensor([3.0000, 5.0000], dtype=torch.float64)
    """

    NAME = "summary"

    points: Annotated[Tensor, "m d"]
    index: Annotated[Tensor, "int m"]
    centre: Annotated[Tensor, "d"]
    whitener: Annotated[Tensor, "d d"]

    @classmethod
    def of(cls, s: Tensor, generator: torch.Generator) -> SummaryOutlyingness:
        """From simulated summaries `(M, d_s)`, of which the generator chooses at most 10,000."""
        if s.dim() != 2 or len(s) < 2:
            raise ValueError(
                f"s: expected at least 2 simulated summaries, (M, d_s), got shape {tuple(s.shape)}."
            )
        standardise, s = Standardiser.of(s), s.double()
        standardised = standardise(s)
        values, vectors = torch.linalg.eigh(standardised.T @ standardised / len(s))
        damped = values.clamp(min=0) + REDUNDANT * values[-1]
        rotation = vectors / damped.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        # As it is stored: products round alike after loading.
        whitener = (rotation / standardise.scale[:, None]).contiguous()
        chosen = torch.randperm(len(s), generator=generator)[:MAX_SUMMARIES].sort().values
        index = chosen.to(s.device)
        points = (s[index] - standardise.centre) @ whitener
        return cls(points, index, standardise.centre, whitener)

    def __call__(self, s: Tensor) -> Tensor:
        """Distances `(B,)`, float64, of summaries `(B, d_s)` that are not among the simulated."""
        if s.dim() != 2 or s.shape[1] != len(self.centre):
            raise ValueError(
                f"s: expected summaries of shape (B, {len(self.centre)}), as simulated, got "
                f"{tuple(s.shape)}."
            )
        whitened = (s.double() - self.centre) @ self.whitener
        return self._distance(whitened, self._rank)

    def leave_one_out(self) -> Tensor:
        """Distances `(m,)` of the simulated summaries themselves, in the order of `index`."""
        return self._distance(self.points, 1 + self._rank)  # itself is the first

    def _distance(self, whitened: Tensor, rank: int) -> Tensor:
        distance = self._neighbours.distance(whitened, rank)
        return torch.where(distance > SAME, distance, 0.0)

    @property
    def _rank(self) -> int:
        return min(NEIGHBOURS, len(self.points) - 1)

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.points)


def _log_length(residual: Tensor) -> Tensor:
    """Logarithms `(B,)`, float64, of the squared lengths of residuals `(B, K)`, or of rounding."""
    return squared_length(residual).clamp(min=ROUNDED).log()
