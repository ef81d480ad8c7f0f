r"""Which entries to believe: those that simulations near to the believed ones explain.

With :math:`r_g^2` the squared Mahalanobis residual of a group g of entries given the other believed
ones, K is sought that minimises

.. math:: Q(K) = d_K^T \Sigma_{KK}^{-1} d_K + \textstyle\sum_{g \notin K} (c\, a_g)^2 .

Setting g aside lowers the first term by exactly :math:`r_g^2`, so that each step, setting aside the
worst group with :math:`r_g > c\, a_g` or taking back the best one with :math:`r_g \le c\, a_g`,
lowers Q, and the steps end. Neighbours, and with them the local Gaussian, are then sought again by
the entries that are left, as in the concentration steps of FAST-LTS (Rousseeuw and Van Driessen
2006), but over entries. The best of several starts counts: all entries, and sets of 60% that lie
near one simulation.

Entries that are missing, set aside or noisy are then drawn given the believed ones. Neighbours
:math:`x^j` are draws from simulations near the observed vector. With further noise of variance E,
:math:`y^j = x^j + \sqrt{E}\, \epsilon^j`, regression adjustment (Beaumont et al. 2002) moves each
to where it agrees with the observed vector on the believed entries K,

.. math:: x^{j\star} = x^j + \Sigma_{\cdot K} (\Sigma_{KK} + E_{KK})^{-1} (y_K - y^j_K) ,

which is exact where simulations are Gaussian (Matheron's rule), equals :math:`y_K` on K where E is
0, and keeps the shape of noise that is not Gaussian. A missing entry is one with infinite E.
"""

from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from mindist.entries.neighbours import Bank, LocalGaussian, Table

STARTS, ROUNDS = 4, 3  # sets to begin with besides all entries; searches for neighbours from each
CHAINS, SWEEPS = 16, 2  # of the Gibbs sampler
MOST_ASIDE = 0.5  # share of the observed entries: of more than half, nobody knows which are right
TABLES = 2**23  # numbers of the swept tables held at once: 64 MB, and a few times that in passing


@dataclass(frozen=True)
class Found:
    """What a search knows of a batch: see `Search`."""

    kept: Tensor  # entries believed, (B, D)
    score: Tensor  # residual of each entry's group in units of its scale, (B, D)
    statistic: Tensor  # the largest score of an observed entry, (B,)
    residual: Tensor  # (B, D), in standard units
    variance: Tensor  # (B, D), in standard units
    cost: Tensor  # Q, (B,)

    def __getitem__(self, rows: Tensor) -> "Found":
        return Found(*(value[rows] for value in vars(self).values()))

    @classmethod
    def join(cls, parts: "list[Found]") -> "Found":
        """Join batches."""
        return cls(*map(torch.cat, zip(*(vars(p).values() for p in parts), strict=True)))


