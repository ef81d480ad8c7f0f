r"""Which entries to believe: those that simulations near to the believed ones explain.

With :math:`r_g^2` the squared Mahalanobis residual of a group g of entries given the other believed
ones, K is sought that minimises

.. math:: Q(K) = d_K^T \Sigma_{KK}^{-1} d_K + \textstyle\sum_{g \notin K} p_g , \qquad
    p_g = (c\, a_g)^2 - 4 \log R_g^2 .

Setting g aside lowers the first term by exactly :math:`r_g^2`, so that each step, setting aside the
worst group with :math:`r_g^2 > p_g` or taking back the best one with :math:`r_g^2 \le p_g`, lowers
Q, and the steps end. :math:`R_g^2` is the share of the group's variance over all simulations that
other entries explain: what nothing else knows is not given up for being rare. Neighbours, and
with them the local Gaussian, are then sought again by the entries that are left, as in the
concentration steps of FAST-LTS (Rousseeuw and Van Driessen 2006), but over entries. The best of
several starts counts: all entries, and sets of 60% that lie near one simulation. It is settled once
more with exact neighbours where entries are set aside or missing.

How large residuals are depends on where the vector lies: :math:`a_g` is the spread of group g's
residuals on simulations that were held out, widened or narrowed by what the nearest of these have.

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

from mindist.entries.conditionals import Shape, Swept
from mindist.entries.neighbours import Bank, Pool

STARTS, ROUNDS = 4, 3  # sets to begin with besides all entries; searches for neighbours from each
CHAINS, SWEEPS = 16, 2  # of the Gibbs sampler
OPEN = 8.0  # groups whose odds are farther than e^4 from even keep their place
MOST_ASIDE = 0.5  # share of the observed entries: of more than half, nobody knows which are right
AT_ONCE = 8  # one step moves this part of the groups that ask for it
TABLES = 2**23  # numbers of the swept tables held at once: 64 MB, and a few times that in passing
GIVEN_UP = 4.0  # an entry of which others explain a tenth needs odds of 100 more
EXACT = 4  # times as many simulations as neighbours, for chains of which each has its own
CLOSE, PRIOR = 64, 32  # held-out simulations that say how large residuals are here, and everywhere


@dataclass(frozen=True)
class Found:
    """What a search knows of a batch: see `Search`."""

    kept: Tensor  # entries believed, (B, D)
    statistic: Tensor  # the largest score, residual in units of its scale, of a group, (B,)
    residual: Tensor  # (B, D), in standard units
    variance: Tensor  # (B, D), in standard units
    cost: Tensor  # Q, (B,)
    left: Tensor  # whether a believed group is above its price, (B,)

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

    def count(self, entries: Tensor) -> Tensor:
        """Return how many of some entries `(B, D)` each group has, `(B, G)`."""
        return (entries[:, self.members] & (self.members >= 0)).sum(2)

    def any(self, entries: Tensor) -> Tensor:
        """Return which groups have one of some entries `(B, D)`, `(B, G)`."""
        return self.count(entries) > 0

    def distance(
        self, table: Swept, observed: Tensor, rows: Tensor, chosen: Tensor | None = None
    ) -> Tensor:
        """Return the Mahalanobis residual of each group given the others, in some rows `(n,)`.

        Of all groups, `(n, G)`; or of one `chosen` in each row, `(n, 1)`.
        """
        members = self.members[None] if chosen is None else self.members[chosen][:, None]
        m, n = members.clamp(min=0), rows[:, None, None]
        last, block = table.last(rows, m), table.block(rows, m)
        if m.shape[2] == 1:
            own: Tensor = last[..., 0].abs() / block[..., 0, 0].abs().clamp(min=1e-300).sqrt()
            return own
        w = (observed[n, m] & (members >= 0)).double()
        sign = torch.where((table.kept[n, m] & (w > 0)).any(2), -1.0, 1.0)[..., None, None]
        block = sign * block * w[..., None] * w[..., None, :] + torch.diag_embed(1 - w)
        v = (last * w)[..., None]
        squared: Tensor = (v * torch.linalg.solve(block, v)).sum((2, 3))
        return squared.clamp(min=0).sqrt()


@dataclass(frozen=True)
class Scales:
    """How large residuals of groups are: on simulations that were held out, and near a vector."""

    everywhere: Annotated[Tensor, "G"]
    z: Annotated[Tensor, "n D"]  # the simulations, in standard units, float32
    squares: Annotated[Tensor, "n G"]  # of their residuals, relative to the mean
    known: Annotated[Tensor, "G"]  # R^2, what the other entries say of a group

    def __call__(self, y: Tensor, kept: Tensor) -> Tensor:
        """Return scales `(R, G)` near clipped vectors, by the entries that are believed."""
        w, close = kept.float(), min(CLOSE, len(self.z))
        far = w @ self.z.square().T - 2 * (w * y) @ self.z.T
        near = self.squares[far.topk(close, 1, largest=False).indices].sum(1)
        return self.everywhere * ((PRIOR + near) / (PRIOR + close)).sqrt()


@dataclass(frozen=True)
class Vectors:
    """Observed vectors in standard units, `(B, D)`; `noise` is variance beyond simulations'."""

    y: Tensor
    observed: Tensor
    noise: Tensor

    def __getitem__(self, rows: Tensor) -> "Vectors":
        return Vectors(self.y[rows], self.observed[rows], self.noise[rows])

    def repeated(self, times: int) -> "Vectors":
        """Return each vector so many times."""
        return Vectors(*(t.repeat_interleave(times, 0) for t in vars(self).values()))


