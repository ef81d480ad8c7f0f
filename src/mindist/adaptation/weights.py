r"""Which observations the model explains: density-ratio weights and the contaminated fraction.

Under Huber contamination the data come from :math:`p = a\, p_s + (1 - a)\, q` with a mass
:math:`a \le 1` of the model at the summary :math:`s` and anything else :math:`q`. An observation is
the model's with probability

.. math:: w(x) = \frac{a\, p_s(x)}{p(x)} , \qquad
    p_s(x) \approx \langle \mu(s), z(x) \rangle, \quad
    p(x) \approx \tfrac1N \textstyle\sum_j k(x, x_j) ,

both smoothed by the same local kernel, the first through its random features, the second exactly.
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

import torch
from torch import Tensor

from mindist.features.embedding import Embedding

MAX_OWN = 1_000  # observations of a dataset that its own density is averaged over
LEAST_MASS = 0.05  # below it there is no model left to weigh by
LEAST_WEIGHT = 1e-12
MANY_COPIED = 0.1  # of the distinct observations: with more the data are rounded
BLOCK_ELEMENTS = 2**24
EXACT = "donot_use_mm_for_euclid_dist"  # products cancel far from the origin


@dataclass(frozen=True)
class Observations:
    """What the kernels see of every observation of a batch of datasets.

    Arguments:
        wide: Wide features `(B, N, K)`.
        local: Features that estimate densities `(B, N, L)`; the wide ones, without a local kernel.
        own: The density of the data at each of its own observations `(B, N)`, float64.
        seen: The represented observations `(B, N, D)`.
        share: What each observation counts `(B, N)`, float64: 1, or less for copies.
        bandwidth: Of the kernel that estimates densities.
    """

    wide: Tensor
    local: Tensor
    own: Tensor
    seen: Tensor
    share: Tensor
    bandwidth: float

    @classmethod
    def of(cls, embedding: Embedding, x: Tensor, *, distinct: bool = False) -> Observations:
        """Of datasets `(B, N, *event)`; `distinct`: copies of one observation count as one."""
        seen = embedding.represent(x)
        shape = (*seen.shape[:-1], *embedding.features.event_shape)
        wide = embedding.features(seen.reshape(shape))
        local = wide if embedding.local is None else embedding.local(seen.reshape(shape))
        bandwidth = embedding.density.bandwidth
        share = torch.ones(x.shape[:2], dtype=torch.float64, device=x.device)
        if distinct:
            share = share / copies(x)
        return cls(wide, local, own_density(seen, bandwidth, share), seen, share, bandwidth)

    def all_counted(self) -> Observations:
        """The same with every copy counted."""
        few = (self.share < 1).any(1)
        own = self.own.clone()
        own[few] = own_density(self.seen[few], self.bandwidth)
        return replace(self, own=own, share=torch.ones_like(self.share))

    def __getitem__(self, index: Tensor) -> Observations:
        """Those of some datasets."""
        return replace(
            self,
            wide=self.wide[index],
            local=self.local[index],
            own=self.own[index],
            seen=self.seen[index],
            share=self.share[index],
        )

    def mean(self, weight: Tensor) -> Tensor:
        """Weighted mean of the wide features, `(B, K)`, float64."""
        return _weighted_mean(self.wide, weight)

    def local_mean(self) -> Tensor:
        """Mean of the local features, `(B, L)`, float64."""
        return _weighted_mean(self.local, self.share)

    def fit(self, mu: Tensor) -> Fit:
        """How well local embeddings `(B, L)` of the model explain each observation."""
        density = (self.local @ mu.to(self.local.dtype)[..., None]).squeeze(-1).double()
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

    Example:
        >>> fit = Fit(torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, 0.5]]), torch.ones(1, 2),
        ...           torch.tensor([0.5]), torch.tensor([0.1]))
        >>> fit.weight(threshold=0.9), fit.score(threshold=0.9)
        (tensor([[0.5000, 0.0000]]), tensor([[0.6667, 1.0000]]))
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
        """The mass where it is below the threshold, else 1, `(B,)`."""
        return torch.where(self.mass < threshold, self.mass.clamp(LEAST_MASS, 1), 1.0)

    def weight(self, threshold: float) -> Tensor:
        """The weights `(B, N)`, in [0, 1]."""
        ratio = self.used_mass(threshold)[:, None] * self.density / self.own
        return self.share * ratio.clamp(0, 1)

    def score(self, threshold: float) -> Tensor:
        """The data's density in that of data and model, `(B, N)`: 1 where no model explains it."""
        model = self.used_mass(threshold)[:, None] * self.density.clamp(min=0)
        return self.own / (self.own + model)


