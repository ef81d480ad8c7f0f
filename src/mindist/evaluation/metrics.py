"""How good a posterior is (appendix "Further Experimental Details")."""

from __future__ import annotations

from torch import Tensor


def rmse(theta_mean: Tensor, theta: Tensor) -> Tensor:
    r"""Root mean squared error of the posterior mean over parameters.

    .. math:: \sqrt{\tfrac{1}{d_\theta} \| \bar\theta - \theta^* \|_2^2}

    Arguments:
        theta_mean: Posterior means `(*, d_theta)`.
        theta: True parameters `(*, d_theta)`.

    Returns:
        Errors `(*,)`; the paper reports their mean over test datasets.

    Example:
        >>> import torch
        >>> rmse(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
        tensor([3.5355])
    """
    return (theta_mean - theta).square().mean(-1).sqrt()
