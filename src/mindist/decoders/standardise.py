"""Summaries and observations in units of their own spread over simulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

ROUNDING = 1e-7  # of float32: a smaller relative spread is that of a constant


@dataclass(frozen=True)
class Standardiser:
    """Subtract the mean and divide by the standard deviation, element by element.

    Arguments:
        centre: Means `(D,)`, float64.
        scale: Standard deviations `(D,)`, float64; infinite where an element does not vary, so that
            it is mapped to 0 whatever its value and has no slope for a search to follow.

    Example:
        >>> standardise = Standardiser.of(torch.tensor([[0.0], [2.0]]))
        >>> standardise(torch.tensor([[3.0]]).double())
        tensor([[2.]], dtype=torch.float64)
    """

    centre: Annotated[Tensor, "d"]
    scale: Annotated[Tensor, "any d"]

    @classmethod
    def of(cls, values: Tensor, *, constant: float = float("inf")) -> Standardiser:
        """Standardise to the mean and spread of `values`, `(M, D)`."""
        values = values.double()
        centre, scale = values.mean(dim=0), values.std(dim=0, unbiased=False)
        varies = scale > ROUNDING * centre.abs()
        return cls(centre, torch.where(varies, scale, constant))

    def __call__(self, values: Tensor) -> Tensor:
        """Standardised values, in the precision of the input."""
        return (values - self.centre.to(values.dtype)) / self.scale.to(values.dtype)
