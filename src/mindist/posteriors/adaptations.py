"""The adaptations of observed datasets, each computed once."""

from __future__ import annotations

from dataclasses import fields
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


class Adaptations:
    """`MinimumDistance.adapt`, remembered by the content of each dataset.

    An adaptation is used again only for a dataset with the same bytes, shape and dtype, and only
    while the estimator has the same fit and settings.

    Arguments:
        mds: A fitted `MinimumDistance`.
    """

    def __init__(self, mds: MinimumDistance) -> None:
        self.mds = mds
        self._state: tuple[Any, ...] = ()
        self._recent: Recent[Adaptation] = Recent(CAPACITY)

    def __call__(self, x: Tensor) -> Adaptation:
        """Adaptation of datasets `(B, N, *event)`; only those not remembered are computed."""
        state = (id(self.mds.fitted_), self.mds.alpha, self.mds.search, self.mds.seed)
        if self._state[:-1] != state:
            self._recent.clear()
            self._state = (*state, self.mds.fitted_)  # kept alive, so that its id stays its own
        if not len(x):
            return self.mds.adapt(x)
        keys = [digest(dataset) for dataset in x]
        found = {key: self._recent.get(key) for key in keys}
        missing = [index for index, key in enumerate(keys) if found[key] is None]
        if missing:
            computed = self.mds.adapt(x[missing])
            self._recent.capacity = max(1, min(CAPACITY, MAX_BYTES // _nbytes(computed[0])))
            for row, index in enumerate(missing):
                found[keys[index]] = computed[row]
                self._recent.put(keys[index], computed[row])
        return _stack([found[key] for key in keys])

    def __len__(self) -> int:
        return len(self._recent)


def _nbytes(adaptation: Adaptation) -> int:
    """Memory that an adaptation of one dataset takes."""
    values = (getattr(adaptation, field.name) for field in fields(adaptation))
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def _stack(rows: list[Any]) -> Adaptation:
    """One adaptation of a batch from those of its datasets, with tensors of its own."""
    values: dict[str, Any] = {}
    for field in fields(Adaptation):
        column = [getattr(row, field.name) for row in rows]
        if isinstance(column[0], Tensor):
            values[field.name] = torch.stack(column)
        else:  # the threshold is shared by datasets of one size; the status is not a tensor
            values[field.name] = column[0] if field.name == "threshold" else tuple(column)
    return Adaptation(**values)


__all__ = ["Adaptations"]
