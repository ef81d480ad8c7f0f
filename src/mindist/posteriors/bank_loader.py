"""Batches of a bank's datasets, larger than memory, for a training loop.

A pass reads blocks of consecutive datasets in a random order, as many at a time as a pool holds,
and draws batches from the pool at random. A bank is in random order already, so that batches of
different passes differ as those of a full shuffle do, though fewer pairs of datasets ever meet.
Parameters are kept in memory: a million of ten are 40 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.protocols import StoredSimulations

POOL_BYTES = 2**28  # of data among which batches are drawn; a bank no larger is read whole
BLOCK_BYTES = 2**24  # read at once, where the bank does not say what it stores together
Batch = tuple[Tensor, Tensor, Tensor]


class KeptData:
    """The parameters and the data of a bank that kept its data, by number.

    Arguments:
        bank: A complete bank.

    Raises:
        ValueError: Where it is not complete, or has no data.
    """

    def __init__(self, bank: StoredSimulations) -> None:
        x: Any = check_complete(bank).x
        if x is None:
            raise ValueError(
                "theta: expected a bank that kept its data, from which an embedding net learns, "
                "got one without. Simulate with keep='data', or leave the embedding net out: the "
                "posterior is then trained on the bank's summaries."
            )
        self._x, (self._theta, s) = x, parameters_and_summaries(bank)
        self.rows = torch.isfinite(s).all(1).nonzero()[:, 0]
        self.dataset_bytes = max(1, int(x[:1].nbytes))
        stored = getattr(x, "chunks", None) or (max(1, BLOCK_BYTES // self.dataset_bytes),)
        self.block = int(stored[0])

    @property
    def nbytes(self) -> int:
        """Of all data."""
        return len(self.rows) * self.dataset_bytes

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters `(m, d_theta)` and data `(m, N, *event)`, float32, of some datasets.

        Arguments:
            rows: Their numbers in the bank, in rising order; all from the first to the last are
                read.
        """
        first, last = int(rows[0]), int(rows[-1])
        data = checks.as_tensor(self._x[first : last + 1], "x").float()
        return self._theta[rows].float(), data if len(data) == len(rows) else data[rows - first]


class BankLoader:
    """What sbi asks of a data loader: batches of parameters, data and prior masks, and how many.

    Arguments:
        data: The datasets.
        rows: Which of them to load, in rising order.
        batch_size: Datasets in each batch; what is left over at the end of a pass is not loaded.
        shuffle: Whether to draw them at random, from torch's global generator.
    """

    def __init__(self, data: KeptData, rows: Tensor, batch_size: int, *, shuffle: bool) -> None:
        self._data, self._rows, self._shuffle = data, rows, shuffle
        self.batch_size = min(batch_size, len(rows))

    def __len__(self) -> int:
        return len(self._rows) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        left: tuple[Tensor, ...] = ()
        for pool in self._pools():
            parts = [*([left] if left else []), *(self._data.read(block) for block in pool)]
            theta, x = (torch.cat(column) for column in zip(*parts, strict=True))
            order = torch.randperm(len(theta)) if self._shuffle else torch.arange(len(theta))
            for chosen in order.split(self.batch_size):
                batch = theta[chosen], x[chosen]
                if len(chosen) == self.batch_size:
                    yield *batch, torch.ones(len(chosen), 1, dtype=torch.bool)
            left = batch if len(chosen) < self.batch_size else ()

    def _pools(self) -> Iterator[list[Tensor]]:
        """Blocks of numbers of datasets, as many as are in memory together."""
        ends = torch.unique_consecutive(self._rows // self._data.block, return_counts=True)[1]
        blocks = self._rows.split(ends.tolist())
        order = torch.randperm(len(blocks)) if self._shuffle else torch.arange(len(blocks))
        size = max(1, POOL_BYTES // (self._data.block * self._data.dataset_bytes))
        for pool in order.split(size):
            yield [blocks[i] for i in pool.tolist()]


def parameters_and_summaries(bank: StoredSimulations) -> tuple[Tensor, Tensor]:
    """All parameters `(M, d_theta)` and summaries `(M, d_s)`; NaN where there is no dataset."""
    check_complete(bank)
    return checks.as_tensor(bank.theta[:], "theta"), checks.as_tensor(bank.s[:], "s")


def check_complete(bank: StoredSimulations) -> StoredSimulations:
    """A bank that is not complete is none to train on."""
    if not bank.complete:
        raise ValueError(
            f"theta: expected a complete bank of {len(bank)} simulations, got one that is not. "
            "Call mindist.simulate again with the same arguments: it continues where it stopped."
        )
    return bank


__all__ = ["BankLoader", "KeptData", "parameters_and_summaries"]
