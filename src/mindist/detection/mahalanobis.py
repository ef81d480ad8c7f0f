r"""The length of a residual in units of what simulations show in its direction.

.. math:: q(r) = r^\top (S + 0.01\, t\, I)^{-1} r, \qquad
    S = \tfrac1M \textstyle\sum_i r_i r_i^\top ,

with t the top eigenvalue of S. Without simulation i, up to the change of t,

.. math:: r_i^\top (A - \tfrac1M r_i r_i^\top)^{-1} r_i = \frac{q_i}{1 - q_i / M} .

The damping bounds the condition number by a hundred, so that products may be taken in the precision
of the residuals. A residual that may be nothing but rounding has length 0: where a summary tells
everything (the mean of zeros and ones), all of them are, and which is larger says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mindist.protocols import State

DAMPING = 0.01  # of the top eigenvalue; the powers in `statistics` were measured with it
# The squared length of a residual that float32 may have made: 3e-13 for embeddings that are a
# function of the summary. Residuals of N observations are about 1/N.
ROUNDED = 1e-11
BLOCK_ROWS = 1_024  # 4 MB of residuals at K = 512, float64


@dataclass(frozen=True)
class Mahalanobis:
    """Squared Mahalanobis lengths, as logarithms.

    Arguments:
        whitener: `(K, K)`, float64; q is the squared length of `r whitener`.
        num_simulations: M.

    Example:
        >>> r = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
        >>> mahalanobis = Mahalanobis.of(r)
        >>> mahalanobis(r[::2]).exp()  # 9 / (4.5 + .045), 1 / (0.5 + .045)
        tensor([1.9802, 1.8349], dtype=torch.float64)
    """

    whitener: Tensor
    num_simulations: int

    @classmethod
    def of(cls, residual: Tensor) -> Mahalanobis:
        """From residuals of simulations `(M, K)`."""
        width = residual.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=residual.device)
        for rows in residual.split(BLOCK_ROWS):
            total += rows.T @ rows
        values, vectors = torch.linalg.eigh(total / len(residual))
        damped = values.clamp(min=0) + DAMPING * values[-1]
        whitener = vectors / damped.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
        # As it is stored: products round alike after loading.
        return cls(whitener.contiguous(), len(residual))

    def squared(self, residual: Tensor) -> Tensor:
        """q of residuals `(B, K)`, `(B,)`, float64, computed in their precision."""
        beyond = squared_length(residual) > ROUNDED
        if residual.dtype == torch.float64:
            return (residual @ self.whitener).square().sum(1) * beyond
        parts = [(r @ self._single).square().sum(1) for r in residual.split(BLOCK_ROWS)]
        return torch.cat(parts).double() * self._unit.square() * beyond

    @cached_property
    def _unit(self) -> Tensor:
        """The largest entry of the whitener, whose rounded version would overflow without it."""
        return self.whitener.abs().amax()

    @cached_property
    def _single(self) -> Tensor:
        """The whitener over its largest entry, float32."""
        return (self.whitener / self._unit).float()

    def __call__(self, residual: Tensor) -> Tensor:
        """log q of residuals `(B, K)` that `of` did not see, `(B,)`, float64."""
        return finite_log(self.squared(residual))

    def leave_one_out(self, residual: Tensor) -> Tensor:
        """log q of the residuals that `of` saw, each left out of S, `(M,)`, float64."""
        q = self.squared(residual)
        return finite_log(q / (1 - q / self.num_simulations))

    def to(self, device: torch.device) -> Mahalanobis:
        """The same on another device."""
        return Mahalanobis(self.whitener.to(device), self.num_simulations)

    def state(self) -> State:
        """Configuration and tensors from which it can be rebuilt."""
        return {"num_simulations": self.num_simulations}, {"whitener": self.whitener}

    @classmethod
    def from_state(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Mahalanobis:
        """Rebuild from `state`, or from that of statistics that have more than this one."""
        return cls(tensors["whitener"], config["num_simulations"])


def squared_length(residual: Tensor) -> Tensor:
    """Squared lengths `(B,)`, float64, of residuals `(B, K)`."""
    return residual.square().sum(1).double()


def finite_log(squared: Tensor) -> Tensor:
    """The logarithm of squared lengths, finite at 0."""
    return squared.clamp(min=torch.finfo(squared.dtype).tiny).log()


__all__ = ["ROUNDED", "Mahalanobis", "finite_log", "squared_length"]
