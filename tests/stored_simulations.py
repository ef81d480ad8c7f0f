"""A bank of simulations in memory, for tests of what reads banks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mindist import MinimumDistance


class Chunk(NamedTuple):
    theta: np.ndarray
    s: np.ndarray
    z_bar: np.ndarray | None
    x: np.ndarray | None


@dataclass
class MemoryBank:
    """What `StoredSimulations` asks for, in chunks of `size` datasets."""

    theta: np.ndarray
    s: np.ndarray
    z_bar: np.ndarray | None
    x: np.ndarray | None
    pilot: tuple[Tensor, Tensor]
    embedding_state: Any
    size: int = 300
    complete: bool = True

    @classmethod
    def of(cls, mds: MinimumDistance, theta: Tensor, x: Tensor, *, keep: str) -> "MemoryBank":
        s = mds.summary(x)
        pilot = x[:2_000], s[:2_000]
        embedding = mds.choose_embedding(x[:1_000], s[:1_000])
        z_bar = embedding.mean(x).float().numpy()
        data = x.numpy() if keep == "data" else None
        return cls(theta.numpy(), s.numpy(), z_bar, data, pilot, embedding.state())

    def __len__(self) -> int:
        return len(self.s)

    def chunks(self) -> Iterator[Chunk]:
        for first in range(0, len(self), self.size):
            rows = slice(first, first + self.size)
            arrays = (self.theta, self.s, self.z_bar, self.x)
            yield Chunk(*(None if a is None else a[rows] for a in arrays))
