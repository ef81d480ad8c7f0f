r"""Square linear systems, :math:`A X = R`, whose solution is the same bit for bit in every call.

`torch.linalg.lstsq` has, on a CPU, last bits that depend on where in memory its workspace happens
to lie: of 600 equal calls with 8 unknowns it gave 18 results, LU factors one. So it is asked only
where LU cannot answer.
"""

from __future__ import annotations

import torch
from torch import Tensor


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solutions `(B, d, n)` of systems; the one of least norm where a matrix is singular.

    Arguments:
        matrix: `(B, d, d)`, float64. As singular counts what `torch.linalg.lstsq` cuts: a condition
            number above one over d times the precision.
        right: Right-hand sides `(B, d, n)`.

    Example:
        >>> matrix = torch.tensor([[[2.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]]]).double()
        >>> solve(matrix, torch.ones(2, 2, 1).double()).squeeze(2)
        tensor([[0.5000, 0.2500],
                [1.0000, 0.0000]], dtype=torch.float64)
    """
    inverse, failed = torch.linalg.inv_ex(matrix)
    condition = _norm(matrix) * _norm(inverse)
    limit = 1 / (matrix.shape[-1] * torch.finfo(matrix.dtype).eps)
    singular = (failed != 0) | ~(condition < limit)  # also where it is NaN
    value: Tensor = torch.linalg.solve_ex(matrix, right).result
    if singular.any():
        value[singular] = torch.linalg.lstsq(matrix[singular], right[singular]).solution
    return value


def _norm(matrix: Tensor) -> Tensor:
    """The largest sum of absolute values in a column, `(B,)`."""
    return matrix.abs().sum(-2).amax(-1)


__all__ = ["solve"]