def multiplicity(x: Tensor) -> Tensor:
    """How often each observation occurs in its dataset, bit for bit.

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
    if rows.is_floating_point():
        rows = rows.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize])
    # Sums of integers wrap around and are exact: equal rows have equal sums, others by a chance
    # near 2^-64, once the high bits have reached the low ones (3.0 and -3.0 differ in one bit).
    generator = torch.Generator().manual_seed(0)
    factor = torch.randint(-(2**62), 2**62, (rows.shape[2] + 2,), generator=generator) * 2 + 1
    factor = factor.to(x.device)
    bits = rows.long()
    bits = (bits ^ (bits >> 32 & 0xFFFFFFFF)) * factor[0]  # one to one: the shift is logical
    bits = bits ^ (bits >> 32 & 0xFFFFFFFF)
    dataset = torch.arange(len(x), device=x.device)[:, None]
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

    Arguments:
        x: Datasets `(B, N, *event)`.

    Example:
        >>> stuck, rounded = torch.arange(20.0).clamp(max=15), torch.arange(20) // 2
        >>> copies(torch.stack([stuck, rounded]))[:, -6:]
        tensor([[1, 5, 5, 5, 5, 5],
                [1, 1, 1, 1, 1, 1]])
    """
    count = multiplicity(x)
    repeated = ((count > 1) / count).sum(1, keepdim=True)
    rounded = repeated > MANY_COPIED * (1 / count).sum(1, keepdim=True)
    return torch.where(rounded, 1, count)


def own_density(seen: Tensor, bandwidth: float, share: Tensor | None = None) -> Tensor:
    """The exact kernel density of each dataset at its own observations.

    Arguments:
        seen: Represented observations `(B, N, D)`.
        bandwidth: Of the Gaussian kernel.
        share: What each observation counts `(B, N)`; by default all alike.

    Returns:
        Means `(B, N)` of the kernel, float64, over at most 1,000 observations and the one itself.

    Example:
        >>> own_density(torch.tensor([[[0.0], [0.0], [50.0]]]), 1.0)
        tensor([[0.6667, 0.6667, 0.3333]], dtype=torch.float64)
    """
    if not len(seen):
        return torch.empty(seen.shape[:2], dtype=torch.float64, device=seen.device)
    num, every = seen.shape[1], _every(seen.shape[1])
    if share is None:
        share = torch.ones(seen.shape[:2], dtype=torch.float64, device=seen.device)
    # An observation that is not among the few counts itself too.
    alone = (torch.arange(num, device=seen.device) % every > 0).double() * share
    few = share[:, ::every]
    size = _datasets_at_once(num)
    parts = [
        torch.cat([kernel @ counts[..., None] for _, kernel in _kernels(points, bandwidth)], dim=1)
        for points, counts in zip(seen.double().split(size), few.split(size), strict=True)
    ]
    return (torch.cat(parts).squeeze(-1) + alone) / (few.sum(1, keepdim=True) + alone)


def through_kernel(seen: Tensor, bandwidth: float, value: Tensor) -> Tensor:
    r"""What each observation gives to all others through their own densities.

    Arguments:
        seen: Represented observations `(B, N, D)`.
        bandwidth: Of the Gaussian kernel.
        value: Values `(B, N, d)`, float64.

    Returns:
        :math:`\sum_n k(x_n, x_m) v_n`, `(B, N, d)`; with more than 1,000 observations 0 for those
        that are not in the density's average, and more for those that are.

    Example:
        >>> x, v = torch.tensor([[[0.0], [0.0], [50.0]]]), torch.tensor([[[1.0], [2.0], [4.0]]])
        >>> through_kernel(x, 1.0, v.double()).flatten()
        tensor([3., 3., 4.], dtype=torch.float64)
    """
    num, every = seen.shape[1], _every(seen.shape[1])
    total = torch.zeros_like(value)
    for block in torch.arange(len(seen), device=seen.device).split(_datasets_at_once(num)):
        for rows, kernel in _kernels(seen[block].double(), bandwidth):
            total[block, ::every] += kernel.transpose(1, 2) @ value[block][:, rows]
    return total * (num / -(-num // every))


def _weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Means `(B, K)`, float64, of values `(B, N, K)`."""
    share = weight / weight.sum(1, keepdim=True).clamp(min=LEAST_WEIGHT)
    return torch.einsum("bn,bnk->bk", share.to(values.dtype), values).double()


def _every(num: int) -> int:
    """Of N observations one in so many is averaged over."""
    return max(1, -(-num // MAX_OWN))


def _datasets_at_once(num: int) -> int:
    return max(1, BLOCK_ELEMENTS // (num * min(num, MAX_OWN)))


def _kernels(points: Tensor, bandwidth: float) -> Iterator[tuple[slice, Tensor]]:
    """Kernels `(B, n, S)` of blocks of n observations with the S that are averaged over."""
    few = points[:, :: _every(points.shape[1])]
    size = max(1, BLOCK_ELEMENTS // max(1, len(few) * few.shape[1]))
    for first in range(0, points.shape[1], size):
        rows = slice(first, first + size)
        squared = torch.cdist(points[:, rows], few, compute_mode=EXACT).square()
        yield rows, torch.exp(-squared / (2 * bandwidth**2))


__all__ = ["Fit", "Observations", "copies", "multiplicity", "own_density", "through_kernel"]
