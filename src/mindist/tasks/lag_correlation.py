r"""The correlation of a time series with itself one step later.

.. math:: r = \mathrm{corr}\big((x_t)_{t < T}, (x_{t+1})_{t < T}\big) .
"""

from __future__ import annotations

import torch
from torch import Tensor


def lag_correlation(before: Tensor, after: Tensor) -> Tensor:
    """Pearson's correlation over the last axis of values with those one step later.

    Where either is constant nothing changes from one step to the next, and it is 1.

    Arguments:
        before: Values `(..., n)`.
        after: The same values one step later `(..., n)`.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 5.0], [4.0, 4.0, 4.0, 4.0]])
        >>> lag_correlation(x[:, :-1], x[:, 1:])
        tensor([0.9820, 1.0000])
    """
    a = before - before.mean(-1, keepdim=True)
    b = after - after.mean(-1, keepdim=True)
    scale = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    covariance = a.mul_(b).sum(-1)
    return torch.where(scale > 0, covariance / scale, 1.0)
