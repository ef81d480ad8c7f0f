r"""One pass over simulated datasets: summaries and mean embeddings, the data itself dropped.

Whoever learns from them sees the leading 20,000 together and the others chunk by chunk. A uniform
sample of 20,000 is kept, so that memory does not grow with their number, or, for a decoder that
needs several passes, the summaries and embeddings of all.

The first m rows fill the reservoir in order. After that, row i (from 0) replaces a random one with
probability :math:`m / (i + 1)`, which leaves every row seen so far in it with that same probability
(Vitter's algorithm R). One random number belongs to each row, so that the sample does not depend on
how the rows were cut into chunks.

References:
    Vitter, Random Sampling with a Reservoir, ACM Transactions on Mathematical Software 11 (1985).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import checks
from mindist.features import sources
from mindist.features.embedding import Embedding
from mindist.features.sources import Source


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
        self._index: Tensor | None = None
        self._seen = self._size = 0

    def fill(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Keep rows `(n, ...)` as long as there is room; return those for which there is none."""
        room = len(rows[0]) if self.capacity is None else self.capacity - self._size
        kept = tuple(part[:room] for part in rows)
        if len(kept[0]):
            self._parts.append(kept)
            self._size, self._seen = self._size + len(kept[0]), self._seen + len(kept[0])
        return tuple(part[room:] for part in rows)

    def rows(self) -> tuple[Tensor, ...]:
        """Return what is kept, `(m, ...)`."""
        if len(self._parts) != 1:
            self._parts = [tuple(torch.cat(column) for column in zip(*self._parts, strict=True))]
        return self._parts[0]

    @property
    def index(self) -> Tensor:
        """Which of all rows the kept ones are, `(m,)`."""
        return torch.arange(self._size) if self._index is None else self._index

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
        # The last of several rows for one place stays.
        slot, last = np.unique(place[taken].numpy()[::-1], return_index=True)
        source = taken.flip(0)[torch.from_numpy(last)]
        target = torch.from_numpy(slot)
        if self._index is None:
            self._index = torch.arange(self._size)
            self._parts = [tuple(part.clone() for part in self.rows())]
        self._index[target] = number[source]
        for kept, new in zip(self.rows(), rows, strict=True):
            kept[target.to(kept.device)] = new[source.to(new.device)]


@dataclass(frozen=True)
class EmbeddedSimulations:
    """What is kept of simulated datasets: all of them, or a uniform sample."""

    s: Tensor
    """Summaries `(m, d_s)`."""
    z_bar: Tensor
    """Mean embeddings `(m, K)`, float32, of both kernels."""
    index: Tensor
    """Which of all datasets these are, in the order in which they were read, `(m,)`."""
    embedding: Embedding
    sample: tuple[Tensor, Tensor]
    """Some datasets `(m, N, *event)` and their summaries `(m, d_s)`."""

    @property
    def num_obs(self) -> int:
        """N, the number of observations of each dataset."""
        return self.sample[0].shape[1]

    @property
    def probe(self) -> Tensor:
        """One dataset `(1, N, *event)`."""
        return self.sample[0][:1].clone()


class EmbeddedStream:
    """Simulations that are embedded while one iterates: the leading ones together, then the rest.

    Each item is a tuple of summaries `(m, d_s)`, mean embeddings `(m, K)` and, where asked for, the
    first observations `(m, n, *event)`.

    Arguments:
        source: The simulations.
        embedding: Embeds them.
        num_points: Observations of each dataset to keep.
        keep_all: Whether to keep all embeddings, not a sample.
        seed: Seed of the choice of those that are kept.
        progress: Whether to show a progress bar.
    """

    def __init__(
        self,
        source: Source,
        embedding: Embedding,
        *,
        num_points: int,
        keep_all: bool,
        seed: int,
        progress: bool = False,
    ) -> None:
        self.embedding, self._source, self._num_points = embedding, source, num_points
        draws = None if source.shuffled else torch.Generator().manual_seed(seed)
        self._reservoir = Reservoir(None if keep_all else sources.MAX_KEPT, draws)
        self._dropped = self._seen = 0
        self._bar = tqdm(total=source.total, desc="Embedding simulations", disable=not progress)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        begun, reservoir = False, self._reservoir
        for chunk in self._source.embed(self.embedding, self._num_points):
            count = len(chunk.s) + chunk.lost
            self._dropped, self._seen = self._dropped + chunk.lost, self._seen + count
            self._bar.update(count)
            points = () if chunk.points is None else (chunk.points,)
            rest = reservoir.fill(chunk.s, chunk.z_bar, *points) if len(chunk.s) else (chunk.s,)
            if len(rest[0]):
                if not begun:
                    yield reservoir.rows()
                begun = True
                yield rest
                reservoir.replace(*rest)
        self._bar.close()
        if not begun:
            yield reservoir.rows()

    def kept(self) -> EmbeddedSimulations:
        """Return what was kept of the simulations, after all were read; warn about lost ones."""
        checks.warn_dropped(self._dropped, self._seen)
        s, z_bar = self._reservoir.rows()[:2]
        index = self._reservoir.index.to(s.device)
        return EmbeddedSimulations(s, z_bar, index, self.embedding, self._source.sample)