@dataclass(frozen=True)
class Search:
    """The search for the entries to believe."""

    bank: Annotated[Bank, {"D": "D"}]
    shape: Annotated[Shape, {"D": "D"}]
    groups: Annotated[Groups, {"G": "G"}]  # of entries that fail together
    scales: Annotated[Scales, {"G": "G", "D": "D"}]  # a, of each group's residual
    neighbours: Annotated[int, range(2, 2**20)]  # k
    limit: float  # c, in units of `scales`
    quiet: float  # no starts for vectors whose scores are all below, as most simulations' are

    def sweep(self, near: Tensor, v: Vectors, kept: Tensor) -> Swept:
        """Return what neighbours `(R, k)` say of vectors that believe `kept`, `(R, D)`."""
        table = self.shape.sweep(self.bank.z[near], v.y, kept, v.noise)
        table.scale = self.scales(self.bank.clipped(v.y), kept)
        return table

    def price(self, table: Swept) -> Tensor:
        """Return the price of setting each group aside, `(R, G)`."""
        return (self.limit * table.scale).square() - GIVEN_UP * self.scales.known.log()

    def rows(self, copies: int) -> int:
        """Return how many vectors to treat at once, with so many tables of each."""
        D, width = self.bank.z.shape[1], self.shape.correlation.shape[1]
        return max(1, TABLES // (copies * max(width**2, self.neighbours * D)))

    def consistent(self, num_entries: int) -> bool:
        """Return whether groups name each entry once, and scales are positive: of a file."""
        named = self.groups.members[self.groups.members >= 0].sort().values
        scales = torch.cat([self.scales.everywhere, self.bank.scale])
        cells, num = self.bank.cells, len(self.bank.z)
        right = torch.equal(named, torch.arange(num_entries)) and bool((scales > 0).all())
        right = right and bool((self.scales.squares >= 0).all() and (self.scales.known > 0).all())
        right = right and len(cells) <= num and bool(((cells >= 0) & (cells < num)).all())
        return right and self.neighbours <= cells.shape[1] and 0 <= self.shape.shrinkage <= 1

    def __call__(self, v: Vectors) -> tuple[Found, Tensor]:
        """Search for each vector.

        Return the best sets found, and sets `(B, CHAINS, D)` drawn with weights exp(-Q / 2) from
        those that any start has led to, each counted once.
        """
        blocks = torch.arange(len(v.y)).split(self.rows(1))
        parts = [self._block(v[rows]) for rows in blocks]
        return Found.join([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _block(self, v: Vectors) -> tuple[Found, Tensor]:
        pool = Pool.of(self.bank, v.y, v.observed[:, None])
        found = self._settle(v.observed[:, None], v, pool)
        chains = v.observed[:, None].repeat(1, CHAINS, 1)
        loud = ((found.statistic > self.quiet) | (found.kept != v.observed).any(1)).nonzero()[:, 0]
        for rows in loud.split(self.rows(STARTS)) if len(loud) else ():
            best, chains[rows] = self._restart(found[rows], v[rows])
            found = _replaced(found, rows, best)
        some = (~found.kept).any(1).nonzero()[:, 0]
        for rows in some.split(self.rows(1)) if len(some) else ():
            kept = found.kept[rows, None]
            found = _replaced(found, rows, self._settle(kept, v[rows], self.pool(v[rows], kept)))
        return found, chains

    def _restart(self, found: Found, v: Vectors) -> tuple[Found, Tensor]:
        """Begin at other sets of entries too; return the best found, and where chains begin."""
        B, num = len(v.y), STARTS + 1
        starts = self.bank.starts(v.y, v.observed, STARTS) & v.observed[:, None]
        pool = Pool.of(self.bank, v.y, starts)
        every = Found.join([found, self._settle(starts, v, pool)])
        index = torch.arange(B * STARTS).view(B, STARTS) + B
        index = torch.cat([torch.arange(B)[:, None], index], 1)
        cost, kept = every.cost[index], every.kept[index]
        copies = (kept[:, :, None] == kept[:, None]).all(3).sum(2)
        weights = torch.softmax(-cost / 2 - copies.double().log(), 1).cumsum(1)
        points = (torch.arange(CHAINS, dtype=torch.float64) + 0.5) / CHAINS
        drawn = torch.searchsorted(weights, points.expand(B, -1).contiguous()).clamp(max=num - 1)
        best = index.gather(1, cost.argmin(1, keepdim=True))[:, 0]
        return every[best], kept.gather(1, drawn[..., None].expand(-1, -1, v.y.shape[1]))

    def sample(self, v: Vectors, kept: Tensor, pool: Pool, seed: int) -> Tensor:
        """Draw sets to believe with density proportional to exp(-Q / 2), by Gibbs sampling.

        Chains begin at `kept`, `(B, CHAINS, D)`, and end at what is returned. Groups about which
        there is no doubt at any chain's start stay. All vectors have the same random numbers, so
        that none depends on the others.
        """
        generator = torch.Generator().manual_seed(seed)
        many, rows = v.repeated(CHAINS), torch.arange(kept[..., 0].numel())
        here = self.groups.any(many.observed)
        for _ in range(SWEEPS):
            table = self.shared(v, kept, pool)[1]
            bound = self.price(table)
            odds = bound - self.groups.distance(table, many.observed, rows).square()
            now = self.groups.any(table.kept)
            doubted = ((odds.abs() < OPEN) | ((odds > 0) != now)) & here
            doubted = doubted.view(*kept.shape[:2], -1).any(1)
            shuffled = torch.randperm(doubted.shape[1], generator=generator)
            first = doubted[:, shuffled].byte().sort(dim=1, descending=True, stable=True).indices
            order = shuffled[first]
            u = torch.rand(doubted.shape[1], CHAINS, dtype=torch.float64, generator=generator)
            open_ones = doubted.repeat_interleave(CHAINS, 0)
            for i in range(int(doubted.sum(1).max())):
                g = order[:, i].repeat_interleave(CHAINS)
                r = self.groups.distance(table, many.observed, rows, g)[:, 0]
                now = self.groups.any(table.kept)[rows, g]
                believe = u[i].repeat(len(v.y)) < torch.sigmoid((bound[rows, g] - r.square()) / 2)
                flip = (believe != now) & open_ones[rows, g]
                self._toggle(table, flip.nonzero()[:, 0], many.observed, g[flip])
            kept = table.kept.view_as(kept)
        return kept

    def pool(self, v: Vectors, sets: Tensor) -> Pool:
        """Return what lies near vectors by sets `(B, C, D)` that differ little."""
        ends = torch.stack([sets.all(1), sets.any(1)], 1)
        return Pool.of(self.bank, v.y, ends, exact=EXACT * self.neighbours)

    def shared(self, v: Vectors, kept: Tensor, pool: Pool) -> tuple[Tensor, Swept]:
        """Return neighbours and `sweep` of each vector with sets `(B, C, D)`: equal ones once."""
        B, C, D = kept.shape
        near = pool.nearest(kept, self.neighbours).flatten(0, 1)
        sets, many = kept.flatten(0, 1), v.repeated(C)
        code = torch.rand(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        name = sets.double() @ code + 2.0 * D * torch.arange(B).repeat_interleave(C)
        _, inverse = name.unique(return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), B * C)
        first.scatter_reduce_(0, inverse, torch.arange(B * C), "amin")
        return near, self.sweep(near[first], many[first], sets[first]).select(inverse)

    def _toggle(self, table: Swept, rows: Tensor, observed: Tensor, chosen: Tensor) -> None:
        """Take the chosen groups in or out, one for each of some rows."""
        for entry in self.groups.members[chosen].T:
            real = (entry >= 0) & observed[rows, entry]
            if real.any():
                table.toggle(rows[real], entry[real])

    def _settle(self, kept: Tensor, v: Vectors, pool: Pool) -> Found:
        """Alternate between neighbours and steps until the believed sets `(B, S, D)` stay."""
        shape, v = kept.shape, v.repeated(kept.shape[1])
        kept = self.whole(kept.flatten(0, 1), v.observed)
        todo, found = torch.arange(len(kept)), cast(Any, None)
        for _ in range(ROUNDS):
            near = pool.nearest(kept.view(shape), self.neighbours).flatten(0, 1)[todo]
            table = self.sweep(near, v[todo], kept[todo])
            self.steps(table, v.observed[todo])
            part = self.describe(table, v.observed[todo])
            found = part if found is None else _replaced(found, todo, part)
            moved = (part.kept != kept[todo]).any(1)
            kept[todo] = part.kept
            todo = todo[moved]
            if not len(todo):
                break
        return cast(Found, found)

    def whole(self, kept: Tensor, observed: Tensor) -> Tensor:
        """Believe a group where most of its observed entries are believed."""
        share = self.groups.count(kept) >= 0.5 * self.groups.count(observed)
        return share[:, self.groups.labels] & observed

    def steps(self, table: Swept, observed: Tensor) -> None:
        """Set groups aside and take them back, the clearest first, while that lowers Q."""
        size = self.groups.count(observed)
        most = MOST_ASIDE * observed.sum(1, keepdim=True)
        todo = torch.arange(len(observed))
        price = self.price(table)
        for _ in range(3 * size.shape[1]):
            over = self.groups.distance(table, observed, todo) / price[todo].sqrt()
            believed = self.groups.any(table.kept[todo])
            room = most[todo] - (size[todo] * ~believed).sum(1, keepdim=True)
            out = believed & (size[todo] <= room) & (over > 1)
            back = ~believed & (size[todo] > 0) & (over <= 1)
            remove = out.any(1, keepdim=True)
            wish = torch.where(remove, out, back)
            if not (act := wish.any(1)).any():
                return
            urgent = torch.where(remove, over, -over).masked_fill(~wish, -torch.inf)
            order = urgent.argsort(1, descending=True)
            fits = ~remove | (size[todo].gather(1, order).cumsum(1) <= room)
            number = (-(-wish.sum(1) // AT_ONCE)).clamp(max=fits.long().cumprod(1).sum(1))
            for i in range(int(number.max())):
                rows = number > i
                self._toggle(table, todo[rows], observed, order[rows, i])
            todo = todo[act]

    def describe(self, table: Swept, observed: Tensor) -> Found:
        """Return what a table says of each entry."""
        r = self.groups.distance(table, observed, torch.arange(len(observed)))
        here, aside = self.groups.any(observed), ~self.groups.any(table.kept)
        largest, price = (r / table.scale).masked_fill(~here, 0).amax(1), self.price(table)
        cost = table.chi_square + (price * (here & aside)).sum(1)
        left = ((r.square() > price) & ~aside).any(1)
        return Found(table.kept.clone(), largest, *table.conditional(), cost, left)


def _replaced(found: Found, rows: Tensor, part: Found) -> Found:
    """Return `found` with some rows replaced."""
    for name, value in vars(found).items():
        value[rows] = vars(part)[name]
    return found


def completed(
    search: Search, v: Vectors, sets: Tensor, pool: Pool, num: int, widening: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw `num` vectors for each of several sets `(B, C, D)` of entries to believe.

    Return conditional means `(B, C, D)` and draws `(B, C * num, D)`, `widening` times as far from
    these. All vectors have the same random numbers, so that none depends on the others.
    """
    (B, C, D), generator = sets.shape, torch.Generator().manual_seed(seed)
    near, table = search.shared(v, sets, pool)
    v = v.repeated(C)
    mean = (v.y - table.d) + table.move(table.d[:, None])[:, 0]
    k = near.shape[1]
    order = torch.randperm(k, generator=generator).repeat(-(-C * num // k))[: C * num]
    x = search.bank.z[near.gather(1, order.view(C, num).repeat(B, 1))].double()
    epsilon = torch.randn(C, num, D, dtype=torch.float64, generator=generator).repeat(B, 1, 1)
    seen = x + v.noise.sqrt()[:, None] * epsilon
    drawn = mean[:, None] + widening * (x + table.move(v.y[:, None] - seen) - mean[:, None])
    return mean.view(B, C, D), drawn.view(B, C * num, D)
