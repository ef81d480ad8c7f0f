"""Groups of entries that fail together: given by the user, or windows of correlated neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks

CORRELATED = 0.5  # neighbours belong together while their mean correlation is above this
LEAST_GROUPS = 8  # so that 40% of the groups are at least three
SAMPLE = 2_000  # simulations that show the correlations


def labels_of(groups: Any, event: torch.Size) -> Tensor:
    """Return the group of each entry, `(D,)`, from labels of the shape of a vector or from None."""
    if groups is None:
        return torch.arange(event.numel())
    try:
        labels = torch.as_tensor(np.asarray(groups))
    except (TypeError, ValueError):  # lists of members, of several lengths
        labels = torch.empty(0)
    if labels.shape != event or labels.is_floating_point() or labels.is_complex():
        said = f"'auto', or an integer for each entry, of shape {tuple(event)}"
        then = "Each entry names its one group, so that groups cannot overlap: [0, 0, 1, 1, 2]."
        raise checks.wrong("groups", said, checks.shown(groups), then)
    return _numbered(labels)


def correlated_windows(x: Tensor, event: torch.Size) -> Tensor:
    """Cut vectors into windows, along each axis as long as neighbours are correlated, `(D,)`.

    Entries at a distance h along an axis belong together while they are correlated by more than
    one half on average over simulations `(M, D)`, beyond what all entries have in common. Windows
    are halved, the longest axis first, until there are at least eight.
    """
    z = x[:SAMPLE].double()
    z = z - z.mean(0)
    z = z - z.mean(1, keepdim=True)
    z = (z / z.square().mean(0).sqrt().clamp(min=1e-12)).view(-1, *event)
    lengths = [_length(z.movedim(axis + 1, 1)) for axis in range(len(event))]

    def counts() -> list[int]:
        return [-(-size // length) for size, length in zip(event, lengths, strict=True)]

    while np.prod(counts()) < LEAST_GROUPS and max(lengths) > 1:
        longest = lengths.index(max(lengths))
        lengths[longest] = -(-lengths[longest] // 2)
    labels = torch.zeros(event, dtype=torch.long)
    for axis, (length, count) in enumerate(zip(lengths, counts(), strict=True)):
        place = torch.arange(event[axis]) // length
        labels = labels * count + place.view(-1, *[1] * (len(event) - axis - 1))
    return _numbered(labels)


def _numbered(labels: Tensor) -> Tensor:
    numbered: Tensor = labels.flatten().unique(return_inverse=True)[1]
    return numbered


def _length(z: Tensor) -> int:
    """Return the first distance along axis 1 at which entries are no longer correlated."""
    for h in range(1, z.shape[1]):
        if (z[:, h:] * z[:, :-h]).mean() <= CORRELATED:
            return h
    return z.shape[1]
