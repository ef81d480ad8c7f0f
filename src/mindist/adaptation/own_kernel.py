r"""The exact kernel between the observations of each dataset, and the density that is its mean.

.. math:: p(x_n) = \frac{\sum_j c_j\, k(x_n, x_j)}{\sum_j c_j}

over the observations j of the same dataset, each of which counts :math:`c_j`; with more than 1,000
of them over every so many and the observation itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mindist.features.kernel import gaussian_kernel

MAX_OWN = 1_000  # observations of a dataset that its own density is averaged over
BLOCK_ELEMENTS = 2**22  # kernel values computed at once, and kept if they are all: 32 MB


@dataclass(frozen=True)
class OwnKernel:
    """The Gaussian kernel within datasets.

    Arguments:
        seen: Represented observations `(B, N, D)`.
        bandwidth: Its standard deviation.

    Example:
        >>> kernel = OwnKernel(torch.tensor([[[0.0], [0.0], [50.0]]]), 1.0)
        >>> kernel.density(torch.ones(1, 3).double())
        tensor([[0.6667, 0.6667, 0.3333]], dtype=torch.float64)
        >>> kernel.through(torch.tensor([[[1.0], [2.0], [4.0]]]).double()).flatten()
        tensor([3., 3., 4.], dtype=torch.float64)
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
        """The density of the data at its own observations, `(B, N)`, float64.

        Arguments:
            share: What each observation counts `(B, N)`, float64.
        """
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

        Arguments:
            value: Values v `(B, N, d)`, float64.

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


__all__ = ["OwnKernel"]
