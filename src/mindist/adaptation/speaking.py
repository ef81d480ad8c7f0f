r"""Speak: the summary of the observations that are left, by the user's own function.

.. math:: w \leftarrow w(x, s), \qquad s \leftarrow f(x_w) + b(s)

until the weights stand still, with the weights of `mindist.adaptation.sorting`, the summary
:math:`f(x_w)` of the kept observations, and :math:`b(s) = \mathbb{E}[f(x) - f(x_w)]`, what sorting
at the true summary takes from clean data: with it the truth is a fixed point.

There are several fixed points; a summary that is inflated by contamination explains it. So the
iteration starts from the observed summary, from that of the half of the observations which the
model there explains best, from summaries of small random subsets, which no contamination below one
half can all reach (FAST-LTS), and from simulations with similar embeddings. Paths that have met go
on as one. Of the fixed points the one with the least

.. math:: (T / \mathbb{E}[T \mid s] - q)_+ + u + 10\, u^2 + 20\, (u - \tfrac12)_+ , \quad
    u = 1 - \bar w

is chosen, T being the misfit of what is left at s (`mindist.detection.statistics`), and q what four
fifths of clean simulations have at most: first what is left has to look like the model, then little
is to be left out. A tenth of T / E[T | s] is added: of two that look like the model, the better.
The truth may push paths away, if an inflated summary keeps more of what inflates it; so summaries
with similar embeddings are also candidates as they are, and the best candidate goes on only while
that is better.

**Other explanations.** Along a valley of this price one summary is as good as another. Sorting once
more, strictly (below a tenth instead of a thousandth of simulated observations), shows where it
leads: it moves the summary by d. The best fixed point, the second best with other weights (where
there is none, a candidate with much the same), and t + k d, k = 1, ..., 4, are explanations of the
data, each worth exp(-price / 0.2). Steps d that half of clean simulations have are no evidence and
shrink to 0; the summary itself moves to the mean of the explanations only as far as d is more than
what 19 in 20 clean simulations have.

References:
    Rousseeuw and Van Driessen, Computing LTS regression for large data sets, Data Mining and
    Knowledge Discovery 12 (2006).
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mindist.adaptation.sorting import STRICT, Sorter
from mindist.detection.statistics import Misfit, mean_of
from mindist.features.residuals import Regression
from mindist.summarise import Summariser

ROUNDS, FURTHER = 10, 2  # of sorting and speaking, and from the best of all candidates
UNSORTED_ROUNDS = 2  # first rounds without (b), whose own densities mean little far from the truth
SUBSETS = 20  # at 30% contamination one of them has 4 clean observations with probability .99
SUBSET_SHARES, FEWEST = (20, 10), (4, 6)  # one in so many observations, and at least so many
LEAST_SHARE = 0.35  # of the observations that are left
# Of explanations: how far to go on where strict sorting leads, the price that makes one e times
# less likely, and the mean difference of weights that makes another one.
CLEAN, ROUNDED = (0.5, 0.95), 0.01  # shares of clean simulations; of a mean square
STEPS, TEMPERATURE, OTHER = (1.0, 2.0, 3.0, 4.0), 0.2, 0.05
NOTHING = 1e6  # the price of a fixed point that leaves less
LEFT_OUT, MINORITY = 10.0, 20.0  # of leaving all observations out, and those beyond one half
WELL = 0.1  # of the distance over the expected one
OFFSETS = (0.5, 0.06, 0.19, 0.31, 0.69, 0.81, 0.94)  # of systematic resamples that are averaged
GROUPS = 200  # of observations that are left out in turn
CHUNK_BYTES = 2**22  # of data summarised at once


class Spoken(NamedTuple):
    """The chosen fixed point of each of B datasets."""

    s: Tensor  # the summary `(B, d_s)`, float64
    weights: Tensor  # of the observations `(B, N)`
    misfit: Tensor  # log distance of what is left from the model, less what is expected, `(B,)`
    share: Tensor  # how much explanations of the data are worth `(B, C)`
    every: Tensor  # their summaries `(B, C, d_s)`

    def about(self, s: Tensor) -> Tensor:
        """Return the second moments of all explanations about summaries `(B, d_s)`."""
        off = self.every - s[:, None]
        return (self.share[..., None] * off).mT @ off


class Judged(NamedTuple):
    """Candidates, what sorting at them leaves, and what they cost."""

    s: Tensor  # `(R, d_s)`
    weights: Tensor  # `(R, N)`
    misfit: Tensor  # `(R,)`
    price: Tensor  # `(R,)`


@dataclass(frozen=True)
class Speaker:
    """Summaries of parts of a dataset."""

    summarise: Summariser  # the summary function
    refill: bool  # whether parts are filled up to N, because the function fails on fewer

    @classmethod
    def of(cls, summarise: Summariser, x: Tensor) -> "Speaker":
        """Try the function on all but one, and on half, of the observations of a few datasets."""
        few, N = x[:3], x.shape[1]
        try:
            parts = [summarise(few[:, : max(1, n)]) for n in (N - 1, N // 2)]
            fails = not all(bool(torch.isfinite(part).all()) for part in parts)
        except Exception:  # anything that a user's function may raise on another N
            fails = True
        return cls(summarise, fails)

    def __call__(self, x: Tensor, row: Tensor, mask: Tensor) -> Tensor:
        """Return summaries `(R, d_s)` of the masked observations `(R, N)` of `x[row]`.

        NaN where there are none, or where the function fails.
        """
        num, N = mask.sum(1), mask.shape[1]
        order = mask.byte().sort(dim=1, descending=True, stable=True).indices
        value = torch.full((len(row), self._dim), torch.nan, dtype=torch.float64, device=x.device)
        for count in num.unique().tolist():
            if not count:
                continue
            which = (num == count).nonzero()[:, 0]
            chosen = order[which, :count]
            if self.refill:
                chosen = chosen[:, torch.arange(N, device=x.device) % count]
            value[which] = self.function(x[row[which][:, None], chosen])
        return value

    def function(self, x: Tensor) -> Tensor:
        """Return summaries `(B, d_s)`, float64; NaN where the user's function raises."""
        try:
            return self.summarise(x).double()
        except Exception:  # a singular matrix, too few observations
            if len(x) == 1:
                return torch.full((1, self._dim), torch.nan, dtype=torch.float64, device=x.device)
        return torch.cat([self.function(one) for one in x.split(1)])

    @property
    def _dim(self) -> int:
        assert self.summarise.dim is not None
        return self.summarise.dim

    def weighted(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return summaries `(B, d_s)` of weighted datasets, averaged over systematic resamples."""
        rows = torch.arange(len(x), device=x.device)
        value = self(x, rows, systematic(weights, OFFSETS[0]))
        some = ((weights > 1e-3) & (weights < 1 - 1e-3)).any(1).nonzero()[:, 0]
        if len(some):
            own = weights[some]
            parts = [self(x, rows[some], systematic(own, offset)) for offset in OFFSETS[1:]]
            value[some] = torch.stack([value[some], *parts]).nanmean(0)
        return value

    def influence(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the influence `(B, N, d_s)` of each observation on the summary of what is left.

        By the jackknife: (n - 1) times what the summary loses with the observation, one at a time
        or, of more than 200 observations, in groups. Observations that are out have none.
        """
        kept = systematic(weights, OFFSETS[0])
        B, N = kept.shape
        num = min(N, GROUPS)
        group, rows = torch.arange(N, device=x.device) % num, torch.arange(B * num, device=x.device)
        whole = self(x, rows[:B], kept)
        parts = []
        for part in rows.split(max(1, CHUNK_BYTES // max(1, x[:1].nbytes))):
            row = part // num
            left = kept[row] & (group != (part % num)[:, None])
            gone = (kept[row].sum(1) - left.sum(1)).clamp(min=1)
            parts.append((left.sum(1) / gone)[:, None] * (whole[row] - self(x, row, left)))
        value = torch.cat(parts).view(B, num, -1)[:, group] if B else whole[:, None]
        return torch.where(kept[..., None], value.nan_to_num(0.0), 0.0)


def systematic(weights: Tensor, offset: float) -> Tensor:
    """Choose about as many observations as the weights `(B, N)` sum to, each at most once."""
    total = weights.double().cumsum(1) + offset + 1e-6
    before = torch.cat([torch.full_like(total[:, :1], offset + 1e-6), total[:, :-1]], 1)
    return total.floor() > before.floor()


@dataclass(frozen=True)
class Further:
    """How far strict sorting moves a summary, beyond what it does to clean data."""

    expected: Regression  # of clean data
    log_square: Regression  # the log of the squared rest, of clean data
    # the largest squared rest over the expected one that half and that most of clean data have
    usual: tuple[float, ...]

    @classmethod
    def of(cls, step: Tensor, s: Tensor, num: int) -> "Further":
        """From steps `(M, d_s)` of clean simulations with summaries `(M, d_s)`."""
        expected, left_out = Regression.of(s, step, num, wider=0.0)
        square = (step - left_out).square()
        square = square + ROUNDED * square.mean(0) + torch.finfo(square.dtype).tiny
        log_square, usual = Regression.of(s, square.log(), num, wider=0.0)
        length = (square / usual.exp()).amax(1)
        return cls(expected, log_square, tuple(float(length.quantile(q)) for q in CLEAN))

    def __call__(self, step: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is unusual of steps `(B, d_s)` at summaries, and how clearly, `(B, 1)`."""
        rest = (step - self.expected(s)).nan_to_num(0.0)
        length = (rest.square() / self.log_square(s).exp()).amax(1, keepdim=True)
        half, most = ((1 - q / length.clamp(min=1e-30)).clamp(min=0) for q in self.usual)
        return half * rest, most


@dataclass(frozen=True)
class FixedPoints:
    """Sort and speak in turn, from many starts, and choose one fixed point of each dataset."""

    sorter: Sorter  # sorts
    speaker: Speaker  # speaks
    bias: Regression  # b(s)
    further: Further  # where strict sorting leads
    misfit: Misfit  # how far what is left is from the model, over what is expected
    usual: float  # q, the distance over the expected one that costs nothing

    def __call__(self, x: Tensor, seen: Tensor, s_obs: Tensor, near: Tensor) -> Spoken:
        """Return the chosen fixed points of datasets `(B, N, *event)` with summaries `(B, d_s)`.

        `seen` is what residuals see of them, `(B, N, q)`; `near` are projections of them `(B, S,
        d_s)`, to start from and to choose from.
        """
        starts = torch.cat([s_obs[:, None], self._starts(x, seen, s_obs), near], 1)
        row = torch.arange(len(x), device=x.device).repeat_interleave(starts.shape[1])
        ends, alive = self._iterate(x, seen, starts.flatten(0, 1), row)
        # The truth may push paths away: projections are candidates as they are, too.
        ends = torch.cat([ends.view_as(starts), near], 1)
        kept = torch.zeros(starts.shape[:2], dtype=torch.bool, device=x.device)
        kept.view(-1)[alive] = True
        kept = torch.cat([kept, torch.isfinite(near).all(2)], 1)
        row = kept.nonzero()[:, 0]
        found = self._judge(seen[row], ends[kept])
        best = _cheapest(found.price, row, len(x))
        chosen = Judged(*(part[best] for part in found))
        other = (found.weights - chosen.weights[row]).abs().mean(1) > OTHER
        second = _cheapest(torch.where(other, found.price, torch.inf), row, len(x))
        return self._speak(x, seen, chosen, Judged(*(part[second] for part in found)))

    def _speak(self, x: Tensor, seen: Tensor, best: Judged, second: Judged) -> Spoken:
        """Go on from the best candidates as long as that is better, and speak."""
        for _ in range(FURTHER):
            there = self._judge(seen, self._value(x, best))
            which = (there.price < best.price).nonzero()[:, 0]
            for old, new in zip(best, there, strict=True):
                old[which] = new[which]
        value = self._value(x, best)
        strict = self.speaker.weighted(x, self.sorter(seen, best.s, cut=STRICT).weights)
        step, clearly = self.further(strict - value + self.bias(best.s), best.s)
        line = [self._judge(seen, value + k * step) for k in STEPS]
        s = torch.stack([value, second.s, *(one.s for one in line)], 1)
        price = torch.stack([best.price, second.price, *(one.price for one in line)], 1)
        share = ((best.price[:, None] - price) / TEMPERATURE).clamp(max=0).softmax(1)
        centre = value.lerp((share[..., None] * s).sum(1), clearly)
        return Spoken(centre, best.weights, best.misfit, share, s)

    def _value(self, x: Tensor, at: Judged) -> Tensor:
        """Return the summary of what is left `(B, d_s)`, its bias taken out."""
        spoken = self.speaker.weighted(x, at.weights)
        usable = torch.isfinite(spoken).all(1, keepdim=True)
        return torch.where(usable, spoken + self.bias(at.s), at.s)

    def _judge(self, seen: Tensor, s: Tensor) -> Judged:
        """Sort datasets `(R, N, q)` at candidates `(R, d_s)`, and price what is left."""
        found = self.sorter(seen, s)
        misfit, share = mean_of(self.misfit(found.rho, found.weights, s)), found.weights.mean(1)
        far, out = misfit.exp(), 1 - share
        price = (far - self.usual).clamp(min=0) + WELL * far + out + LEFT_OUT * out.square()
        price = price + MINORITY * (out - 0.5).clamp(min=0) + NOTHING * (share < LEAST_SHARE)
        return Judged(s, found.weights, misfit, price)

    def _starts(self, x: Tensor, seen: Tensor, s_obs: Tensor) -> Tensor:
        """Return summaries of the best half and of random subsets, `(B, S, d_s)`.

        The subsets are the same for all datasets of N observations: a dataset's result does not
        depend on its batch.
        """
        B, N = x.shape[:2]
        generator = torch.Generator().manual_seed(N)
        rows = torch.arange(B, device=x.device)
        density = self.sorter(seen, s_obs, clumps=False).log_density
        mask = torch.zeros(SUBSETS, N, dtype=torch.bool)
        for number in range(SUBSETS):
            kind = number % len(SUBSET_SHARES)
            size = min(N, max(FEWEST[kind], N // SUBSET_SHARES[kind]))
            mask[number, torch.randperm(N, generator=generator)[:size]] = True
        masks = torch.cat(
            [_best(density, N // 2)[:, None], mask.to(x.device).expand(B, -1, -1)], 1
        ).flatten(0, 1)
        found = self.speaker(x, rows.repeat_interleave(1 + SUBSETS), masks)
        return found.view(B, 1 + SUBSETS, -1)

    def _iterate(self, x: Tensor, seen: Tensor, s: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summaries `(R, d_s)` where paths end, and the indices of distinct paths."""
        s, N = s.clone(), x.shape[1]
        alive = torch.isfinite(s).all(1).nonzero()[:, 0]
        going = torch.ones(len(s), dtype=torch.bool, device=x.device)
        last = torch.zeros(len(s), N, dtype=torch.bool, device=x.device)
        for number in range(ROUNDS):
            at = alive[going[alive]]
            if not len(at):
                break
            before = s[at]
            found = self.sorter(seen[row[at]], before, clumps=number >= UNSORTED_ROUNDS)
            mask = systematic(found.weights, OFFSETS[0])
            few = mask.sum(1) < LEAST_SHARE * N
            if few.any():
                mask[few] = _best(found.log_density[few], int(LEAST_SHARE * N))
            spoken = self.speaker(x, row[at], mask)
            usable = torch.isfinite(spoken).all(1)
            s[at[usable]] = spoken[usable] + self.bias(before[usable])
            still = (mask == last[at]).all(1) & (number > UNSORTED_ROUNDS)
            going[at[still | ~usable]] = False
            last[at] = mask
            alive = alive[_first_of_equals(torch.cat([row[alive, None], last[alive]], 1))]
        return s, alive


def _cheapest(price: Tensor, row: Tensor, num: int) -> Tensor:
    """Return the indices `(num,)` of the least price of each row; the first of equals."""
    order = price.argsort(stable=True)
    order = order[row[order].argsort(stable=True)]
    return order[torch.searchsorted(row[order], torch.arange(num, device=row.device))]


def _best(density: Tensor, num: int) -> Tensor:
    """Return a mask `(B, N)` of the observations with the highest densities, at least three."""
    top = density.topk(min(density.shape[1], max(3, num)), dim=1).indices
    return torch.zeros_like(density, dtype=torch.bool).scatter_(1, top, True)


def _first_of_equals(rows: Tensor) -> Tensor:
    """Return the indices, in order, of the first of each set of equal rows `(n, k)`."""
    generator = torch.Generator().manual_seed(0)
    # Sums of whole numbers below 2^38 are exact, in whatever order they are taken.
    key = torch.randint(2**38, (rows.shape[1],), generator=generator).to(rows.device)
    _, group = (rows.double() @ key.double()).unique(return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(rows), device=rows.device)
    every = torch.arange(len(rows), device=rows.device)
    return first.scatter_reduce(0, group, every, "amin").sort().values
