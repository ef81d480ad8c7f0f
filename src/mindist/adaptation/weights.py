r"""Which observations the model explains: density-ratio weights and the contaminated fraction.

Under Huber contamination the data come from :math:`p = a\, p_s + (1 - a)\, q` with a mass
:math:`a \le 1` of the model at the summary :math:`s` and anything else :math:`q`. An observation is
the model's with probability

.. math:: w(x) = \frac{a\, p_s(x)}{p(x)} , \qquad
    p_s(x) \approx \langle \mu(s), z(x) \rangle, \quad
    p(x) \approx \tfrac1N \textstyle\sum_j k(x, x_j) ,

both smoothed by the same local kernel, the first through its random features, the second exactly
(`OwnKernel`; with more than 1,000 observations over a subsample and the observation itself).
Clipped to [0, 1] they weigh the observations: :math:`\sum_n w_n z(x_n) / \sum_n w_n` estimates the
embedding of the clean part. The mass is the least-squares fit of :math:`a\, \mu(s)` to
:math:`\bar z`,

.. math:: a = \frac{\langle \mu(s), \bar z \rangle}{\|\mu(s)\|^2}, \qquad
    \mathrm{se}(a) = \frac{\mathrm{sd}_n \langle \mu(s), z(x_n) \rangle}{\sqrt N \, \|\mu(s)\|^2} ,

and :math:`\epsilon = 1 - a` the contaminated fraction. A mass below 1 is used in the weights only
where it is smaller than that of 95% of the simulations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mindist.features.embedding import Embedding
from mindist.features.kernel import gaussian_kernel

MAX_OWN = 1_000  # observations of a dataset that its own density is averaged over
BLOCK_ELEMENTS = 2**22  # kernel values computed at once, and kept if they are all: 32 MB


@dataclass(frozen=True)
class OwnKernel:
    """The Gaussian kernel within datasets.

    Arguments:
        seen: Represented observations `(B, N, D)`.
        bandwidth: Its standard deviation.
    """

    seen: Tensor
    bandwidth: float

    def __getitem__(self, index: Tensor) -> OwnKernel:
        """Within some of the datasets."""
        part = OwnKernel(self.seen[index], self.bandwidth)
        if self._small:
            part.__dict__["_matrix"] = self._matrix[index]
        return part

    def density(self, share: Tensor) -> Tensor:
        """Return the density of the data at its own observations, `(B, N)`, float64."""
        few = share[:, :: self._every]
        total = torch.empty_like(share)
        for datasets, rows, kernel in self._blocks():
            total[datasets, rows] = (kernel @ few[datasets, :, None]).squeeze(-1)
        if self._every == 1:
            return total / few.sum(1, keepdim=True)
        # An observation that is not among the few counts itself too.
        order = torch.arange(share.shape[1], device=share.device)
        alone = (order % self._every > 0).double() * share
        return (total + alone) / (few.sum(1, keepdim=True) + alone)

    def through(self, value: Tensor) -> Tensor:
        r"""Return what each observation gives to all others through their densities, `(B, N, d)`.

        Returns:
            :math:`\sum_n k(x_n, x_m) v_n`; with more than 1,000 observations 0 for those that are
            not in the density's average, and more for those that are.
        """
        total = torch.zeros_like(value)
        for datasets, rows, kernel in self._blocks():
            total[datasets, :: self._every] += kernel.mT @ value[datasets, rows]
        num = value.shape[1]
        return total * (num / -(-num // self._every))

    @property
    def _every(self) -> int:
        """Stride of the subsample that the density is averaged over."""
        return max(1, -(-self.seen.shape[1] // MAX_OWN))

    @property
    def _few(self) -> int:
        return -(-self.seen.shape[1] // self._every)

    @property
    def _small(self) -> bool:
        return len(self.seen) * self.seen.shape[1] * self._few <= BLOCK_ELEMENTS

    @cached_property
    def _matrix(self) -> Tensor:
        """All values `(B, N, S)`."""
        return self._between(self.seen)

    def _between(self, points: Tensor, datasets: slice = slice(None)) -> Tensor:
        few = self.seen[datasets, :: self._every].double()
        return gaussian_kernel(points.double(), few, self.bandwidth)

    def _blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Datasets, observations, and the kernel `(b, n, S)` between them and the few."""
        count, num = self.seen.shape[:2]
        if self._small:
            if self.seen.numel():
                yield slice(None), slice(None), self._matrix
            return
        at_once = max(1, BLOCK_ELEMENTS // (num * self._few))
        length = max(1, BLOCK_ELEMENTS // (at_once * self._few))
        for first in range(0, count, at_once):
            datasets = slice(first, first + at_once)
            for start in range(0, num, length):
                rows = slice(start, start + length)
                yield datasets, rows, self._between(self.seen[datasets, rows], datasets)


LEAST_MASS = 0.05  # below it there is no model left to weigh by
LEAST_WEIGHT = 1e-12
SETTLED = 1e-3  # no weight moved by more: another round would find the same summary
MANY_COPIED = 0.1  # of the distinct observations: with more the data are rounded


@dataclass(frozen=True)
class Observations:
    """Features, densities and shares of every observation of a batch of datasets.

    Arguments:
        wide: Wide features `(B, N, K)`.
        local: Features that estimate densities `(B, N, L)`; the wide ones, without a local kernel.
        own: The density of the data at each of its own observations `(B, N)`, float64.
        kernel: The kernel between them, whose mean that density is.
        share: What each observation counts `(B, N)`, float64: 1, or less for copies.
    """

    wide: Tensor
    local: Tensor
    own: Tensor
    kernel: OwnKernel
    share: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        embedding: Embedding,
        x: Tensor,
        *,
        distinct: bool = False,
        room: Tensor | None = None,
    ) -> Observations:
        """Build from raw datasets: represent, featurise, estimate the data's own density.

        Arguments:
            embedding: Representation and kernels.
            x: Datasets `(B, N, *event)`.
            distinct: Whether copies of one observation count as one.
            room: Memory for B N K numbers, K of both kernels, that the features may be written to;
                what was returned before with the same memory is then lost.
        """
        seen = embedding.represent(x)
        shape = (*seen.shape[:-1], *embedding.features.event_shape)
        if room is not None and room.dtype != seen.dtype:
            room = None
        wide = embedding.features(seen.reshape(shape), room)
        local = wide
        if embedding.local is not None:
            rest = None if room is None else room[wide.numel() :]
            local = embedding.local(seen.reshape(shape), rest)
        share = torch.ones(x.shape[:2], dtype=torch.float64, device=x.device)
        if distinct:
            share = share / copies(x)
        kernel = OwnKernel(seen, embedding.density.bandwidth)
        return cls(wide, local, kernel.density(share), kernel, share)

    def all_counted(self) -> Observations:
        """Return the same with every copy counted."""
        if (self.share == 1).all():
            return self
        share = torch.ones_like(self.share)
        return replace(self, own=self.kernel.density(share), share=share)

    def __getitem__(self, index: Tensor) -> Observations:
        """Select datasets; return self if all are selected, in order."""
        if in_order(index, self.own.shape[0]):
            return self
        return replace(
            self,
            wide=self.wide[index],
            local=self.local[index],
            own=self.own[index],
            kernel=self.kernel[index],
            share=self.share[index],
        )

    def mean(self, weight: Tensor) -> Tensor:
        """Return the weighted mean of the wide features, `(B, K)`, float64."""
        return _weighted_mean(self.wide, weight)

    def local_mean(self) -> Tensor:
        """Return the mean of the local features, `(B, L)`, float64."""
        return _weighted_mean(self.local, self.share)

    def weigh(self, mu: Tensor, threshold: float) -> Tensor:
        """Return the weights `(B, N)` that follow from `fit`."""
        return self.fit(mu).weight(threshold)

    def fit(self, mu: Tensor) -> Fit:
        """Return how well local embeddings `(B, L)` of the model explain each observation."""
        # As a row times a matrix: three times as fast as a matrix times a column.
        density = (mu.to(self.local.dtype)[:, None] @ self.local.mT).squeeze(1).double()
        square = mu.double().square().sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        num = self.share.sum(1)
        mean = (self.share * density).sum(1) / num
        variance = (self.share * (density - mean[:, None]).square()).sum(1) / num
        return Fit(density, self.own, self.share, mean / square, (variance / num).sqrt() / square)


@dataclass(frozen=True)
class Fit:
    """The model's and the data's density at each observation, and the model's mass.

    Arguments:
        density: Of the model `(B, N)`; an estimate, may be below 0.
        own: Of the data `(B, N)`.
        share: What each observation counts `(B, N)`.
        mass: a `(B,)`, not clipped.
        error: Its standard error `(B,)`.
    """

    density: Tensor
    own: Tensor
    share: Tensor
    mass: Tensor
    error: Tensor

    @property
    def epsilon(self) -> Tensor:
        """The contaminated fraction `(B,)`, between 0 and 1."""
        return (1 - self.mass).clamp(0, 1)

    def used_mass(self, threshold: float) -> Tensor:
        """Return the mass where it is below the threshold, else 1, `(B,)`."""
        return torch.where(self.mass < threshold, self.mass.clamp(LEAST_MASS, 1), 1.0)

    def weight(self, threshold: float) -> Tensor:
        """Return the weights `(B, N)`, in [0, 1]."""
        ratio = self.used_mass(threshold)[:, None] * self.density / self.own
        return self.share * ratio.clamp(0, 1)

    def score(self, threshold: float) -> Tensor:
        """The data's density in that of data and model, `(B, N)`: 1 where no model explains it."""
        model = self.used_mass(threshold)[:, None] * self.density.clamp(min=0)
        return self.own / (self.own + model)


def in_order(rows: Tensor, num: int) -> bool:
    """Return whether indices are 0 to num - 1, so that a selection need not copy."""
    return rows.shape[0] == num and torch.equal(rows, torch.arange(num, device=rows.device))


def multiplicity(x: Tensor) -> Tensor:
    """Return how often each observation occurs in its dataset, bit for bit.

    Arguments:
        x: Datasets `(B, N, *event)`.

    Returns:
        Counts `(B, N)`.

    Example:
        >>> multiplicity(torch.tensor([[[0.5, 1.0], [0.5, 2.0], [0.5, 1.0]]]))
        tensor([[2, 1, 2]])
    """
    if not x.numel():
        return torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    rows = x.reshape(*x.shape[:2], -1)
    # Where observations differ in one of their numbers, the others need not be looked at.
    middle = rows[..., rows.shape[2] // 2].sort(dim=1).values
    tied = (middle[:, 1:] == middle[:, :-1]).any(1)
    counts = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    if tied.any():
        counts[tied] = _equal_rows(_bits(rows[tied]))
    return counts


def _bits(rows: Tensor) -> Tensor:
    """Return numbers as integers that are equal where all their bits are."""
    if not rows.is_floating_point():
        return rows
    return rows.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.itemsize])


