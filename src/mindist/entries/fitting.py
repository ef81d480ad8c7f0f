r"""Fit the search for entries: choose its settings, then rank held-out simulations.

The number of neighbours k and the shrinkage :math:`\lambda` are those with the largest average log
density of entries that were left out, a quarter of each of some simulated vectors, given the rest.
Held-out simulations then go through the same search as an observed vector: the p-value of one whose
largest score is t is :math:`(1 + \#\{t_i \ge t\}) / (1 + n)`, exactly uniform on simulations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from mindist.entries.completion import completed
from mindist.entries.conditionals import LocalGaussian, Table
from mindist.entries.neighbours import Bank
from mindist.entries.search import Groups, Search

NEIGHBOURS = (50, 100, 200, 400, 800)
SHRINKAGE = (0.02, 0.1, 0.3, 0.6, 0.9)
LEFT_OUT = 0.25  # share of the entries that the choice of k and lambda predicts
MOST_HELD_OUT = 1_000  # the level at alpha = .05 has then a standard error of .007
DRAWN = 32  # for each left-out part, to see how wide draws are
LEAST_SCALE = 0.1  # of an entry that never varies
GAIN = 0.01  # nats for each entry, twice, that more neighbours have to be worth: they cost time
QUIET = 0.75  # share of simulations that are searched from all entries only
HEAVY = 25.0  # squared residuals count for no more, so that one strange simulation decides nothing
TAIL, NORMAL_TAIL = 0.99, 2.576  # scores are scaled so that they have the normal's 99% point


@dataclass(frozen=True)
class Knowledge:
    """What a fit knows: how to search, how large scores are on simulations, how wide draws are."""

    search: Annotated[Search, {"D": "D"}]
    null: Annotated[Tensor, "n"]
    widening: float

    @property
    def least(self) -> float:
        """The smallest p-value there is."""
        return 1.0 / (1.0 + len(self.null))

    def p_value(self, statistic: Tensor) -> Tensor:
        """Return the share of simulations whose largest score is as large, never 0."""
        below = torch.searchsorted(self.null, statistic.contiguous())
        return (1.0 + len(self.null) - below) / (1.0 + len(self.null))


def local_correlation(z: Tensor, near: Tensor) -> Tensor:
    """Return the average correlation matrix `(D, D)` of neighbourhoods `(n, k)`."""
    total = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
    for rows in near.split(16):
        points = z[rows].double()
        off = points - points.mean(1, keepdim=True)
        off = off / off.square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        total += (off.mT @ off).sum(0)
    total /= len(near)
    return total.fill_diagonal_(1.0)


def choose(bank: Bank, groups: Groups, level: float, seed: int) -> Search:
    """Choose k and lambda on vectors of the bank itself, of which a quarter is left out."""
    D = bank.z.shape[1]
    num = min(256, len(bank.z) // 4, max(32, 2**22 // D**2))
    y = bank.z[:num].double()
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(num, len(groups.members), generator=generator).argsort(1)
    kept = (kept >= LEFT_OUT * len(groups.members))[:, groups.labels]
    sizes = [k for k in NEIGHBOURS if k <= max(NEIGHBOURS[0], len(bank.z) // 8)]
    near = bank.nearest(y, kept, min(sizes[-1], len(bank.z) - 1), 1)
    enough, best, chosen = GAIN * float((~kept).sum()), -torch.inf, (0, 0.0, torch.empty(0))
    for k in sizes:
        correlation = local_correlation(bank.z, near[:, :k])
        for shrinkage in SHRINKAGE:
            total = 0.0
            for rows in torch.arange(num).split(32):
                local = LocalGaussian.of(bank.z[near[rows, :k]], correlation, shrinkage)
                table = Table(local, y[rows], kept[rows], torch.zeros_like(y[rows]))
                v = table.variance
                density = -(table.residual.square() / v).clamp(max=HEAVY) - v.log()
                total += float(density[~kept[rows]].sum())
            if total > best + (enough if k > chosen[0] else 0.0):
                best, chosen = total, (k, shrinkage, correlation)
    k, shrinkage, correlation = chosen
    one = torch.ones(len(groups.members), dtype=torch.float64)
    tail = torch.tensor(1 - level / 2 / len(one), dtype=torch.float64)
    limit = float(torch.special.ndtri(tail))
    return Search(bank, correlation, groups, one, min(k, near.shape[1]), shrinkage, limit, 0.0)


def learn(x: Tensor, labels: Tensor, level: float, seed: int) -> Knowledge:
    """Fit to simulated vectors `(M, D)`, in random order, of which some are held out."""
    num = min(MOST_HELD_OUT, len(x) // 5)
    bank = Bank.standardise(x[num:])
    search = choose(bank, Groups.of(labels), level, seed)
    y = bank.units(x[:num])
    every, silent = torch.ones(y.shape, dtype=torch.bool), torch.zeros_like(y)
    score = torch.cat([
        search.groups.distance(search.neighbourhood(y[r], every[r], silent[r])[2], every[r])
        for r in torch.arange(num).split(64)
    ])  # fmt: skip
    scale = (score.quantile(TAIL, dim=0) / NORMAL_TAIL).clamp(min=LEAST_SCALE)
    quiet = float((score / scale).amax(1).quantile(QUIET))
    search = replace(search, scale=scale, quiet=quiet)
    first = search(y, every, silent)[0].statistic
    search = replace(search, limit=float(first.quantile(1 - level)))
    null = search(y, every, silent)[0].statistic.sort().values
    return Knowledge(search, null, _widening(search, y, seed))


def _widening(search: Search, y: Tensor, seed: int) -> float:
    """Return by how much held-out entries scatter more than what is drawn for them."""
    generator = torch.Generator().manual_seed(seed)
    total, num = 0.0, 0
    for part in y[:256].split(64):
        kept = torch.rand(part.shape, generator=generator) >= LEFT_OUT
        silent = torch.zeros_like(part)
        mean, drawn = completed(search, part, kept[:, None], silent, DRAWN, 1.0, seed)
        mean = mean[:, 0]
        spread = (drawn - mean[:, None]).square().mean(1).clamp(min=1e-12)
        ratio = ((part - mean).square() / spread)[~kept]
        total, num = total + float(ratio.clamp(max=HEAVY).sum()), num + len(ratio)
    # One over the variance of n normal draws about a known mean has expectation n / (n - 2).
    return math.sqrt(total / max(1, num) * (DRAWN - 2) / DRAWN)
