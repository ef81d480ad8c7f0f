"""Cache-sized blocks of the stacked observations of datasets."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# Of phases computed at once by one thread: waves are made of them before they leave the cache. Time
# of the mean at D = 25, one busy core, relative to this size: 1.6 in blocks of 2^17 bytes, 1.1 of
# 2^19, 1.0 of 2^20, 1.05 of 2^22, 3.4 all at once.
BLOCK_BYTES = 2**21


# Rows summed in the precision of the data before they are added in float64: a sum of 1e5 float32
# cosines is then as exact as one of 32. The largest error of a mean of 100 was 1.5e-7, in runs of
# 128 5e-7. Blocks are cut between runs.
RUN = 32


def rows_of(half: int, x: Tensor) -> int:
    """How many observations, in whole runs, have `BLOCK_BYTES` of phases, `half` of them each.

    Example:
        >>> import torch
        >>> rows_of(256, torch.zeros(1))
        2048
    """
    return max(1, BLOCK_BYTES // (max(1, half) * x.element_size() * RUN)) * RUN


def spans(num_datasets: int, num_obs: int, rows: int) -> Iterator[tuple[int, int, slice]]:
    """Rows `first:last` of the stacked observations, at most `rows`, and whose datasets they are.

    A span holds several whole datasets, or a part of one.

    Example:
        >>> list(spans(3, 2, rows=5))
        [(0, 4, slice(0, 2, None)), (4, 6, slice(2, 3, None))]
        >>> list(spans(1, 7, rows=5))
        [(0, 5, slice(0, 1, None)), (5, 7, slice(0, 1, None))]
    """
    if num_obs <= rows:
        for start in range(0, num_datasets, per := rows // num_obs):
            stop = min(start + per, num_datasets)
            yield start * num_obs, stop * num_obs, slice(start, stop)
    else:
        for dataset in range(num_datasets):
            end = (dataset + 1) * num_obs
            for first in range(dataset * num_obs, end, rows):
                yield first, min(first + rows, end), slice(dataset, dataset + 1)
