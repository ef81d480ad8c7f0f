r"""The summary that a jointly trained posterior has learned, as a frozen network.

.. math:: s = f_\phi(x_{1:N})
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mindist.posteriors.guards import warn_user


class EmbeddingSummary(nn.Module):
    r"""A trained embedding net :math:`f_\phi`, frozen: datasets `(B, N, *event)` to `(B, d_s)`.

    A copy of the net in evaluation mode, where it stays, whose parameters want no gradients. Data
    are converted to the net's dtype.

    Arguments:
        net: Maps `(B, N, *event)` to `(B, d_s)`, standardisation of the data included.
        condition_shape: `(N, *event)` in training.
        fixed_size: Whether the net takes no other N than that of training.

    Example:
        >>> summary = EmbeddingSummary(nn.Flatten(), torch.Size([3, 2]))
        >>> summary(torch.zeros(5, 3, 2)).shape, summary.dim
        (torch.Size([5, 6]), 6)
    """

    def __init__(
        self, net: nn.Module, condition_shape: torch.Size, *, fixed_size: bool = False
    ) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False).eval()
        self.condition_shape, self.fixed_size = condition_shape, fixed_size
        like = next(self.net.parameters(), torch.zeros(()))
        self.dtype = like.dtype
        with torch.no_grad():
            s = self.net(like.new_zeros((1, *condition_shape)))
        self.dim = int(s.shape[-1])

    def train(self, mode: bool = True) -> EmbeddingSummary:
        """Stay in evaluation mode: a summary has to be the same function every time."""
        super().train(False)
        return self

    def forward(self, x: Any) -> Tensor:
        """Summaries `(B, d_s)` of datasets `(B, N, *event)`."""
        x = torch.as_tensor(x, dtype=self.dtype)
        if self.fixed_size and x.shape[1:] != self.condition_shape:
            raise ValueError(
                f"x: expected datasets of shape (B, {', '.join(map(str, self.condition_shape))}) "
                f"as in training, got shape {tuple(x.shape)}. Each position was standardised on "
                "its own, which ties the net to this number of observations. Train it again with "
                "z_score_x='structured' or 'none'."
            )
        s: Tensor = self.net(x)
        return s


def varies_by_position(statistic: Tensor, condition_shape: torch.Size) -> bool:
    """Whether a standardiser's mean or scale differs between the N exchangeable observations.

    Example:
        >>> varies_by_position(torch.tensor([[0.1], [0.2]]), torch.Size([2, 1]))
        True
        >>> varies_by_position(torch.tensor(0.15), torch.Size([2, 1]))
        False
    """
    if statistic.shape != condition_shape or not statistic.dim():
        return False
    return not torch.equal(statistic, statistic[:1].expand_as(statistic))


def warn_if_order_matters(statistics: Sequence[Tensor], condition_shape: torch.Size) -> None:
    """Warn where a standardiser's statistics differ between exchangeable observations."""
    if any(varies_by_position(statistic, condition_shape) for statistic in statistics):
        warn_user(
            f"posterior: sbi standardised each of the {condition_shape[0]} observations of a "
            "dataset with a mean and a scale of its own (z_score_x='independent', its default), so "
            "the learned summary depends on the order of the observations. Train it again with "
            "z_score_x='structured' or 'none'."
        )


__all__ = ["EmbeddingSummary", "varies_by_position", "warn_if_order_matters"]
