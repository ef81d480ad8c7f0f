"""Files that hold arrays by name: which of them are meant, and their datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mindist.observed.shape import check_array, is_batch
from mindist.observed.source import Request

SHOWN = 20  # names of arrays in a message


@dataclass(frozen=True)
class ArraySource:
    """Datasets in one or several arrays.

    Arguments:
        names: Of the datasets.
        event_shape: Of an observation.
        many: For each array, its key and whether it holds many datasets.
        opened: Opens the file: gives a function from a key, and whether it holds many, to datasets.
    """

    names: Sequence[Any]
    event_shape: tuple[int, ...]
    many: Mapping[str, bool]
    opened: Callable[[], AbstractContextManager[Callable[[str, bool], Iterator[NDArray[Any]]]]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        with self.opened() as read:
            for key, many in self.many.items():
                yield from read(key, many)


def chosen_keys(available: Sequence[str], request: Request) -> list[str]:
    """The arrays that the user means.

    Example:
        >>> from pathlib import Path
        >>> chosen_keys(["theta", "x"], Request(Path("data.npz")))
        Traceback (most recent call last):
            ...
        ValueError: key: data.npz holds 2 arrays: 'theta', 'x'. Choose one, such as key='theta', ...
    """
    key = request.key
    listed = ", ".join(repr(name[:80]) for name in available[:SHOWN])
    listed += ", ..." if len(available) > SHOWN else ""
    if not available:
        raise ValueError(f"path: {request.path} holds no arrays.")
    if key is None and len(available) > 1:
        raise ValueError(
            f"key: {request.path} holds {len(available)} arrays: {listed}. Choose one, such as "
            f"key={available[0][:80]!r}, or several, each of them one dataset, as a list; '*' "
            "means all."
        )
    if key is None or key == "*":
        return list(available)
    wanted = [key] if isinstance(key, str) else list(key)
    for name in wanted:
        if name not in available:
            raise ValueError(f"key: {request.path} has no array {name!r}. It holds {listed}.")
    if not wanted:
        raise ValueError(f"key: expected at least one of the arrays {listed}, got none.")
    return wanted


def plan(
    arrays: Mapping[str, tuple[Any, Sequence[int]]], request: Request, *, compressed: bool = True
) -> tuple[list[Any], tuple[int, ...], dict[str, bool]]:
    """Names, event shape, and which arrays hold many datasets.

    Arguments:
        arrays: Type and shape of each chosen array.
        request: What the user said.
        compressed: Whether the file may be smaller than its data.
    """
    total, many = 0, {}
    names: list[Any] = []
    event: tuple[int, ...] | None = request.event_shape
    for key, (dtype, shape) in arrays.items():
        where = f"path: {request.path}" if len(arrays) == 1 else f"path: {request.path}, {key!r}"
        total += check_array(where, dtype, shape, request)
        if compressed:
            request.check_size(total)
        if event is None and len(arrays) > 1:
            event = tuple(shape[1:])  # of several arrays each is one dataset
        many[key] = is_batch(shape, event, where)
        event = tuple(shape[2:] if many[key] else shape[1:])
        if len(arrays) == 1:
            names = list(range(shape[0] if many[key] else 1))
        else:
            names += [(key, i) for i in range(shape[0])] if many[key] else [key]
    return names, event or (), many


__all__ = ["ArraySource", "chosen_keys", "plan"]
