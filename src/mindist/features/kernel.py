r"""The exact Gaussian kernel and the exact squared MMD: what random features approximate.

.. math::
    k(x, y) = \sum_b \exp\left(-\frac{\|x - y\|^2}{2 \sigma_b^2}\right), \qquad
    \mathrm{MMD}^2(P, Q) = \mathbb{E}\,k(x, x') - 2\,\mathbb{E}\,k(x, y) + \mathbb{E}\,k(y, y')

with one bandwidth or the sum over several, which is a kernel too and needs no choice between
them. Gram matrices are summed in blocks of rows, so that memory stays bounded for samples of any
size.

Reference: Gretton et al., A Kernel Two-Sample Test, JMLR 13 (2012), equations 3 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Kernel values computed at once: 32 MB in float64.
BLOCK_VALUES = 2**22
MAX_SQUARES = 2  # in place of one exponential: each doubles its relative rounding error


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    r"""Gram matrix of the Gaussian kernel, or of a sum of Gaussian kernels.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`.
        bandwidth: The standard deviation :math:`\sigma` of the kernel, or several.

    Returns:
        Kernel values `(*, n, m)`; at most the number of bandwidths.

    Example:
        >>> gaussian_kernel(torch.zeros(1, 2), torch.ones(1, 2), bandwidth=1.0)
        tensor([[0.3679]])
        >>> gaussian_kernel(torch.zeros(1, 2), torch.ones(1, 2), bandwidth=(1.0, 1.0))
        tensor([[0.7358]])
    """
    squared = _squared_distances(x, y)
    return torch.stack([torch.exp(-squared / (2 * b**2)) for b in _several(bandwidth)]).sum(0)


def mmd_squared(
    x: Tensor, y: Tensor, bandwidth: float | Sequence[float], *, unbiased: bool = False
) -> Tensor:
    r"""Squared maximum mean discrepancy between two samples under the Gaussian kernel.

    The biased form (a V-statistic, never negative) is the squared distance between the two
    empirical mean embeddings, which is what `FourierFeatures` approximates; the unbiased form (a
    U-statistic) leaves out the diagonal. Differentiable; memory is bounded by blocks of
    `BLOCK_VALUES` kernel values, with gradients as well.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`.
        bandwidth: The standard deviation of the kernel, or several, whose kernels are summed.
        unbiased: Whether to leave out the terms :math:`k(x_i, x_i)`.

    Returns:
        Squared discrepancies `(*,)`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> mmd_squared(x, x, bandwidth=1.0)
        tensor(0.)
    """
    n, m = x.shape[-2], y.shape[-2]
    if unbiased and min(n, m) < 2:
        raise ValueError(
            f"x, y: the unbiased MMD expects at least 2 points in each sample, got {n} and {m}."
        )
    within_x, within_y = kernel_sum(x, x, bandwidth), kernel_sum(y, y, bandwidth)
    between = kernel_sum(x, y, bandwidth) / (n * m)
    if not unbiased:
        return within_x / n**2 - 2 * between + within_y / m**2
    diagonal = len(_several(bandwidth))  # k(x, x)
    first = (within_x - n * diagonal) / (n * (n - 1))
    return first - 2 * between + (within_y - m * diagonal) / (m * (m - 1))


def kernel_sum(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    """The sum of all kernel values between two samples, `(*,)`, in blocks of rows.

    Example:
        >>> kernel_sum(torch.zeros(3, 1), torch.zeros(2, 1), bandwidth=1.0)
        tensor(6.)
    """
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]).numel()
    rows = max(1, BLOCK_VALUES // max(1, batch * y.shape[-2]))
    blocks = x.split(rows, dim=-2)
    if len(blocks) > 1 and torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        # Recomputed in the backward pass, which would otherwise keep every block.
        sums = [checkpoint(_block_sum, b, y, bandwidth, use_reentrant=False) for b in blocks]
    else:
        sums = [_block_sum(block, y, bandwidth) for block in blocks]
    return torch.stack(sums).sum(0)


def _block_sum(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    """Widest kernel first; one of 1/sqrt(2) the width is its square, cheaper than an exponential.

    One bandwidth after the other: several matrices need not exist at once.
    """
    squared = _squared_distances(x, y)
    total, kernel, wider = torch.zeros((), device=x.device), squared, math.inf
    for b in sorted(_several(bandwidth), reverse=True):
        halvings = 2 * math.log2(wider / b)
        if halvings <= MAX_SQUARES and abs(halvings - round(halvings)) < 1e-9:
            for _ in range(round(halvings)):
                kernel = kernel.square()
        else:
            kernel = torch.exp(squared * (-0.5 / b**2))
        total, wider = total + kernel.sum(dim=(-2, -1)), b
    return total


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    r"""Squared distances `(*, n, m)`, in the precision of the input.

    As :math:`\|x\|^2 + \|y\|^2 - 2 x^\top y`, a matrix product, which loses half of the digits of
    small distances between large numbers; so it runs in float64, around the mean of y.
    """
    dtype = torch.promote_types(x.dtype, y.dtype)
    centre = y.detach().double().mean(-2, keepdim=True)
    x, y = x.double() - centre, y.double() - centre
    norms = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
    return (norms - 2 * (x @ y.mT)).clamp_min(0).to(dtype)


def _several(bandwidth: float | Sequence[float]) -> tuple[float, ...]:
    values = tuple(bandwidth) if isinstance(bandwidth, Sequence) else (bandwidth,)
    if not values or not all(0 < value < float("inf") for value in values):
        raise ValueError(f"bandwidth: expected positive numbers, got {bandwidth!r}.")
    return values
