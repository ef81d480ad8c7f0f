r"""Waves of observations by torch alone: on other devices, with gradients, or without numba.

.. math:: [\cos(x W), \; \sin(x W)], \qquad W \in \mathbb{R}^{D \times H}
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.features.spans import rows_of, spans


def waves(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Scaled cosines, then sines, `(n, 2 H)`, of observations `(n, D)`; differentiable.

    Example:
        >>> waves(torch.zeros(1, 2), torch.ones(2, 1), scale=3.0)
        tensor([[3., 0.]])
    """
    phase = x @ weight.to(x.dtype)
    return torch.cat([phase.cos(), phase.sin()], dim=-1) * scale


def mean_waves(x: Tensor, weight: Tensor, scale: float) -> Tensor:
    """The mean of `waves` over the observations of each dataset, `(B, 2 H)` of `(B, N, D)`.

    Beyond input and output it takes two blocks of phases, whatever B and N are.

    Example:
        >>> mean_waves(torch.zeros(1, 5, 2), torch.ones(2, 1), scale=3.0)
        tensor([[3., 0.]])
    """
    num_datasets, num_obs = x.shape[:2]
    half, weight = weight.shape[1], weight.to(x.dtype)
    rows = x.reshape(num_datasets * num_obs, len(weight))
    total = x.new_zeros(num_datasets, 2 * half)
    phase, wave = x.new_empty(2, rows_of(half, x), half)
    for first, last, span in spans(num_datasets, num_obs, len(phase)):
        size = last - first
        torch.mm(rows[first:last], weight, out=phase[:size])
        per_dataset = (span.stop - span.start, -1, half)
        total[span, :half] += torch.cos(phase[:size], out=wave[:size]).view(per_dataset).sum(1)
        total[span, half:] += torch.sin(phase[:size], out=wave[:size]).view(per_dataset).sum(1)
    return total.mul_(scale / num_obs)
