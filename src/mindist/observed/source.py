"""A request for the data of a file, and the datasets that come out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks

MAX_BYTES = 2**32
BUFFER_BYTES = 2**28  # of datasets that wait for others of their length
ARGUMENTS = ("path", "key", "columns", "dataset")


@dataclass(frozen=True)
class Request:
    """The arguments of `read_observed`, and the errors that all formats share."""

    path: Path
    event_shape: tuple[int, ...] | None = None
    key: str | Sequence[str] | None = None
    columns: Sequence[str] | None = None
    dataset: str | None = None
    max_bytes: int = MAX_BYTES

    @contextmanager
    def reading(self, kind: str) -> Iterator[None]:
        """Turn whatever a library raises on a broken file into a ValueError that names the file."""
        try:
            yield
        except ImportError as error:
            why = f"{kind} files need {error.name}. Install it: pip install 'mindist[files]'"
            raise ImportError(why) from error
        except Exception as error:
            if isinstance(error, ValueError) and str(error).split(":")[0] in ARGUMENTS:
                raise  # one of ours
            kind_of_error = "" if type(error) is ValueError else f"{type(error).__name__}: "
            why = (f"{kind_of_error}{error}".splitlines() or [""])[0][:200]
            raise ValueError(
                f"path: {self.path} cannot be read as {kind} ({why}). It may be damaged, or of "
                "another format than its name says."
            ) from error

    def check_size(self, size: int) -> None:
        """Refuse what would take too much memory or disk once it is decompressed."""
        if size > self.max_bytes:
            raise ValueError(
                f"path: {self.path} says that it holds {size:,} bytes of data, more than max_bytes "
                f"= {self.max_bytes:,}. A small file that says so may be meant to fill your "
                "memory. If you trust it, pass a larger max_bytes."
            )


class Source(NamedTuple):
    """Datasets in a file: their names, the shape of an observation, and a way to read them."""

    names: Sequence[Any]
    event_shape: tuple[int, ...]
    read: Callable[[], Iterator[NDArray[Any]]]


@dataclass(frozen=True)
class ObservedBatch:
    """Datasets `(B, N, *event)` of one length, and which of all datasets they are.

    Example:
        >>> ObservedBatch((0, 2), torch.zeros(2, 9, 1)).index
        (0, 2)
    """

    index: tuple[int, ...]
    x: Tensor


@dataclass(frozen=True)
class Observed:
    r"""Observed datasets `(N_i, *event)` in a file; iterates over them as tensors, keeps none.

    Example:
        >>> import tempfile, mindist
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("run,x,y\na,1,2\na,3,4\nb,5,6\n")
        ...     file.flush()
        ...     observed = mindist.read_observed(file.name, dataset="run")
        >>> observed["a"].tolist(), [batch.index for batch in observed.batches()]
        ([[1.0, 2.0], [3.0, 4.0]], [(0,), (1,)])
    """

    names: tuple[Any, ...]  # numbers, keys, or values in a column of a table
    event_shape: tuple[int, ...]  # of one observation
    lengths: tuple[int, ...]  # N_i, the observations in each dataset, without those dropped
    dropped: tuple[int, ...]  # how many observations of each lack a value
    _source: Source = field(repr=False, compare=False)

    @classmethod
    def read(cls, source: Source, missing: str) -> Observed:
        """Read through a source; missing values are an `"error"`, or something to `"drop"`."""
        names, lengths, dropped, first = tuple(source.names), [], [], ""
        for name, x in zip(names, source.read(), strict=True):
            wrong = ~_complete(x)
            if wrong.any() and not first:
                first = f"observation {wrong.argmax()} of dataset {str(name)[:80]!r}"
            dropped.append(int(wrong.sum()))
            lengths.append(len(x) - dropped[-1])
        if first and missing == "error":
            some, total = sum(map(bool, dropped)), sum(dropped) + sum(lengths)
            raise ValueError(
                f"missing: {sum(dropped)} of {total} observations, in {some} of {len(names)} "
                f"datasets, have a missing, NaN or infinite value; the first is {first}. Pass "
                "missing='drop' to leave such observations out, or impute them as the simulator "
                "would produce them."
            )
        return cls(names, tuple(source.event_shape), tuple(lengths), tuple(dropped), source)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Tensor]:
        for x in self._source.read():
            complete = _complete(x)
            yield _tensor(x if complete.all() else x[complete])

    def __getitem__(self, which: Any) -> Tensor:
        """Return one dataset by name, else by number; reads those before it too."""
        if which in self.names:
            which = self.names.index(which)
        elif not isinstance(which, int) or not -len(self) <= which < len(self):
            raise KeyError(f"There is no dataset {which!r} among {len(self)}: see names.")
        return next(islice(self, which % len(self), None))

    @property
    def equal_length(self) -> bool:
        """Return whether all datasets have as many observations."""
        return len(set(self.lengths)) <= 1

    def stack(self) -> Tensor:
        """Return all datasets as one batch `(B, N, *event)`; they must have equal lengths."""
        if not self.equal_length:
            raise ValueError(
                f"Datasets of {min(self.lengths)} to {max(self.lengths)} observations are no "
                "batch. Iterate over batches(), or over the datasets themselves."
            )
        return torch.stack(list(self))

    def batches(self, size: int = 1_000) -> Iterator[ObservedBatch]:
        """Yield batches of datasets of equal length, at most `size` in each, each dataset once."""
        checks.positive(size, "size")
        waiting, used = dict[int, list[tuple[int, Tensor]]](), 0
        for i, x in enumerate(self):
            waiting.setdefault(len(x), []).append((i, x))
            used += x.nbytes
            if len(waiting[len(x)]) == size:
                used -= size * x.nbytes
                yield _batch(waiting.pop(len(x)))
            elif used > BUFFER_BYTES:
                yield from map(_batch, waiting.values())
                waiting, used = {}, 0
        yield from map(_batch, waiting.values())

    def __repr__(self) -> str:
        low, high = min(self.lengths), max(self.lengths)
        sizes = f"{low}" if low == high else f"{low} to {high}"
        text = f"{len(self)} datasets of {sizes} observations of shape {self.event_shape}"
        some = sum(map(bool, self.dropped))
        if some:
            text += f"; {sum(self.dropped)} observations with missing values dropped from {some}"
        return f"Observed({text})"


def _batch(group: Sequence[tuple[int, Tensor]]) -> ObservedBatch:
    return ObservedBatch(tuple(i for i, _ in group), torch.stack([x for _, x in group]))


def _complete(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which observations `(N,)` of a dataset have finite values only."""
    if x.dtype.kind != "f":
        return np.ones(len(x), dtype=bool)
    return np.asarray(np.isfinite(x).reshape(len(x), -1).all(1))


def _tensor(x: NDArray[Any]) -> Tensor:
    """Copy numbers to float32 if they are stored so, else to float64, which holds more of them."""
    small = x.dtype.kind == "f" and x.dtype.itemsize <= 4
    return torch.from_numpy(np.array(x, dtype=np.float32 if small else np.float64, order="C"))
