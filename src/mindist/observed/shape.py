"""Whether an array is one dataset `(N, *event)` or many, `(B, N, *event)`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindist.observed.source import Request, not_numbers

BLOCK_BYTES = 2**26  # of datasets that are read at once


def is_batch(shape: Sequence[int], event_shape: Sequence[int] | None, where: str) -> bool:
    """Whether an array of this shape holds many datasets.

    Arguments:
        shape: Of the array.
        event_shape: Of one observation; None if nobody said.
        where: What to call the array in messages.

    Example:
        >>> is_batch((100, 2), (2,), "x"), is_batch((7, 100, 2), (2,), "x")
        (False, True)
        >>> is_batch((100, 2), None, "x")
        Traceback (most recent call last):
            ...
        ValueError: x: an array of shape (100, 2) may be one dataset (N, *event) or many, ...
    """
    got = tuple(shape)
    if event_shape is None:
        if len(got) == 1:
            return False
        raise ValueError(
            f"{where}: an array of shape {got} may be one dataset (N, *event) or many, "
            "(B, N, *event). Say what one observation is: event_shape=mds.event_shape of a fitted "
            f"estimator, or for one dataset event_shape={got[1:]}, for many {got[2:]}."
        )
    event = tuple(event_shape)
    extra = len(got) - len(event)
    if extra not in (1, 2) or got[extra:] != event:
        raise ValueError(
            f"{where}: expected one dataset of shape ({_names('N', event)}) or many, "
            f"({_names('B, N', event)}), got an array of shape {got}. Give the event_shape of the "
            "observations in the file, or reshape them to the one that was simulated."
        )
    return extra == 2


def check_array(where: str, dtype: Any, shape: Sequence[int], request: Request) -> int:
    """Refuse what are not real numbers or too many; how many bytes the array has."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "fiub" or dtype.hasobject:
        raise not_numbers(where, f"an array of type {str(dtype)[:80]}")
    if not shape:
        raise ValueError(f"{where}: expected an array of observations, got a single number.")
    if 0 in shape:
        raise ValueError(f"{where}: expected observations, got an empty array {tuple(shape)}.")
    return math.prod(int(size) for size in shape) * int(dtype.itemsize)


def split(array: Any, many: bool) -> Iterator[NDArray[Any]]:
    """The datasets of an array that can be sliced; only what is asked for is read."""
    if not many:
        yield np.asarray(array[...])
        return
    chunks = getattr(array, "chunks", None)  # each of which is decompressed once, if not too large
    size = math.prod(array.shape[1:]) * array.dtype.itemsize
    step = max(1, min(chunks[0] if chunks else 1, BLOCK_BYTES // size))
    for begin in range(0, array.shape[0], step):
        yield from np.asarray(array[begin : begin + step])


def _names(first: str, event: Sequence[int]) -> str:
    return ", ".join([first, *map(str, event)])


__all__ = ["check_array", "is_batch", "split"]
