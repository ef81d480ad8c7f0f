r"""How far a summary lies from simulated ones, by the standard of its neighbourhood.

.. math:: \log \frac{d_k(s)}{\frac1k \sum_{i \in N_k(s)} d_k(s_i)}

with the distance :math:`d_k` to the k-th nearest simulated summary, in whitened coordinates, and
the k nearest ones :math:`N_k`: the local outlier factor. At the edge of the prior simulated
summaries are thin, and those of clean data there are no outliers; off the surface that simulated
summaries fill, those next to them are dense.

All 10,000 points among themselves take about a second on one core, in 2 dimensions or in 16.

References:
    Breunig, Kriegel, Ng and Sander, LOF: identifying density-based local outliers, SIGMOD 2000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from mindist.decoders.ridge import Standardiser

NEIGHBOURS = 5  # a single neighbour is noisy, many reach into the bulk
MAX_SUMMARIES = 10_000
BLOCK_ELEMENTS = 2**22  # 32 MB of distances
# Of the largest eigenvalue of the summaries' correlations: a direction a thousand times narrower
# than the widest is rounding of redundant summaries.
REDUNDANT = 1e-6
# In standard deviations: nearer than that two summaries may be one, computed in another order. The
# fifth neighbour among 10,000 of one dimension is at 6e-4.
SAME = 1e-5


@dataclass(frozen=True)
class SummaryOutlyingness:
    """The distance to the fifth nearest simulated summary, over that of the nearest ones.

    Summaries are standardised and then whitened, so that units and correlations do not matter. A
    summary that never varies is ignored; of redundant ones, directions in which simulations
    have next to no spread are damped rather than divided by zero.

    Arguments:
        points: Whitened simulated summaries `(m, d_s)`, float64, m at most 10,000.
        reach: The distance of each to its own fifth neighbour `(m,)`.
        floor: Distances below which nothing is told apart.
        centre: Means of the summaries `(d_s,)`, float64.
        whitener: `(d_s, d_s)`, float64; `(s - centre) whitener` are the whitened coordinates.

    Example:
        >>> s = torch.arange(100.0)[:, None]
        >>> outlyingness = SummaryOutlyingness.of(s, torch.Generator())
        >>> outlyingness(torch.tensor([[50.25], [109.25]])).exp().round(decimals=2)
        tensor([0.7500, 3.9600], dtype=torch.float64)
    """

    points: Annotated[Tensor, "m d"]
    reach: Annotated[Tensor, "m"]
    floor: float
    centre: Annotated[Tensor, "d"]
    whitener: Annotated[Tensor, "d d"]

    @classmethod
    def of(
        cls, s: Tensor, generator: torch.Generator, noise: Tensor | None = None
    ) -> SummaryOutlyingness:
        """From simulated summaries `(M, d_s)`, of which the generator chooses at most 10,000.

        Where their sampling covariance `(d_s, d_s)` is given, two standard deviations of it are the
        floor: at the prior's edge, and on a lattice of counts, neighbours are farther than those.
        """
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
            raise ValueError(
                f"s: expected summaries of shape (B, {len(self.centre)}), as simulated, got "
                f"{tuple(s.shape)}."
            )
        whitened = (s.double() - self.centre) @ self.whitener
        distance, near = self._nearest(whitened)
        reach, own = self.reach[near], distance[:, 0] <= SAME
        distance = torch.where(own, distance[:, -1], distance[:, -2])
        local = torch.where(own, reach[:, 1:].mean(1), reach[:, :-1].mean(1))
        floor = noise * self.floor
        return (distance.clamp(min=floor) / local.clamp(min=floor)).log()

    def _nearest(self, whitened: Tensor) -> tuple[Tensor, Tensor]:
        """Return distances `(B, k + 1)` to the nearest points, increasing, and their indices."""
        rank = 1 + min(NEIGHBOURS, len(self.points) - 1)
        # Without the shortcut by inner products, which makes a distance of 0 one of 1e-8.
        mode, parts = "donot_use_mm_for_euclid_dist", []
        for block in whitened.split(max(1, BLOCK_ELEMENTS // len(self.points))):
            distance = torch.cdist(block, self.points, compute_mode=mode)
            parts.append(distance.topk(rank, largest=False))
        return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])
