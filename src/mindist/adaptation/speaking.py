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
is to be left out.

References:
    Rousseeuw and Van Driessen, Computing LTS regression for large data sets, Data Mining and
    Knowledge Discovery 12 (2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mindist.adaptation.sorting import STRICT, Sorted, Sorter
from mindist.detection.statistics import Misfit, mean_of
from mindist.features.residuals import Regression
from mindist.summarise import Summariser

ROUNDS = 10
UNSORTED_ROUNDS = 2  # first rounds without (b), whose own densities mean little far from the truth
SUBSETS = 20  # at 30% contamination one of them has 4 clean observations with probability .99
SUBSET_SHARES, FEWEST = (20, 10), (4, 6)  # one in so many observations, and at least so many
LEAST_SHARE = 0.35  # of the observations that are left
NOTHING = 1e6  # the price of a fixed point that leaves less
LEFT_OUT, MINORITY = 10.0, 20.0  # of leaving all observations out, and those beyond one half
OFFSETS = (0.5, 0.06, 0.19, 0.31, 0.69, 0.81, 0.94)  # of systematic resamples that are averaged
GROUPS = 200  # of observations that are left out in turn
CHUNK_BYTES = 2**22  # of data summarised at once


class Spoken(NamedTuple):
    """The chosen fixed point of each of B datasets."""

    s: Tensor  # the summary `(B, d_s)`, float64
    weights: Tensor  # of the observations `(B, N)`
    misfit: Tensor  # log distance of what is left from the model, less what is expected, `(B,)`
    doubt: Tensor  # how far the summary would move if sorting were strict `(B, d_s)`


@dataclass(frozen=True)
class Speaker:
    """Summaries of parts of a dataset."""

    summarise: Summariser  # the summary function
    refill: bool  # whether parts are filled up to N, because the function fails on fewer

    @classmethod
    def of(cls, summarise: Summariser, x: Tensor) -> Speaker:
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
class FixedPoints:
    """Sort and speak in turn, from many starts, and choose one fixed point of each dataset."""

    sorter: Sorter  # sorts
    speaker: Speaker  # speaks
    bias: Regression  # b(s)
    strict: Regression  # the same of strict sorting
    misfit: Misfit  # how far what is left is from the model, over what is expected
    usual: float  # q, the distance over the expected one that costs nothing

    def __call__(self, x: Tensor, seen: Tensor, s_obs: Tensor, starts: Tensor) -> Spoken:
        """Return the chosen fixed points of datasets `(B, N, *event)`.

        Arguments:
            x: The datasets.
            seen: The same, as residuals see them, `(B, N, q)`.
            s_obs: Their summaries `(B, d_s)`, float64.
            starts: Further summaries to start from `(B, S, d_s)`; NaN where there are none.
        """
        s = torch.cat([s_obs[:, None], starts], 1)
        C = s.shape[1]
        row = torch.arange(len(x), device=x.device).repeat_interleave(C)
        s, alive = self._iterate(x, seen, s.flatten(0, 1), row)
        row, s = row[alive], s[alive]
        found = self.sorter(seen[row], s)
        misfit, price = self._price(found, s)
        # The first of equals: the path from the observed summary, where it is among them.
        order = price.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        best = order[torch.searchsorted(row[order], torch.arange(len(x), device=x.device))]
        weights, s = found.weights[best], s[best]
        spoken = self.speaker.weighted(x, weights)
        usable = torch.isfinite(spoken).all(1, keepdim=True)
        value = torch.where(usable, spoken + self.bias(s), s)
        strict = self.speaker.weighted(x, self.sorter(seen, s, cut=STRICT).weights)
        doubt = (strict + self.strict(s) - value).nan_to_num(0.0)
        return Spoken(value, weights, misfit[best], doubt)

    def _price(self, found: Sorted, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far what is left is from the model at `(R, d_s)`, and the price, `(R,)`."""
        misfit, share = mean_of(self.misfit(found.rho, found.weights, s)), found.weights.mean(1)
        out = 1 - share
        price = (misfit.exp() - self.usual).clamp(min=0) + out + LEFT_OUT * out.square()
        price = price + MINORITY * (out - 0.5).clamp(min=0)
        return misfit, price + NOTHING * (share < LEAST_SHARE)

    def starts(self, x: Tensor, seen: Tensor, s_obs: Tensor) -> Tensor:
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
