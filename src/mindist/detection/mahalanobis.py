r"""The length of a residual in units of what simulations show in its direction.

.. math:: q(r) = r^\top (S + 0.01\, t\, I)^{-1} r, \qquad
    S = \tfrac1M \textstyle\sum_i r_i r_i^\top ,

with t the top eigenvalue of S, by a Cholesky factor: a tenth of the time of all eigenvectors, and
the same lengths. With more than 1,024 features, S has its own eigenvalues in as many leading
directions and one for all others: time and memory stay linear in the features. Without simulation
i, up to the change of t,

.. math:: r_i^\top (A - \tfrac1M r_i r_i^\top)^{-1} r_i = \frac{q_i}{1 - q_i / M} .

The damping bounds the condition number by a hundred, so that products may be taken in the precision
of the residuals. A residual that may be nothing but rounding has length 0: where a summary tells
everything (the mean of zeros and ones), all of them are, and which is larger says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist.directions import leading_directions

DAMPING = 0.01  # of the top eigenvalue; the powers in `statistics` were measured with it
MAX_DIRECTIONS = 1_024
TINY = torch.finfo(torch.float64).tiny
# The squared length of a residual that float32 may have made: 3e-13 for embeddings that are a
# function of the summary. Residuals of N observations are about 1/N.
ROUNDED = 1e-11
BLOCK_ROWS = 1_024  # 4 MB of residuals at K = 512, float64


@dataclass(frozen=True)
class Mahalanobis:
    """Squared Mahalanobis lengths, as logarithms.

    Arguments:
        whitener: W, `(K, K)`, float64; q is the squared length of `r W`. Or `(K, q)`, with
            orthogonal columns.
        num_simulations: M.
        rest: The weight of what is orthogonal to the columns of W, where they are fewer than K.

    Example:
        >>> r = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
        >>> mahalanobis = Mahalanobis.of(r)
        >>> mahalanobis(r[::2]).exp()  # 9 / (4.5 + .045), 1 / (0.5 + .045)
        tensor([1.9802, 1.8349], dtype=torch.float64)
    """

    whitener: Annotated[Tensor, "K r"]
    num_simulations: Annotated[int, range(1, 2**31)]
    rest: float = 0.0

    def __post_init__(self) -> None:
        K, directions = self.whitener.shape
        if directions > K:
            raise ValueError(
                f"whitener: expected at most as many columns as its {K} rows, got {directions}."
            )

    @classmethod
    def of(cls, residual: Tensor) -> Mahalanobis:
        """From residuals of simulations `(M, K)`."""
        if residual.shape[1] > MAX_DIRECTIONS:
            return cls._leading(residual)
        width = residual.shape[1]
        total = torch.zeros(width, width, dtype=torch.float64, device=residual.device)
        for rows in residual.split(BLOCK_ROWS):
            total += rows.T @ rows
        covariance = total / len(residual)
        damping = DAMPING * torch.linalg.eigvalsh(covariance)[-1]
        unit = torch.eye(width, dtype=torch.float64, device=residual.device)
        factor = torch.linalg.cholesky(covariance + damping.clamp(min=TINY) * unit)
        whitener = torch.linalg.solve_triangular(factor, unit, upper=False).T
        # As it is stored: products round alike after loading.
        return cls(whitener.contiguous(), len(residual))

    @classmethod
    def _leading(cls, residual: Tensor) -> Mahalanobis:
        """The same in the leading directions, with one variance for all others."""
        directions = leading_directions(residual, MAX_DIRECTIONS, rounds=1)
        parts = [(rows @ directions).square().sum(0) for rows in residual.split(BLOCK_ROWS)]
        variance = torch.stack(parts).double().sum(0) / len(residual)
        damping = (DAMPING * variance.max()).clamp(min=TINY)
        left = residual.square().sum(dtype=torch.float64) / len(residual) - variance.sum()
        others = residual.shape[1] - len(variance)
        whitener = directions.double() / (variance + damping).sqrt()
        rest = 1 / (left.clamp(min=0) / others + damping)
        return cls(whitener.contiguous(), len(residual), float(rest))

    def squared(self, residual: Tensor) -> Tensor:
        """q of residuals `(B, K)`, `(B,)`, float64, computed in their precision."""
        whitener, unit = self._rounded(residual.dtype)
        parts = [self._length(r, whitener, unit) for r in residual.split(BLOCK_ROWS)]
        return torch.cat(parts) * (squared_length(residual) > ROUNDED)

    def _rounded(self, dtype: torch.dtype) -> tuple[Tensor, float]:
        """The whitener for a precision, column by column in memory, over a unit, and that unit."""
        return (
            (self._columns, 1.0)
            if dtype == torch.float64
            else (self._single_columns, self._largest)
        )

    def _length(self, residual: Tensor, whitener: Tensor, unit: float) -> Tensor:
        """q by a whitener in the precision of the residuals, which is W over a unit."""
        white = (residual @ whitener).square()
        if not self.rest:
            return white.sum(1).double() * unit**2
        inside = (white.double() * self._share).sum(1) * unit**2
        return inside + self.rest * residual.double().square().sum(1)

    @cached_property
    def _share(self) -> Tensor:
        """What the columns of W see must not be counted again by what is left of the length."""
        return 1 - self.rest / self.whitener.square().sum(0)

    @cached_property
    def _largest(self) -> float:
        """The largest entry of the whitener, whose rounded version would overflow without it."""
        return float(self.whitener.abs().amax())

    @cached_property
    def _columns(self) -> Tensor:
        """The whitener, column by column in memory."""
        return self.whitener.T.contiguous().T

    @cached_property
    def _single_columns(self) -> Tensor:
        """The whitener over its largest entry, float32, column by column in memory."""
        return (self.whitener / self._largest).float().T.contiguous().T

    def __call__(self, residual: Tensor) -> Tensor:
        """log q of residuals `(B, K)` that `of` did not see, `(B,)`, float64."""
        return finite_log(self.squares(residual)[1])

    def squares(self, residual: Tensor) -> Tensor:
        """Return squared lengths and q of residuals `(B, K)`, `(2, B)`, float64."""
        return torch.stack([squared_length(residual), self.squared(residual)])

    def leave_one_out(self, residual: Tensor) -> Tensor:
        """log q of the residuals that `of` saw, each left out of S, `(M,)`, float64."""
        q = self.squared(residual)
        return finite_log(q / (1 - q / self.num_simulations))


def squared_length(residual: Tensor) -> Tensor:
    """Squared lengths `(B,)`, float64, of residuals `(B, K)`."""
    return residual.square().sum(1).double()


def finite_log(squared: Tensor) -> Tensor:
    """The logarithm of squared lengths, finite at 0."""
    return squared.clamp(min=torch.finfo(squared.dtype).tiny).log()


__all__ = ["ROUNDED", "Mahalanobis", "finite_log", "squared_length"]