@dataclass(frozen=True)
class Groups:
    """Members of each group of entries `(G, n)`, filled up with -1."""

    members: Annotated[Tensor, "int G n"]

    @classmethod
    def of(cls, labels: Tensor) -> "Groups":
        """Build from the label of each entry, `(D,)`."""
        parts = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
        return cls(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=-1))

    @property
    def labels(self) -> Tensor:
        """The group of each entry, `(D,)`."""
        valid = self.members >= 0
        labels = torch.empty(int(valid.sum()), dtype=torch.long)
        labels[self.members[valid]] = valid.nonzero()[:, 0]
        return labels

    def any(self, entries: Tensor) -> Tensor:
        """Return which groups have one of some entries `(B, D)`, `(B, G)`."""
        return (entries[:, self.members] & (self.members >= 0)).any(2)

    def distance(self, table: Table, observed: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the Mahalanobis residual of each group given the others, of some rows."""
        rows = torch.arange(len(observed)) if rows is None else rows
        n, m, T = rows[:, None], self.members.clamp(min=0), table.values
        if m.shape[1] == 1:
            i = m[:, 0]
            own: Tensor = T[n, i, -1].abs() / T[n, i, i].abs().clamp(min=1e-300).sqrt()
            return own
        n = n[..., None]
        w = (observed[n, m] & (self.members >= 0)).double()
        sign = torch.where(self.any(table.kept[rows]), -1.0, 1.0)[..., None, None]
        block = sign * T[n[..., None], m[:, :, None], m[:, None]]
        block = block * w[..., None] * w[..., None, :] + torch.diag_embed(1 - w)
        v = (T[n, m, -1] * w)[..., None]
        squared: Tensor = (v * torch.linalg.solve(block, v)).sum((2, 3))
        return squared.clamp(min=0).sqrt()


@dataclass(frozen=True)
class Search:
    """The search for the entries to believe."""

    bank: Annotated[Bank, {"D": "D"}]
    correlation: Annotated[Tensor, "D D"]  # what local covariances are shrunk towards
    groups: Annotated[Groups, {"G": "G"}]  # of entries that fail together
    scale: Annotated[Tensor, "G"]  # a, of each group's residual
    neighbours: Annotated[int, range(2, 2**20)]  # k
    shrinkage: float  # lambda
    limit: float  # c, in units of `scale`
    quiet: float  # no starts for vectors whose scores are all below, as most simulations' are

    def neighbourhood(
        self, y: Tensor, kept: Tensor, noise: Tensor
    ) -> tuple[Tensor, LocalGaussian, Table]:
        """Return neighbours `(B, k)` by the entries `kept`, their Gaussians and swept tables."""
        near = self.bank.nearest(y, kept, self.neighbours)
        how = (self.correlation, self.shrinkage)
        blocks = near.split(max(1, TABLES // (self.neighbours * y.shape[1])))
        parts = [LocalGaussian.of(self.bank.z[rows], *how) for rows in blocks]
        mean, covariance = (
            torch.cat(p) for p in zip(*(vars(p).values() for p in parts), strict=True)
        )
        local = LocalGaussian(mean, covariance)
        return near, local, Table(local, y, kept, noise)

    def rows(self, copies: int) -> int:
        """Return how many vectors to treat at once, with so many tables of each."""
        return max(1, TABLES // (copies * (self.bank.z.shape[1] + 1) ** 2))

    def consistent(self, num_entries: int) -> bool:
        """Return whether groups name each entry once, and scales are positive: of a file."""
        named = self.groups.members[self.groups.members >= 0].sort().values
        scales = torch.cat([self.scale, self.bank.scale])
        right = torch.equal(named, torch.arange(num_entries)) and bool((scales > 0).all())
        return right and self.neighbours <= len(self.bank.z) and 0 <= self.shrinkage <= 1

    def __call__(self, y: Tensor, observed: Tensor, noise: Tensor) -> tuple[Found, Tensor]:
        """Search for each vector `(B, D)` in standard units; `noise` is its further variance.

        Return the best sets found, and sets `(B, CHAINS, D)` drawn with weights exp(-Q / 2) from
        those that any start has led to, each counted once.
        """
        blocks = torch.arange(len(y)).split(self.rows(STARTS + 1))
        parts = [self._block(y[r], observed[r], noise[r]) for r in blocks]
        return Found.join([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _block(self, y: Tensor, observed: Tensor, noise: Tensor) -> tuple[Found, Tensor]:
        found = self._settle(observed, observed, y, noise)
        chains = observed[:, None].repeat(1, CHAINS, 1)
        loud = ((found.statistic > self.quiet) | (found.kept != observed).any(1)).nonzero()[:, 0]
        if len(loud):
            best, chains[loud] = self._restart(found[loud], y[loud], observed[loud], noise[loud])
            found = _replaced(found, loud, best)
        return found, chains

    def _restart(
        self, found: Found, y: Tensor, observed: Tensor, noise: Tensor
    ) -> tuple[Found, Tensor]:
        """Begin at other sets of entries too; return the best found, and where chains begin."""
        B, num = len(y), STARTS + 1
        starts = self.bank.starts(y, observed, STARTS) & observed[:, None]
        many = (t.repeat_interleave(STARTS, 0) for t in (observed, y, noise))
        every = Found.join([found, self._settle(starts.flatten(0, 1), *many)])
        index = torch.arange(B * STARTS).view(B, STARTS) + B
        index = torch.cat([torch.arange(B)[:, None], index], 1)
        cost, kept = every.cost[index], every.kept[index]
        copies = (kept[:, :, None] == kept[:, None]).all(3).sum(2)
        weights = torch.softmax(-cost / 2 - copies.double().log(), 1).cumsum(1)
        points = (torch.arange(CHAINS, dtype=torch.float64) + 0.5) / CHAINS
        drawn = torch.searchsorted(weights, points.expand(B, -1).contiguous()).clamp(max=num - 1)
        best = index.gather(1, cost.argmin(1, keepdim=True))[:, 0]
        return every[best], kept.gather(1, drawn[..., None].expand(-1, -1, y.shape[1]))

    def sample(self, y: Tensor, observed: Tensor, noise: Tensor, kept: Tensor, seed: int) -> Tensor:
        """Draw sets to believe with density proportional to exp(-Q / 2), by Gibbs sampling.

        Chains begin at `kept`, `(B, CHAINS, D)`, and end at what is returned. All vectors have the
        same random numbers, so that none depends on the others.
        """
        blocks = torch.arange(len(y)).split(self.rows(CHAINS))
        return torch.cat([self._sample(y[r], observed[r], noise[r], kept[r], seed) for r in blocks])

    def _sample(
        self, y: Tensor, observed: Tensor, noise: Tensor, kept: Tensor, seed: int
    ) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        sets, bound = kept.flatten(0, 1), (self.limit * self.scale).square()
        y, observed, noise = (t.repeat_interleave(CHAINS, 0) for t in (y, observed, noise))
        here = self.groups.any(observed)
        for _ in range(SWEEPS):
            table = self.shared(y, sets, noise)[2]
            for g in torch.randperm(len(bound), generator=generator).tolist():
                group = Groups(self.groups.members[g : g + 1])
                r, now = group.distance(table, observed)[:, 0], group.any(table.kept)[:, 0]
                u = torch.rand(CHAINS, dtype=torch.float64, generator=generator)
                believe = u.repeat(len(kept)) < torch.sigmoid((bound[g] - r.square()) / 2)
                flip = (believe != now) & here[:, g]
                self._toggle(table, flip.nonzero()[:, 0], observed, torch.tensor(g))
            sets = table.kept
        return sets.view_as(kept)

    def shared(self, y: Tensor, kept: Tensor, noise: Tensor) -> tuple[Tensor, LocalGaussian, Table]:
        """Return `neighbourhood` of rows of which many are alike, as chains are: made once each."""
        _, inverse = torch.cat([y, kept.double(), noise], 1).unique(dim=0, return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), len(y))
        first.scatter_reduce_(0, inverse, torch.arange(len(y)), "amin")
        near, local, table = self.neighbourhood(y[first], kept[first], noise[first])
        local = LocalGaussian(local.mean[inverse], local.covariance[inverse])
        return near[inverse], local, table.select(inverse)

    def _toggle(self, table: Table, rows: Tensor, observed: Tensor, chosen: Tensor) -> None:
        """Take the chosen groups in or out, one for each of some rows."""
        for entry in self.groups.members[chosen.expand(len(rows))].T:
            real = (entry >= 0) & observed[rows, entry]
            if real.any():
                table.toggle(rows[real], entry[real])

    def _settle(self, kept: Tensor, observed: Tensor, y: Tensor, noise: Tensor) -> Found:
        """Alternate between neighbours and steps until the believed entries stay."""
        kept, todo = self.whole(kept, observed), torch.arange(len(y))
        found: Any = None
        for _ in range(ROUNDS):
            table = self.neighbourhood(y[todo], kept[todo], noise[todo])[2]
            self.steps(table, observed[todo])
            part = self.describe(table, observed[todo])
            found = part if found is None else _replaced(found, todo, part)
            moved = (part.kept != kept[todo]).any(1)
            kept[todo] = part.kept
            todo = todo[moved]
            if not len(todo):
                break
        return cast(Found, found)

    def whole(self, kept: Tensor, observed: Tensor) -> Tensor:
        """Believe a group where most of its observed entries are believed."""
        members, valid = self.groups.members.clamp(min=0), self.groups.members >= 0
        share = (kept[:, members] & valid).sum(2) >= 0.5 * (observed[:, members] & valid).sum(2)
        return share[:, self.groups.labels] & observed

    def steps(self, table: Table, observed: Tensor) -> None:
        """Set groups aside and take them back, one at a time, while that lowers Q."""
        here = self.groups.any(observed)
        size = (observed[:, self.groups.members] & (self.groups.members >= 0)).sum(2)
        most = MOST_ASIDE * observed.sum(1)
        todo = torch.arange(len(observed))
        for _ in range(3 * len(self.scale)):
            score = self.groups.distance(table, observed, todo) / self.scale
            believed = self.groups.any(table.kept[todo])
            room = (size[todo] * ~believed).sum(1, keepdim=True) + size[todo] <= most[todo, None]
            worst, out = score.masked_fill(~(believed & room), -1).max(1)
            best, back = score.masked_fill(believed | ~here[todo], torch.inf).min(1)
            remove, admit = worst > self.limit, best <= self.limit
            chosen = torch.where(remove, out, back)
            act = remove | admit
            if not act.any():
                return
            todo = todo[act]
            self._toggle(table, todo, observed, chosen[act])

    def describe(self, table: Table, observed: Tensor) -> Found:
        """Return what a table says of each entry."""
        score = self.groups.distance(table, observed) / self.scale
        here, aside = self.groups.any(observed), ~self.groups.any(table.kept)
        largest = score.masked_fill(~here, 0).amax(1)
        cost = table.chi_square + (here & aside).double() @ (self.limit * self.scale).square()
        each = score[:, self.groups.labels]
        return Found(table.kept.clone(), each, largest, table.residual, table.variance, cost)


def _replaced(found: Found, rows: Tensor, part: Found) -> Found:
    """Return `found` with some rows replaced."""
    for name, value in vars(found).items():
        value[rows] = vars(part)[name]
    return found


def completed(
    search: Search, y: Tensor, sets: Tensor, noise: Tensor, num: int, widening: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw `num` vectors for each of several sets `(B, C, D)` of entries to believe.

    Return conditional means `(B, C, D)` and draws `(B, C * num, D)`, `widening` times as far from
    these. All vectors have the same random numbers, so that none depends on the others.
    """
    (B, C, D), generator = sets.shape, torch.Generator().manual_seed(seed)
    y, noise = y.repeat_interleave(C, 0), noise.repeat_interleave(C, 0)
    kept = sets.flatten(0, 1)
    near, local, table = search.shared(y, kept, noise)
    both = kept[:, :, None] & kept[:, None]
    gain = local.covariance @ torch.where(both, -table.values[:, :-1, :-1], 0.0)
    mean = local.mean + (gain @ (y - local.mean)[..., None])[..., 0]
    k = near.shape[1]
    order = torch.randperm(k, generator=generator).repeat(-(-C * num // k))[: C * num]
    x = search.bank.z[near.gather(1, order.view(C, num).repeat(B, 1))].double()
    epsilon = torch.randn(C, num, D, dtype=torch.float64, generator=generator).repeat(B, 1, 1)
    seen = x + noise.sqrt()[:, None] * epsilon
    drawn = mean[:, None] + widening * (x + (y[:, None] - seen) @ gain.mT - mean[:, None])
    return mean.view(B, C, D), drawn.view(B, C * num, D)
