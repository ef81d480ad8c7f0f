"""Results remembered by the content of what they were computed from.

A result is found again only by a digest of the bytes, shape and dtype of its input, so it cannot
outlive an input that was changed in place.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from mindist.adaptation import Adaptation

if TYPE_CHECKING:
    from mindist.minimum_distance import MinimumDistance

# Datasets, constants and modes remembered. A coverage check asks for the same few hundred or
# thousand datasets first together, then one by one.
CAPACITY = 4096
MAX_BYTES = 2**26  # of remembered adaptations: some numbers for each observation

Value = TypeVar("Value")


def digest(x: Tensor) -> bytes:
    """Return a fingerprint of a tensor's content, shape and dtype."""
    content = hashlib.blake2b(repr((tuple(x.shape), x.dtype)).encode(), digest_size=16)
    content.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.digest()


class Recent(Generic[Value]):
    """The most recently used results, for any number of threads; empty after pickling."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return the result, or None."""
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


class Adaptations:
    """`MinimumDistance.adapt`, remembered by the content of each dataset.

    An adaptation is used again only while the estimator has the same fit and settings.
    """

    def __init__(self, mds: MinimumDistance) -> None:
        self.mds = mds
        self._state: tuple[Any, ...] = ()  # what the remembered were computed with
        self._recent: Recent[Adaptation] = Recent()

    def __call__(self, x: Tensor) -> Adaptation:
        """Return the adaptation of `(N, *event)` or `(B, N, *event)`, always as that of a batch.

        Only what is not remembered is computed. What was never seen is handed to the estimator as
        it was given, and checked there.
        """
        datasets = list(x) if x.dim() > len(self.mds.event_shape) + 1 else [x]
        version = self._version()
        keys = [(digest(dataset), version) for dataset in datasets]
        found = {key: self._recent.get(key) for key in keys}
        missing = {key: index for index, key in enumerate(keys) if found[key] is None}
        if missing or not keys:
            every = len(missing) == len(keys)
            computed = self.mds.adapt(x if every else x[list(missing.values())])
            computed = computed if computed.batched else _batch_of_one(computed)
            if not keys:
                return computed
            found |= {key: computed[row : row + 1] for row, key in enumerate(missing)}
            self._remember(list(missing), computed)
        parts = [part for key in keys if (part := found[key]) is not None]
        return Adaptation.join(parts)[torch.arange(len(parts))]  # with tensors of its own

    def _version(self) -> tuple[Any, ...]:
        """Return the estimator's fit and settings; where they have changed, forget everything."""
        fitted = self.mds.fitted_
        version = (id(fitted), self.mds.alpha, self.mds.search, self.mds.seed)
        if self._state[:-1] != version:
            self._recent.clear()
            self._state = (*version, fitted)  # kept alive, so that its id stays its own
        return version

    def _remember(self, keys: list[Any], computed: Adaptation) -> None:
        """Keep what was computed, or as much of the end of it as there is room for."""
        values = vars(computed[0]).values()
        room = MAX_BYTES // sum(value.nbytes for value in values if isinstance(value, Tensor))
        self._recent.capacity = room = max(1, min(CAPACITY, room))
        if len(keys) > room:  # copy the end, so that the rest is not kept alive
            keys, computed = keys[-room:], computed[torch.arange(len(keys))[-room:]]
        for row, key in enumerate(keys):
            self._recent.put(key, computed[row : row + 1])

    def __len__(self) -> int:
        return len(self._recent)


def _batch_of_one(adaptation: Adaptation) -> Adaptation:
    values = {k: v[None] for k, v in vars(adaptation).items() if isinstance(v, Tensor)}
    return Adaptation(**{**vars(adaptation), **values, "status": (adaptation.status,)})
