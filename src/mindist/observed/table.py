"""Tables: which columns are the observation, and which rows belong to which dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindist.observed.source import Request, not_numbers

Block = tuple[NDArray[Any] | None, NDArray[Any]]
"""Names of datasets `(n,)`, or None, and observations `(n, D)`."""


@dataclass(frozen=True)
class TableSource:
    """Rows of a table as datasets.

    Arguments:
        names: Of the datasets, in the order in which they first occur.
        event_shape: Of an observation, of as many elements as there are columns.
        blocks: Reads the rows, some at a time.
        sorted: Whether all rows of a dataset stand together, so that few have to be kept.
    """

    names: Sequence[Any]
    event_shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Block]]
    sorted: bool = True

    def __iter__(self) -> Iterator[NDArray[Any]]:
        parts = _runs(self.blocks()) if self.sorted else _gathered(self.blocks(), self.names)
        for _, rows in parts:
            yield rows.reshape(len(rows), *self.event_shape)


def make_table(
    blocks: Callable[[], Iterator[Block]],
    keys: Callable[[], Iterator[Block]] | None,
    num_columns: int,
    request: Request,
) -> TableSource:
    """A source from rows, after one pass over the names of the datasets.

    Arguments:
        blocks: Reads names and observations.
        keys: Reads the names only; None for a single dataset.
        num_columns: D.
        request: What the user said.
    """
    event = (num_columns,) if request.event_shape is None else request.event_shape
    if keys is None:
        return TableSource([0], event, blocks)
    names: dict[Any, None] = {}
    in_order = True
    for name, _ in _runs(keys()):
        in_order &= name not in names
        names[name] = None
    return TableSource(list(names), event, blocks, in_order)


def choose_columns(numeric: Sequence[str], every: Sequence[str], request: Request) -> list[str]:
    """The columns of the observation: those asked for, or all numeric ones but the dataset's."""
    listed = ", ".join(repr(name[:80]) for name in every[:20]) + (", ..." if every[20:] else "")
    twice = {name for name in every if list(every).count(name) > 1} if len(every) < 1_000 else ()
    if request.dataset is not None and request.dataset not in every:
        raise ValueError(
            f"dataset: {request.path} has no column {request.dataset!r}. It has {listed}."
        )
    chosen = [name for name in numeric if name != request.dataset]
    if request.columns is not None:
        chosen = list(request.columns)
    for name in chosen:
        if name not in every or name in twice:
            what = "two columns" if name in twice else "no column"
            raise ValueError(f"columns: {request.path} has {what} {name!r}. It has {listed}.")
        if name not in numeric:
            raise not_numbers(f"columns: {request.path}, {name!r}", "a column of something else")
    event = request.event_shape
    if chosen and event is not None and len(chosen) != math.prod(event):
        wanted = math.prod(event)
        got = ", ".join(repr(name[:80]) for name in chosen[:20]) + (", ..." if chosen[20:] else "")
        them = "them" if wanted > 1 else "it"
        index = " One without a name is often an index." if "" in chosen else ""
        raise ValueError(
            f"columns: expected {wanted} column{'s' if wanted > 1 else ''} for an observation of "
            f"shape {event}, got {len(chosen)}: {got}.{index} Choose {them} with columns=[...]."
        )
    if not chosen:
        raise ValueError(
            f"columns: {request.path} has no column of numbers. It has {listed}. One word in a "
            "column makes it one of text; what is missing should be left empty, or be NA or NaN."
        )
    return chosen


def to_block(batch: Any, columns: Sequence[str], dataset: str | None) -> Block:
    """Names and observations of an Arrow record batch or table; what is missing becomes NaN."""
    rows = [_floats(batch.column(name)) for name in columns]
    values = np.stack(rows, axis=1) if rows else np.empty((batch.num_rows, 0))
    return (None if dataset is None else _names(batch.column(dataset), dataset)), values


def _floats(column: Any) -> NDArray[np.float64]:
    import pyarrow as pa

    # As Python would: 2**53 + 1 is rounded, where Arrow makes it an error.
    numbers = column.cast(pa.float64(), safe=False)
    array = numbers.to_numpy(zero_copy_only=False)
    return np.asarray(array, dtype=np.float64)


def _names(column: Any, dataset: str) -> NDArray[Any]:
    names = np.empty(len(column), dtype=object)
    names[:] = column.to_pylist()
    wrong = [name for name in names if not isinstance(name, str | int | float) or name != name]
    if wrong:
        raise ValueError(
            f"columns: expected a text or a number in each row of {dataset!r}, got "
            f"{str(wrong[0])[:80]}. Drop the rows that belong to no dataset."
        )
    return names


def _runs(blocks: Iterator[Block]) -> Iterator[tuple[Any, NDArray[Any]]]:
    """Stretches of rows with the same name."""
    current: Any = None
    parts: list[NDArray[Any]] = []
    for names, values in blocks:
        if not len(values):
            continue
        ends = [0, len(values)]
        if names is not None:
            ends[1:1] = (np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()
        for begin, end in pairwise(ends):
            name = None if names is None else names[begin]
            if parts and name != current:
                yield current, np.concatenate(parts)
                parts = []
            current = name
            parts.append(values[begin:end])
    if parts:
        yield current, np.concatenate(parts)


def _gathered(blocks: Iterator[Block], names: Sequence[Any]) -> Iterator[tuple[Any, NDArray[Any]]]:
    """All rows of each dataset, wherever they stand: the whole table in memory."""
    parts: dict[Any, list[NDArray[Any]]] = {name: [] for name in names}
    for name, rows in _runs(blocks):
        parts[name].append(rows)
    for name in names:
        yield name, np.concatenate(parts.pop(name))


__all__ = ["Block", "TableSource", "choose_columns", "make_table", "to_block"]
