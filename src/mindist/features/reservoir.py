r"""A bounded uniform sample of a stream of rows.

The first m rows fill the reservoir in order. After that, row i (from 0) replaces a random one with
probability :math:`m / (i + 1)`, which leaves every row seen so far in it with that same probability
(Vitter's algorithm R). One random number belongs to each row, so that the sample does not depend on
how the rows were cut into chunks.

References:
    Vitter, Random Sampling with a Reservoir, ACM Transactions on Mathematical Software 11 (1985).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Reservoir:
    """Rows of several tensors, at most `capacity` of them.

    Arguments:
        capacity: m, or None to keep everything.
        generator: Decides which rows to replace; None to keep the first ones.

    Example:
        >>> reservoir = Reservoir(3, torch.Generator().manual_seed(0))
        >>> for chunk in torch.arange(1_000).split(300):
        ...     reservoir.replace(*reservoir.fill(chunk))
        >>> rows, index = reservoir.rows()[0], reservoir.index
        >>> torch.equal(rows, index), len(index), bool((index > 2).all())
        (True, 3, True)
    """

    def __init__(self, capacity: int | None, generator: torch.Generator | None = None) -> None:
        self.capacity, self._generator = capacity, generator
        self._parts: list[tuple[Tensor, ...]] = []
        self._seen = self._size = 0

    def fill(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Keep rows `(n, ...)` as long as there is room; those for which there is none."""
        room = len(rows[0]) if self.capacity is None else self.capacity - self._size
        kept = tuple(part[:room] for part in rows)
        if len(kept[0]):
            self._parts.append(kept)
            self._size, self._seen = self._size + len(kept[0]), self._seen + len(kept[0])
        return tuple(part[room:] for part in rows)

    def rows(self) -> tuple[Tensor, ...]:
        """What is kept, `(m, ...)`."""
        if len(self._parts) != 1:
            self._parts = [tuple(torch.cat(column) for column in zip(*self._parts, strict=True))]
        return self._parts[0]

    @property
    def index(self) -> Tensor:
        """Which of all rows the kept ones are, `(m,)`."""
        return self._index if hasattr(self, "_index") else torch.arange(self._size)

    def replace(self, *rows: Tensor) -> None:
        """Let further rows `(n, ...)` take the place of kept ones, at random."""
        count = len(rows[0])
        number = torch.arange(self._seen, self._seen + count)
        self._seen += count
        if self._generator is None or not count:
            return
        uniform = torch.rand(count, dtype=torch.float64, generator=self._generator)
        place = (uniform * (number + 1)).long()
        taken = (place < self._size).nonzero()[:, 0]
        # Of several rows for one place, the last.
        slot, last = np.unique(place[taken].numpy()[::-1], return_index=True)
        source = taken.flip(0)[torch.from_numpy(last)]
        target = torch.from_numpy(slot)
        if not hasattr(self, "_index"):
            self._index = torch.arange(self._size)
            self._parts = [tuple(part.clone() for part in self.rows())]
        self._index[target] = number[source]
        for kept, new in zip(self.rows(), rows, strict=True):
            kept[target.to(kept.device)] = new[source.to(new.device)]


__all__ = ["Reservoir"]
