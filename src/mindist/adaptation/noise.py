r"""The sampling noise of a summary, by the bootstrap.

A dataset of N observations has a summary with covariance :math:`V` around what infinitely many
observations would give. Datasets drawn with replacement from the observations themselves show it,
for any summary function:

.. math:: \hat V = \mathrm{Cov}_b\, f(x^{(b)}), \qquad x^{(b)}_n \sim \sum_m w_m \delta_{x_m} .

References:
    Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 7 (1979).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.summarise import Summariser

CHUNK_BYTES = 2**26  # of resampled data summarised at once


def bootstrap_summaries(
    summarise: Summariser,
    x: Tensor,
    num: int,
    generator: torch.Generator,
    weight: Tensor | None = None,
) -> Tensor:
    """Summaries of datasets that are drawn with replacement from the observations of each dataset.

    Arguments:
        summarise: The summary function.
        x: Datasets `(B, N, *event)`.
        num: R, how many datasets to draw from each.
        generator: Draws them, on the CPU.
        weight: Of the observations `(B, N)`, to draw them in proportion; by default all alike.

    Returns:
        Summaries `(B, R, d_s)`, float64.

    Example:
        >>> x = torch.tensor([[[0.0], [2.0]]])
        >>> s = bootstrap_summaries(Summariser(lambda x: x.mean(1)), x, 1_000, torch.Generator())
        >>> s.shape, s.var().round(decimals=1)  # of the mean of two values that are 0 or 2
        (torch.Size([1, 1000, 1]), tensor(0.5000, dtype=torch.float64))
    """
    if weight is None:
        weight = torch.ones(x.shape[:2], dtype=torch.float64)
    size = max(1, CHUNK_BYTES // max(1, x[:1].nbytes))
    rows = []
    for data, share in zip(x, weight.double().cpu(), strict=True):
        chosen = torch.multinomial(share, num * x.shape[1], replacement=True, generator=generator)
        drawn = chosen.view(num, x.shape[1]).to(x.device)
        rows.append(torch.cat([summarise(data[part]).double() for part in drawn.split(size)]))
    return torch.stack(rows) if rows else x.new_empty(0, num, 0, dtype=torch.float64)


__all__ = ["bootstrap_summaries"]
