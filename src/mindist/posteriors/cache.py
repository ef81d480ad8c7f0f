"""Remembering results by the content of what they were computed from.

A result is found again only by a digest of the bytes, shape and dtype of its input, so it cannot
outlive an input that was changed in place.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


def digest(x: Tensor) -> bytes:
    """A fingerprint of a tensor's content, shape and dtype.

    Example:
        >>> x = torch.zeros(3)
        >>> before = digest(x)
        >>> before == digest(torch.zeros(3)), before == digest(torch.zeros(3, 1))
        (True, False)
        >>> _ = x.add_(1)
        >>> before == digest(x)
        False
    """
    content = hashlib.blake2b(repr((tuple(x.shape), x.dtype)).encode(), digest_size=16)
    content.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.digest()


class Recent(Generic[Value]):
    """The most recently used results, for any number of threads.

    A pickled one is empty: results do not travel.

    Example:
        >>> recent = Recent(2)
        >>> for key in "abc":
        ...     recent.put(key, key.upper())
        >>> recent.get("a"), recent.get("c")
        (None, 'C')
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """The result, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: Value) -> None:
        """Remember a result; forget the one that was not asked for the longest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[Recent[Value]], tuple[int]]:
        return type(self), (self.capacity,)


__all__ = ["Recent", "digest"]
