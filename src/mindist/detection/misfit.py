r"""How far residuals are from the model's at a summary.

.. math:: T = n \, r^\top (C + 0.2\, \lambda_1 I)^{-1} r , \qquad
    r = \tfrac1n \textstyle\sum_i w_i z(\rho(x_i, s)) - \mathbb{E}[z \mid s] ,

a squared distance of mean random features z, the expected ones regressed on the summary, whitened
as far as their variances on clean data are above a fifth of the largest. What is returned is
:math:`\log T - \mathbb{E}[\log T \mid s]`: about 0 for clean data, at any summary.

It is measured twice, because neither way sees everything: with all numbers of a residual *together*
(frequencies in all directions, at two widths), and with each number, and their size, *alone*
(frequencies along the axes), which sees one odd number among twenty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mindist.features.kernel import squared_distances
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
    """The log distance of residuals from simulated ones, less what is expected of clean data.

    Arguments:
        frequency: Of the features: of q numbers `(q, F)`, or of these and their size.
        expected: The mean features of clean data, given s.
        whitener: The root of the inverse of their damped covariance `(2 F, 2 F)`.
        typical: The expected log distance of clean data, given s.
    """

    frequency: Annotated[Tensor, "V F"]
    expected: Regression
    whitener: Annotated[Tensor, "P P"]
    typical: Regression

    @classmethod
    def of(cls, rho: Tensor, s: Tensor, frequency: Tensor) -> tuple[Distance, Tensor]:
        """Learn from simulated residuals `(M, N, q)` and summaries `(M, d_s)`.

        Returns:
            The distance, and that of each simulation, left out of the regressions, `(M,)`.
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
        typical, usual = Regression.of(s, log_distance[:, None], TYPICAL_FEATURES)
        return cls(frequency, expected, whitener, typical), log_distance - usual[:, 0]

    def __call__(self, rho: Tensor, weights: Tensor, s: Tensor) -> Tensor:
        """Return distances `(B,)` of weighted residuals `(B, N, q)` at summaries `(B, d_s)`."""
        mean = _mean_features(rho, weights, self.frequency).double()
        squared = ((mean - self.expected(s)) @ self.whitener).square().sum(1).clamp(min=ROUNDED)
        return (squared * weights.sum(1).clamp(min=1)).log() - self.typical(s)[:, 0]


@dataclass(frozen=True)
class Misfit:
    """Both distances.

    Arguments:
        together: With all numbers of a residual.
        alone: With each of them.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> s = torch.randn(300, 1, generator=generator).double()
        >>> rho = torch.randn(300, 50, 2, generator=generator)
        >>> misfit, null = Misfit.of(rho, s)
        >>> odd = misfit(rho[:1].clone().clamp(max=0.5), torch.ones(1, 50), s[:1])
        >>> null.shape, bool((odd > null.amax(0)).all())
        (torch.Size([300, 2]), True)
    """

    together: Distance
    alone: Distance

    @classmethod
    def of(cls, rho: Tensor, s: Tensor) -> tuple[Misfit, Tensor]:
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
    median, q = typical_distance(rho, generator), rho.shape[2]
    normal = torch.randn(q, DIRECTIONS, generator=generator).to(rho)
    return torch.cat([normal / narrow_width(median, q), normal / median], 1)


def _axes(rho: Tensor) -> Tensor:
    """Return frequencies `(V, F)` along the axes: evenly spread quantiles of a normal variable."""
    V = numbers(rho[:1, :1]).shape[2]
    each = max(LEAST_ALONE, min(MOST_ALONE, ALONE // V))
    level = 0.5 + 0.5 * (torch.arange(each, dtype=torch.float64) + 0.5) / each
    return torch.kron(torch.eye(V), torch.special.ndtri(level)[None] / WIDTH).to(rho)


def typical_distance(rho: Tensor, generator: torch.Generator) -> float:
    """Return the median distance between simulated residuals `(M, N, q)`; 1 where it is 0."""
    rows = rho.flatten(0, 1)
    some = rows[torch.randperm(len(rows), generator=generator)[:1_000].to(rho.device)]
    distance = squared_distances(some, some, unit=1.0)
    return float(distance[torch.ones_like(distance).triu(1) > 0].median().sqrt()) or 1.0


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