def _equal_rows(rows: Tensor) -> Tensor:
    """Return how often each row of integers `(B, N, D)` occurs among the N, `(B, N)`."""
    # Sums of integers wrap around and are exact: equal rows have equal sums, others by a chance
    # near 2^-64, once the high bits have reached the low ones (3.0 and -3.0 differ in one bit).
    generator = torch.Generator().manual_seed(0)
    factor = torch.randint(-(2**62), 2**62, (rows.shape[2] + 2,), generator=generator) * 2 + 1
    factor = factor.to(rows.device)
    bits = rows.long()
    bits = (bits ^ (bits >> 32 & 0xFFFFFFFF)) * factor[0]  # one to one: the shift is logical
    bits = bits ^ (bits >> 32 & 0xFFFFFFFF)
    dataset = torch.arange(len(rows), device=rows.device)[:, None]
    code = (bits * factor[2:]).sum(2) + dataset * factor[1]
    inverse: Tensor
    counts: Tensor
    _, inverse, counts = code.unique(return_inverse=True, return_counts=True)
    return counts[inverse]


def copies(x: Tensor) -> Tensor:
    """How often observations occur that are copied, in datasets where few are; else 1, `(B, N)`.

    Two observations of a continuous simulator never agree: copies are a fault of the data, such as
    a reading that got stuck, and tell no more than one of them. Where more than a tenth of the
    distinct observations occur again, the data were rather rounded, and all count.
    """
    count = multiplicity(x)
    if (count == 1).all():
        return count
    repeated = ((count > 1) / count).sum(1, keepdim=True)
    rounded = repeated > MANY_COPIED * (1 / count).sum(1, keepdim=True)
    return torch.where(rounded, 1, count)


def take_weights(new: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Take new weights of some datasets where any has moved; the indices of these datasets."""
    old = weight[rows]
    # Where the model explains next to nothing, the data as they are say more than the rest.
    moved = (new.mean(1) >= LEAST_MASS) & ((new - old).abs().amax(1) >= SETTLED)
    weight[rows[moved]] = new[moved]
    return rows[moved]


def _weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Return means `(B, K)`, float64, of values `(B, N, K)`."""
    share = weight / weight.sum(1, keepdim=True).clamp(min=LEAST_WEIGHT)
    return torch.einsum("bn,bnk->bk", share.to(values.dtype), values).double()
