r"""The exact Gaussian kernel and the exact squared MMD: what random features approximate.

.. math::
    k(x, y) = \exp\left(-\frac{\|x - y\|^2}{2 \sigma^2}\right), \qquad
    \mathrm{MMD}^2(P, Q) = \mathbb{E}\,k(x, x') - 2\,\mathbb{E}\,k(x, y) + \mathbb{E}\,k(y, y') .

Reference: Gretton et al., A Kernel Two-Sample Test, JMLR 13 (2012), equations 3 and 5.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    r"""Gram matrix of the Gaussian kernel.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`.
        bandwidth: The standard deviation :math:`\sigma` of the kernel.

    Returns:
        Kernel values `(*, n, m)`.

    Example:
        >>> gaussian_kernel(torch.zeros(1, 2), torch.ones(1, 2), bandwidth=1.0)
        tensor([[0.3679]])
    """
    squared = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.exp(-squared / (2 * bandwidth**2))


def mmd_squared(x: Tensor, y: Tensor, bandwidth: float, *, unbiased: bool = False) -> Tensor:
    r"""Squared maximum mean discrepancy between two samples under the Gaussian kernel.

    The biased form (a V-statistic, never negative) is the squared distance between the two
    empirical mean embeddings, which is what `FourierFeatures` approximates; the unbiased form (a
    U-statistic) leaves out the diagonal.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`.
        bandwidth: The standard deviation of the kernel.
        unbiased: Whether to leave out the terms :math:`k(x_i, x_i)`.

    Returns:
        Squared discrepancies `(*,)`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> mmd_squared(x, x, bandwidth=1.0)
        tensor(0.)
    """
    within_x, within_y = gaussian_kernel(x, x, bandwidth), gaussian_kernel(y, y, bandwidth)
    between = gaussian_kernel(x, y, bandwidth).mean(dim=(-2, -1))
    if not unbiased:
        return within_x.mean(dim=(-2, -1)) - 2 * between + within_y.mean(dim=(-2, -1))
    return _off_diagonal_mean(within_x) - 2 * between + _off_diagonal_mean(within_y)


def _off_diagonal_mean(gram: Tensor) -> Tensor:
    n = gram.shape[-1]
    return (gram.sum(dim=(-2, -1)) - n) / (n * (n - 1))
