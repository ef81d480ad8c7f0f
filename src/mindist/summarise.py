r"""Calling a user's summary function :math:`f : x_{1:N} \mapsto s`, and checking what it does.

A summary function may be written for tensors or for NumPy arrays; which of the two is found out
once, at the first call.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.protocols import Summary


def first_call(function: Callable[[Any], Any], x: Tensor, numpy: bool = False) -> tuple[Any, bool]:
    """Return the value for a tensor or, tried first if `numpy`, its array; and whether for that."""
    kinds: dict[bool, Any] = {False: x, True: x.detach().cpu().numpy()}
    try:
        value = function(kinds[numpy])
    except Exception as error:
        numpy = not numpy
        try:
            value = function(kinds[numpy])
        except Exception:
            raise error from None
    if not numpy and isinstance(value, np.ndarray):
        # NumPy's functions take tensors, whose own methods mean other things: .std(1), say.
        numpy, value = True, function(kinds[True])
    return value, numpy


class Summariser:
    """A summary function that always takes and gives tensors; `numpy` None is found out."""

    def __init__(self, summary: Summary, numpy: bool | None = None, dim: int | None = None) -> None:
        if not callable(summary):
            raise TypeError(
                f"summary: expected a function of datasets (B, N, *event), got "
                f"{type(summary).__name__}. For the sample mean, pass lambda x: x.mean(1)."
            )
        self.summary, self.numpy, self.dim = summary, numpy, dim

    @torch.no_grad()
    def __call__(self, x: Tensor, *, prefer_numpy: bool = False) -> Tensor:
        # A first call tries the kind of array that the user handed over: a function such as
        # `lambda x: x.std(1)` runs on both kinds and means different things.
        if not len(x) and self.dim is not None:
            return x.new_empty(0, self.dim)
        if self.numpy is None:
            self._first_call(x, prefer_numpy)
        return self._evaluate(x).to(x.device)

    def _evaluate(self, x: Tensor) -> Tensor:
        value = self.summary(x.cpu().numpy() if self.numpy else x)
        return checks.summaries(value, len(x), self.dim)

    def _first_call(self, x: Tensor, prefer_numpy: bool) -> None:
        """Find out what kind of array is wanted; check that datasets are treated one by one."""
        few, network = x[:3], isinstance(self.summary, torch.nn.Module)
        value, self.numpy = first_call(self.summary, few, prefer_numpy and not network)
        s = checks.summaries(value, len(few))
        self.dim = s.shape[1]
        alone = self._evaluate(few[:1])
        if not checks.agree(alone, s[:1].to(alone.device)):
            raise ValueError(
                "summary: expected the summary of a dataset not to depend on the other datasets of "
                f"the batch, got {alone[0].tolist()} for the first dataset alone and "
                f"{s[0].tolist()} in a batch of {len(few)}. Reduce over the observations (axis 1), "
                "not over the datasets (axis 0); put a network with batch normalisation or dropout "
                "into eval mode; make a random summary deterministic."
            )
