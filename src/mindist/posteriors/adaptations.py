"""The adaptations of observed datasets, each computed once."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindist.adaptation import Adaptation
from mindist.posteriors.cache import Recent, digest

if TYPE_CHECKING:
    from mindist.minimum_distance import MinimumDistance

# Datasets remembered. A coverage check asks for the same few hundred or thousand datasets first
# together, then one by one.
CAPACITY = 4096
MAX_BYTES = 2**26  # of what they hold; some numbers for each observation

Key = tuple[bytes, tuple[Any, ...]]
"""The content of a dataset, and what it is adapted with."""
Place = tuple[Adaptation, int]
"""An adaptation of a batch, and a row of it."""


class Adaptations:
    """`MinimumDistance.adapt`, remembered by the content of each dataset.

    An adaptation is used again only for a dataset with the same bytes, shape and dtype, and only
    while the estimator has the same fit and settings, with which it is remembered: what a thread
    computed with others is never found.

    Arguments:
        mds: A fitted `MinimumDistance`.
    """

    def __init__(self, mds: MinimumDistance) -> None:
        self.mds = mds
        self._state: tuple[Any, ...] = ()  # what the remembered were computed with
        self._recent: Recent[Place] = Recent(CAPACITY)

    def __call__(self, x: Tensor) -> Adaptation:
        """Adaptation of datasets `(B, N, *event)`; only those not remembered are computed."""
        if not len(x):
            return self.mds.adapt(x)
        version = self._version()
        keys = [(digest(dataset), version) for dataset in x]
        found = {key: self._recent.get(key) for key in keys}
        missing = {key: index for index, key in enumerate(keys) if found[key] is None}
        if missing:
            computed = self.mds.adapt(x[list(missing.values())])
            found |= {key: (computed, row) for row, key in enumerate(missing)}
            self._remember(list(missing), computed)
        return _gather([place for key in keys if (place := found[key]) is not None])

    def _version(self) -> tuple[Any, ...]:
        """The estimator's fit and settings; where they have changed, everything is forgotten."""
        fitted = self.mds.fitted_
        version = (id(fitted), self.mds.alpha, self.mds.search, self.mds.seed)
        if self._state[:-1] != version:
            self._recent.clear()
            self._state = (*version, fitted)  # kept alive, so that its id stays its own
        return version

    def _remember(self, keys: list[Key], computed: Adaptation) -> None:
        """Keep what was computed, or as much of the end of it as there is room for."""
        room = max(1, min(CAPACITY, MAX_BYTES // _nbytes(computed[0])))
        self._recent.capacity = room
        kept = computed if len(keys) <= room else computed[torch.arange(len(keys))[-room:]]
        for row, key in enumerate(keys[-room:]):
            self._recent.put(key, (kept, row))

    def __len__(self) -> int:
        return len(self._recent)


def _nbytes(adaptation: Adaptation) -> int:
    """Memory that an adaptation of one dataset takes."""
    values = (getattr(adaptation, field.name) for field in fields(adaptation))
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _gather(places: list[Place]) -> Adaptation:
    """One adaptation of a batch from rows of others, with tensors of its own."""
    batches = {id(batch): batch for batch, _ in places}
    rows: dict[int, list[int]] = {key: [] for key in batches}
    order: dict[int, list[int]] = {key: [] for key in batches}
    for index, (batch, row) in enumerate(places):
        rows[id(batch)].append(row)
        order[id(batch)].append(index)
    parts = [batch[torch.tensor(rows[key])] for key, batch in batches.items()]
    return Adaptation.join(parts)[torch.tensor([*chain(*order.values())]).argsort()]


__all__ = ["Adaptations"]
