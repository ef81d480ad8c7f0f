r"""What a dataset is tested by, at its own summary: its misfit, and where that summary lies.

**Misfit**: how far residuals are from the model's at a summary,

.. math:: T = n \, r^\top (C + 0.2\, \lambda_1 I)^{-1} r , \qquad
    r = \tfrac1n \textstyle\sum_i w_i z(\rho(x_i, s)) - \mathbb{E}[z \mid s] ,

a squared distance of mean random features z, the expected ones regressed on the summary, whitened
as far as their variances on clean data are above a fifth of the largest. What is returned is
:math:`\log T - \mathbb{E}[\log T \mid s]`: about 0 for clean data, at any summary.

It is measured twice, because neither way sees everything: with all numbers of a residual *together*
(frequencies in all directions, at two widths), and with each number, and their size, *alone*
(frequencies along the axes), which sees one odd number among twenty.

**Outlyingness**: how far a summary lies from simulated ones, by the standard of its neighbourhood,

.. math:: \log \frac{d_k(s)}{\frac1k \sum_{i \in N_k(s)} d_k(s_i)}

with the distance :math:`d_k` to the k-th nearest simulated summary, in whitened coordinates, and
the k nearest ones :math:`N_k`: the local outlier factor. At the edge of the prior simulated
summaries are thin, and those of clean data there are no outliers; off the surface that simulated
summaries fill, those next to them are dense.

**Outside**: whether one summary, given the others by a linear regression, is larger or smaller than
in any simulation. It sees a variance of 1.7 where simulated ones are 1, with an sd of .14, between
.6 and 1.55: neighbours do not, because there is next to nothing between them.

References:
    Breunig, Kriegel, Ng and Sander, LOF: identifying density-based local outliers, SIGMOD 2000.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist import checks
from mindist.decoders.ridge import Standardiser
from mindist.features.kernel import median_distance
from mindist.features.residuals import Regression, numbers

WIDTH = 0.4  # of the narrow kernel, in median distances between residuals over the root of q
DAMPED = 0.2  # of the largest variance of mean features, added to all of them
DIRECTIONS = 64  # of each of two widths
ALONE, MOST_ALONE, LEAST_ALONE = 64, 16, 2  # frequencies in all, and of each number
FEATURES, TYPICAL_FEATURES = 100, 50  # of the regressions on the summary
ROUNDED = 1e-9  # a squared distance that float32 may have made
BLOCK = 64  # datasets


@dataclass(frozen=True)
class Distance:
    """The log distance of residuals from simulated ones, less what is expected of clean data."""

    # of the features: of q numbers `(q, F)`, or of these and their size
    frequency: Annotated[Tensor, "V F"]
    expected: Regression  # the mean features of clean data, given s
    # the root of the inverse of their damped covariance `(2 F, 2 F)`
    whitener: Annotated[Tensor, "P P"]
    typical: Regression  # the expected log distance of clean data, given s

    @classmethod
    def of(cls, rho: Tensor, s: Tensor, frequency: Tensor) -> "tuple[Distance, Tensor]":
        """Learn from simulated residuals `(M, N, q)` at `(M, d_s)`; return also theirs, `(M,)`.

        Each simulation is left out of the regressions that judge it.
        """
        M, N = rho.shape[:2]
        parts = [_mean_features(rows, all_of(rows), frequency) for rows in rho.split(BLOCK)]
        mean = torch.cat(parts).double()
        expected, left_out = Regression.of(s, mean, FEATURES)
        off = mean - left_out
        values, vectors = torch.linalg.eigh(N * off.T @ off / M)
        whitener = vectors / (values.clamp(min=0) + DAMPED * values[-1]).clamp(min=1e-30).sqrt()
        squared = (off @ whitener).square().sum(1).clamp(min=ROUNDED)
        log_distance = (N * squared).log()
        # Off simulated summaries a large expected distance would hide an odd one.
        typical, usual = Regression.of(s, log_distance[:, None], TYPICAL_FEATURES, wider=0.0)
        return cls(frequency, expected, whitener.contiguous(), typical), log_distance - usual[:, 0]

    def __call__(self, rho: Tensor, weights: Tensor, s: Tensor) -> Tensor:
        """Return distances `(B,)` of weighted residuals `(B, N, q)` at summaries `(B, d_s)`."""
        mean = _mean_features(rho, weights, self.frequency).double()
        squared = ((mean - self.expected(s)) @ self.whitener).square().sum(1).clamp(min=ROUNDED)
        return (squared * weights.sum(1).clamp(min=1)).log() - self.typical(s)[:, 0]


@dataclass(frozen=True)
class Misfit:
    """Both distances.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> s = torch.randn(300, 1, generator=generator).double()
        >>> rho = torch.randn(300, 50, 2, generator=generator)
        >>> misfit, null = Misfit.of(rho, s)
        >>> odd = misfit(rho[:1].clone().clamp(max=0.5), torch.ones(1, 50), s[:1])
        >>> null.shape, bool((odd > null.amax(0)).all())
        (torch.Size([300, 2]), True)
    """

    together: Distance  # with all numbers of a residual
    alone: Distance  # with each of them

    @classmethod
    def of(cls, rho: Tensor, s: Tensor) -> "tuple[Misfit, Tensor]":
        """Learn from simulated residuals; return also theirs, each left out, `(M, 2)`."""
        generator = torch.Generator().manual_seed(0)
        made = [Distance.of(rho, s, kind) for kind in (_directions(rho, generator), _axes(rho))]
        return cls(*(distance for distance, _ in made)), torch.stack([own for _, own in made], 1)

    def __call__(self, rho: Tensor, weights: Tensor, s: Tensor) -> Tensor:
        """Return both distances `(B, 2)` of weighted residuals `(B, N, q)` at `(B, d_s)`."""
        return torch.stack([each(rho, weights, s) for each in (self.together, self.alone)], 1)


def all_of(rho: Tensor) -> Tensor:
    """Return weights of 1 `(B, N)` for residuals `(B, N, q)`."""
    return rho.new_ones(rho.shape[:2])


def mean_of(distances: Tensor) -> Tensor:
    """Return the log of the mean of both distances `(B, 2)`, which are logs."""
    return distances.logsumexp(1) - math.log(2)


def _directions(rho: Tensor, generator: torch.Generator) -> Tensor:
    """Draw frequencies `(q, F)` in all directions, for residuals `(M, N, q)`."""
    median, q = median_distance(rho, generator) or 1.0, rho.shape[2]
    normal = torch.randn(q, DIRECTIONS, generator=generator).to(rho)
    return torch.cat([normal / narrow_width(median, q), normal / median], 1)


def _axes(rho: Tensor) -> Tensor:
    """Return frequencies `(V, F)` along the axes: evenly spread quantiles of a normal variable."""
    V = numbers(rho[:1, :1]).shape[2]
    each = max(LEAST_ALONE, min(MOST_ALONE, ALONE // V))
    level = 0.5 + 0.5 * (torch.arange(each, dtype=torch.float64) + 0.5) / each
    return torch.kron(torch.eye(V), torch.special.ndtri(level)[None] / WIDTH).to(rho)


def narrow_width(median: float, q: int) -> float:
    """Return the width of the narrow kernel for residuals of q numbers."""
    return WIDTH * median / math.sqrt(min(q, 4))


def _mean_features(rho: Tensor, weights: Tensor, frequency: Tensor) -> Tensor:
    """Return weighted mean features `(B, 2 F)` of residuals `(B, N, q)`."""
    seen = rho if rho.shape[2] == len(frequency) else numbers(rho)
    angle = seen @ frequency
    share = (weights / weights.sum(1, keepdim=True).clamp(min=1))[:, None]
    both = torch.cat([(share @ angle.cos())[:, 0], (share @ angle.sin())[:, 0]], 1)
    return both * math.sqrt(1 / frequency.shape[1])


NEIGHBOURS = 5  # a single neighbour is noisy, many reach into the bulk
MAX_SUMMARIES = 10_000  # among themselves a second on one core, in 2 dimensions or in 16
BLOCK_ELEMENTS = 2**22  # 32 MB of distances
# Of the largest eigenvalue of the summaries' correlations: a direction a thousand times narrower
# than the widest is rounding of redundant summaries.
REDUNDANT = 1e-6
# In standard deviations: nearer than that two summaries may be one, computed in another order. The
# fifth neighbour among 10,000 of one dimension is at 6e-4.
SAME = 1e-5
MARGIN = 0.05  # of the range of simulated summaries, by which one has to be outside of it


@dataclass(frozen=True)
class SummaryOutlyingness:
    """The distance to the fifth nearest simulated summary, over that of the nearest ones.

    Summaries are standardised and then whitened, so that units and correlations do not matter. A
    summary that never varies is ignored; of redundant ones, directions in which simulations
    have next to no spread are damped rather than divided by zero.

    Example:
        >>> s = torch.arange(100.0)[:, None]
        >>> outlyingness = SummaryOutlyingness.of(s, torch.Generator())
        >>> outlyingness(torch.tensor([[50.25], [109.25]])).exp().round(decimals=2)
        tensor([0.7500, 3.9600], dtype=torch.float64)
    """

    # whitened simulated summaries `(m, d_s)`, float64, m at most 10,000
    points: Annotated[Tensor, "m d"]
    reach: Annotated[Tensor, "m"]  # the distance of each to its own fifth neighbour `(m,)`
    floor: float  # distances below which nothing is told apart
    centre: Annotated[Tensor, "d"]  # means of the summaries `(d_s,)`, float64
    # `(d_s, d_s)`, float64; `(s - centre) whitener` are the whitened coordinates
    whitener: Annotated[Tensor, "d d"]

    @classmethod
    def of(
        cls, s: Tensor, generator: torch.Generator, noise: Tensor | None = None
    ) -> "SummaryOutlyingness":
        """From simulated summaries `(M, d_s)`, of which the generator chooses at most 10,000.

        Where their sampling covariance `(d_s, d_s)` is given, two standard deviations of it are the
        floor: at the prior's edge, and on a lattice of counts, neighbours are farther than those.
        """
        if s.dim() != 2 or len(s) < 2:
            said = "at least 2 simulated summaries, (M, d_s)"
            raise checks.wrong("s", said, f"shape {tuple(s.shape)}")
        standardise, s = Standardiser.of(s), s.double()
        standardised = standardise(s)
        values, vectors = torch.linalg.eigh(standardised.T @ standardised / len(s))
        damped = values.clamp(min=0) + REDUNDANT * values[-1]
        rotation = vectors / damped.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        # As it is stored: products round alike after loading.
        whitener = (rotation / standardise.scale[:, None]).contiguous()
        chosen = torch.randperm(len(s), generator=generator)[:MAX_SUMMARIES]
        points = (s[chosen.to(s.device)] - standardise.centre) @ whitener
        floor = SAME
        if noise is not None:
            variance = (whitener.T @ noise @ whitener).diagonal().mean()
            floor = max(SAME, 2 * float(variance.clamp(min=0).sqrt()))
        made = cls(points, points[:, 0], floor, standardise.centre, whitener)
        return replace(made, reach=made._nearest(points)[0][:, -1])

    def __call__(self, s: Tensor, noise: float = 1.0) -> Tensor:
        """Return the statistic `(B,)`, float64, of summaries `(B, d_s)`, so many times as noisy.

        A summary that is itself among the simulated ones is its own nearest neighbour, and is left
        out of its neighbourhood.
        """
        if s.dim() != 2 or s.shape[1] != len(self.centre):
            said = f"summaries of shape (B, {len(self.centre)}), as simulated"
            raise checks.wrong("s", said, tuple(s.shape))
        whitened = (s.double() - self.centre) @ self.whitener
        distance, near = self._nearest(whitened)
        reach, own = self.reach[near], distance[:, 0] <= SAME
        distance = torch.where(own, distance[:, -1], distance[:, -2])
        local = torch.where(own, reach[:, 1:].mean(1), reach[:, :-1].mean(1))
        floor = noise * self.floor
        return (distance.clamp(min=floor) / local.clamp(min=floor)).log()

    def outside(self, s: Tensor, noise: float = 1.0) -> Tensor:
        """Return how far each summary, given the others, lies outside of simulated ones, `(B,)`.

        As a share of their range beyond a twentieth of it, in residuals of linear regressions.
        """
        (low, high), s = self._simulated, s.double() - self.centre
        residual = self._residual(s @ self.whitener) / noise
        off = torch.maximum(residual - high, low - residual) / (high - low).clamp(min=SAME)
        return (off.amax(1) - MARGIN).clamp(min=0)

    @cached_property
    def _simulated(self) -> tuple[Tensor, Tensor]:
        """The least and the largest residuals of simulated summaries, `(d_s,)` each."""
        return torch.aminmax(self._residual(self.points), dim=0)

    def _residual(self, whitened: Tensor) -> Tensor:
        """Return residuals `(B, d_s)` of summaries given the others: P s for the precision P."""
        return whitened @ self.whitener.T / self.whitener.square().sum(1).sqrt().clamp(min=1e-300)

    def _nearest(self, whitened: Tensor) -> tuple[Tensor, Tensor]:
        """Return distances `(B, k + 1)` to the nearest points, increasing, and their indices."""
        rank = 1 + min(NEIGHBOURS, len(self.points) - 1)
        # Without the shortcut by inner products, which makes a distance of 0 one of 1e-8.
        mode, parts = "donot_use_mm_for_euclid_dist", []
        for block in whitened.split(max(1, BLOCK_ELEMENTS // len(self.points))):
            distance = torch.cdist(block, self.points, compute_mode=mode)
            parts.append(distance.topk(rank, largest=False))
        return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])
