"""Observed datasets of equal or different lengths, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks
from mindist.observed.source import Source

BUFFER_BYTES = 2**28  # of datasets that wait for others of their length


@dataclass(frozen=True)
class ObservedBatch:
    """Datasets of one length.

    Arguments:
        index: Which of the datasets they are.
        x: The datasets `(B, N, *event)`.

    Example:
        >>> import torch
        >>> batch = ObservedBatch((0, 2), torch.zeros(2, 10, 1))
        >>> [(i, tuple(x.shape)) for i, x in zip(batch.index, batch.x)]
        [(0, (10, 1)), (2, (10, 1))]
    """

    index: tuple[int, ...]
    x: Tensor


@dataclass(frozen=True)
class Observed:
    r"""Observed datasets `(N_i, *event)` in a file.

    It iterates over the datasets as tensors, reads each when it is its turn, and keeps none. The
    file was read through once when this was made: lengths and missing values are known.

    Arguments:
        names: What the datasets are called: numbers, keys, or values in a column of a table.
        event_shape: The shape of one observation.
        lengths: N_i, the observations in each dataset, without those that are dropped.
        dropped: How many observations of each dataset are dropped for a missing value.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mindist import read_observed
        >>> path = Path(tempfile.mkdtemp()) / "x.csv"
        >>> _ = path.write_text("run,x,y\na,1,2\na,3,4\nb,5,6\n")
        >>> observed = read_observed(path, dataset="run")
        >>> observed
        Observed(2 datasets of 1 to 2 observations of shape (2,))
        >>> observed["a"]
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
        >>> [batch.index for batch in observed.batches()]
        [(0,), (1,)]
    """

    names: tuple[Any, ...]
    event_shape: tuple[int, ...]
    lengths: tuple[int, ...]
    dropped: tuple[int, ...]
    _source: Source = field(repr=False, compare=False)

    @classmethod
    def of(cls, source: Source, missing: str) -> Observed:
        """Read through the datasets of a source and look for missing values.

        Arguments:
            source: The file.
            missing: `"error"` or `"drop"`: see `read_observed`.
        """
        names = tuple(source.names)
        total, bad, first = [], [], None
        for i, x in enumerate(source):
            wrong = ~_complete(x)
            if first is None and wrong.any():
                first = (i, int(np.flatnonzero(wrong)[0]))
            total.append(len(x))
            bad.append(int(wrong.sum()))
        if first is not None and missing == "error":
            raise _missing(names, total, bad, first)
        lengths = tuple(n - b for n, b in zip(total, bad, strict=True))
        return cls(names, tuple(source.event_shape), lengths, tuple(bad), source)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Tensor]:
        for x in self._source:
            complete = _complete(x)
            yield _tensor(x if complete.all() else x[complete])

    def __getitem__(self, which: Any) -> Tensor:
        """One dataset `(N, *event)` by its name or, if no name is that, its number.

        Those before it are read too: to go through many, iterate.
        """
        if which in self.names:
            which = self.names.index(which)
        elif not isinstance(which, int) or not -len(self) <= which < len(self):
            raise KeyError(f"There is no dataset {which!r} among {len(self)}: see names.")
        return next(islice(self, which % len(self), None))

    @property
    def equal_length(self) -> bool:
        """Whether all datasets have as many observations."""
        return len(set(self.lengths)) <= 1

    def stack(self) -> Tensor:
        """All datasets as one batch `(B, N, *event)`, for datasets of equal length."""
        if not self.equal_length:
            raise ValueError(
                f"Datasets of {min(self.lengths)} to {max(self.lengths)} observations are no "
                "batch. Iterate over batches(), or over the datasets themselves."
            )
        return torch.stack(list(self))

    def batches(self, size: int = 1_000) -> Iterator[ObservedBatch]:
        """Batches of datasets of equal length, at most `size` in each, each dataset once.

        Memory is bounded: datasets that wait for others of their length leave early once they take
        more than 256 MB.
        """
        checks.positive(size, "size")
        waiting: dict[int, list[tuple[int, Tensor]]] = {}
        used = 0
        for i, x in enumerate(self):
            group = waiting.setdefault(len(x), [])
            group.append((i, x))
            used += x.nbytes
            if len(group) == size or used > BUFFER_BYTES:
                largest = max(waiting, key=lambda n: len(waiting[n]) * n)
                full = len(x) if len(group) == size else largest
                batch = _batch(waiting.pop(full))
                used -= batch.x.nbytes
                yield batch
        for group in waiting.values():
            yield _batch(group)

    def __repr__(self) -> str:
        low, high = min(self.lengths), max(self.lengths)
        sizes = f"{low}" if low == high else f"{low} to {high}"
        text = f"{len(self)} datasets of {sizes} observations of shape {self.event_shape}"
        some = sum(1 for count in self.dropped if count)
        if some:
            text += f"; {sum(self.dropped)} observations with missing values dropped from {some}"
        return f"Observed({text})"


def _batch(group: Sequence[tuple[int, Tensor]]) -> ObservedBatch:
    return ObservedBatch(tuple(i for i, _ in group), torch.stack([x for _, x in group]))


def _complete(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Which observations `(N,)` of a dataset have finite values only."""
    if x.dtype.kind != "f":
        return np.ones(len(x), dtype=bool)
    return np.asarray(np.isfinite(x).reshape(len(x), -1).all(1))


def _tensor(x: NDArray[Any]) -> Tensor:
    """Numbers in float32 if they are stored so, else in float64, which holds more of them."""
    small = x.dtype.kind == "f" and x.dtype.itemsize <= 4
    return torch.from_numpy(np.array(x, dtype=np.float32 if small else np.float64, order="C"))


def _missing(
    names: Sequence[Any], total: Sequence[int], bad: Sequence[int], first: tuple[int, int]
) -> ValueError:
    some = sum(1 for count in bad if count)
    return ValueError(
        f"missing: {sum(bad)} of {sum(total)} observations, in {some} of {len(total)} datasets, "
        f"have a missing, NaN or infinite value; the first is observation {first[1]} of dataset "
        f"{str(names[first[0]])[:80]!r}. Pass missing='drop' to leave such observations out, or "
        "impute them as the simulator would produce them."
    )


__all__ = ["Observed", "ObservedBatch"]
