r"""Fit the search for entries: choose its settings, then rank held-out simulations.

The number of neighbours k, the shrinkage :math:`\lambda` and the components are those with the
largest average log density of entries left out, a quarter of some simulations, given the rest.
Held-out simulations then go through the same search as an observed vector: the p-value of one whose
largest score is t is :math:`(1 + \#\{t_i \ge t\}) / (1 + n)`, exactly uniform on simulations.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.entries.conditionals import Shape
from mindist.entries.neighbours import Bank, Pool
from mindist.entries.search import Groups, Scales, Search, Vectors, completed

NEIGHBOURS = (50, 100, 200, 400)
SHRINKAGE = (0.02, 0.1, 0.3, 0.6, 0.9)
LEFT_OUT = 0.25  # share of the entries that the choice of k and lambda predicts
MOST_HELD_OUT, LEAST_HELD_OUT = 1_000, 300  # the level, .05, has standard errors .007, .013
DRAWN = 32  # for each left-out part, to see how wide draws are
LEAST_SCALE = 0.1  # of an entry that never varies
LEAST_KNOWN = 1e-3  # share of an entry's variance that the others explain
GAIN = 0.01  # nats for each entry, twice, that more neighbours have to be worth: they cost time
QUIET = 0.75  # share of simulations that are searched from all entries only
HEAVY = 25.0  # squared residuals count for no more, so that one strange simulation decides nothing
TAIL, NORMAL_TAIL = 0.99, 2.576  # scores are scaled so that they have the normal's 99% point
CORRELATED = 0.5  # neighbours belong together while their mean correlation is above this
LEAST_GROUPS = 8  # so that 40% of the groups are at least three
SAMPLE = 2_000  # simulations that show the correlations
MOST_SWEPT = 256  # entries of which whole tables are swept; of more, principal components
COMPONENTS = (16, 64)


@dataclass(frozen=True)
class Knowledge:
    """What a fit knows: how to search, how large scores are on simulations, how wide draws are."""

    search: Annotated[Search, {"D": "D"}]
    null: Annotated[Tensor, "n"]
    widening: float

    def p_value(self, statistic: Tensor) -> Tensor:
        """Return the share of simulations whose largest score is as large, never 0."""
        below = torch.searchsorted(self.null, statistic.contiguous())
        return (1.0 + len(self.null) - below) / (1.0 + len(self.null))


def bases(bank: Bank, seed: int) -> list[Tensor]:
    """Return components `(D, r)` to choose from, few first; at last the entries themselves."""
    D, some = bank.z.shape[1], bank.z[:SAMPLE]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        V = torch.svd_lowrank(some - some.mean(0), min(COMPONENTS[-1], D, len(some)), niter=4)[2]
    few = [V[:, :r] for r in COMPONENTS if 2 * r <= D and r <= V.shape[1]]
    return few + [torch.eye(D)] * (D <= MOST_SWEPT or not few)


def local_correlation(z: Tensor, near: Tensor, basis: Tensor) -> Tensor:
    """Return the average correlation matrix of neighbourhoods `(n, k)`, along a basis."""
    total = torch.zeros(())
    for rows in near.split(16):
        points = (z[rows] @ basis).double()
        off = points - points.mean(1, keepdim=True)
        off = off / off.square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        total = total + (off.mT @ off).sum(0)
    return (total / len(near)).fill_diagonal_(1.0)


def choose(bank: Bank, groups: Groups, seed: int) -> tuple[Shape, int]:
    """Choose k and lambda on vectors of the bank itself, of which a quarter is left out."""
    D = bank.z.shape[1]
    num = min(256, len(bank.z) // 4, max(32, 2**22 // D**2))
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(num, len(groups.members), generator=generator).argsort(1)
    kept = (kept >= LEFT_OUT * len(groups.members))[:, groups.labels]
    v = Vectors(bank.z[-num:].double(), kept, torch.zeros(kept.shape, dtype=torch.float64))
    sizes = [k for k in NEIGHBOURS if k <= max(NEIGHBOURS[0], len(bank.z) // 8)]
    most = min(sizes[-1], len(bank.z) - 1)
    near = torch.cat([
        Pool.of(bank, v.y[r], kept[r, None], most + 1).nearest(kept[r, None], most, 1)[:, 0]
        for r in torch.arange(num).split(max(1, 2**25 // (most * D)))
    ])  # fmt: skip
    enough, best, chosen = GAIN * float((~kept).sum()), -torch.inf, cast(Any, None)
    for basis, k in product(bases(bank, seed), sizes):
        correlation = local_correlation(bank.z, near[:, :k], basis)
        gain = enough  # what more neighbours, or more components, have to be worth
        for shrinkage in SHRINKAGE:
            shape, total = Shape(correlation, basis, shrinkage), 0.0
            for r in torch.arange(num).split(32):
                table = shape.sweep(bank.z[near[r, :k]], v.y[r], kept[r], v.noise[r])
                residual, variance = table.conditional()
                density = -(residual.square() / variance).clamp(max=HEAVY) - variance.log()
                total += float(density[~kept[r]].sum())
            if total > best + gain:
                best, chosen, gain = total, (shape, min(k, near.shape[1])), 0.0
    return cast("tuple[Shape, int]", chosen)


def learn(x: Tensor, labels: Tensor, level: float, seed: int) -> Knowledge:
    """Fit to simulated vectors `(M, D)`, in random order, of which some are held out."""
    most = max(LEAST_HELD_OUT, min(MOST_HELD_OUT, 2**19 // x.shape[1]))
    num, first = min(most, len(x) // 5), min(most, len(x) // 10)
    bank, groups = Bank.standardise(x[num + first :]), Groups.of(labels)
    shape, k = choose(bank, groups, seed)
    one = torch.ones(len(groups.members), dtype=torch.float64)
    limit = float(torch.special.ndtri(one[0] - level / 2 / len(one)))
    z = bank.units(x[num : num + first])
    scales = Scales(one, z.float(), torch.ones(first, len(one)), one)
    search = Search(bank, shape, groups, scales, k, limit, 0.0)
    score = _scores(search, z)
    scale = (score.quantile(TAIL, dim=0) / NORMAL_TAIL).clamp(min=LEAST_SCALE)
    squares = (score / scale).square().clamp(max=HEAVY)
    squares = squares / squares.mean(0).clamp(min=1e-9)
    widening, known = _left_out(search, z, seed)
    search = replace(search, scales=Scales(scale, bank.clipped(z), squares.float(), known))
    y = bank.units(x[:num])
    quiet = float(_scores(search, y).amax(1).quantile(QUIET))
    search, v = replace(search, quiet=quiet), _clean(y)
    statistic = search(v[torch.arange(0, num, 2)])[0].statistic
    search = replace(search, limit=float(statistic.quantile(1 - level)))
    null = search(v)[0].statistic.sort().values
    return Knowledge(search, null, widening)


def _clean(y: Tensor) -> Vectors:
    """Return vectors of which every entry was observed, without further noise."""
    return Vectors(y, torch.ones(y.shape, dtype=torch.bool), torch.zeros_like(y))


def _scores(search: Search, y: Tensor) -> Tensor:
    """Return the score of each group given all others, `(n, G)`."""
    found = []
    for part in y.split(search.rows(1)):
        v = _clean(part)
        every = v.observed[:, None]
        near = Pool.of(search.bank, part, every).nearest(every, search.neighbours)
        table = search.sweep(near[:, 0], v, v.observed)
        score = search.groups.distance(table, v.observed, torch.arange(len(part)))
        found.append(score / table.scale)
    return torch.cat(found)


def _left_out(search: Search, y: Tensor, seed: int) -> tuple[float, Tensor]:
    """Draw groups that are left out of simulations, a quarter of them, from the others.

    Return by how much they scatter more than what is drawn, and the share of the variance of each
    group that the others explain, `(G,)`.
    """
    generator, labels = torch.Generator().manual_seed(seed), search.groups.labels
    G = len(search.groups.members)
    total, num = 0.0, 0
    off, whole = torch.zeros(2, G, dtype=torch.float64)
    for part in y[:256].split(min(64, search.rows(1))):
        kept = torch.rand(len(part), G, generator=generator).argsort(1) >= LEFT_OUT * G
        kept, v = kept[:, labels][:, None], _clean(part)
        mean, drawn = completed(search, v, kept, search.pool(v, kept), DRAWN, 1.0, seed)
        spread = (drawn - mean).square().mean(1).clamp(min=1e-12)
        squared, gone = (part - mean[:, 0]).square(), ~kept[:, 0]
        ratio = (squared / spread)[gone]
        total, num = total + float(ratio.clamp(max=HEAVY).sum()), num + len(ratio)
        off.index_add_(0, labels, (squared * gone).sum(0))
        whole.index_add_(0, labels, (part.square() * gone).sum(0))
    # One over the variance of n normal draws about a known mean has expectation n / (n - 2).
    widening = math.sqrt(total / max(1, num) * (DRAWN - 2) / DRAWN)
    return widening, (1 - off / whole.clamp(min=1e-12)).clamp(LEAST_KNOWN, 1)


def labels_of(groups: Any, event: torch.Size) -> Tensor:
    """Return the group of each entry, `(D,)`, from labels of the shape of a vector or from None."""
    if groups is None:
        return torch.arange(event.numel())
    try:
        labels = torch.as_tensor(np.asarray(groups))
    except (TypeError, ValueError):  # lists of members, of several lengths
        labels = torch.empty(0)
    if labels.shape != event or labels.is_floating_point() or labels.is_complex():
        said = f"'auto', or an integer for each entry, of shape {tuple(event)}"
        then = "Each entry names its one group, so that groups cannot overlap: [0, 0, 1, 1, 2]."
        raise checks.wrong("groups", said, checks.shown(groups), then)
    return labels.flatten()


def correlated_windows(x: Tensor, event: torch.Size) -> Tensor:
    """Cut vectors into windows, along each axis as long as neighbours are correlated, `(D,)`.

    Correlation counts beyond what all entries of simulations `(M, D)` have in common. Windows are
    halved, the longest axis first, until there are at least eight.
    """
    z = x[:SAMPLE].double()
    z = z - z.mean(0)
    z = z - z.mean(1, keepdim=True)
    z = (z / z.square().mean(0).sqrt().clamp(min=1e-12)).view(-1, *event)
    lengths = [_length(z.movedim(axis + 1, 1)) for axis in range(len(event))]

    def counts() -> list[int]:
        return [-(-size // length) for size, length in zip(event, lengths, strict=True)]

    while np.prod(counts()) < LEAST_GROUPS and max(lengths) > 1:
        longest = lengths.index(max(lengths))
        lengths[longest] = -(-lengths[longest] // 2)
    labels = torch.zeros(event, dtype=torch.long)
    for axis, (length, count) in enumerate(zip(lengths, counts(), strict=True)):
        place = torch.arange(event[axis]) // length
        labels = labels * count + place.view(-1, *[1] * (len(event) - axis - 1))
    return labels.flatten()


def _length(z: Tensor) -> int:
    """Return the first distance along axis 1 at which entries are no longer correlated."""
    for h in range(1, z.shape[1]):
        if (z[:, h:] * z[:, :-h]).mean() <= CORRELATED:
            return h
    return z.shape[1]
