r"""The leading directions of many rows.

An eigendecomposition of all K directions takes :math:`10 K^3` operations or more. Where K is large
and few directions are wanted, a random subspace that is multiplied by :math:`R^\top R` and made
orthonormal again turns towards them at a cost linear in K (Halko, Martinsson and Tropp, 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

EXACT = 1_024  # columns up to which all directions are computed: half a second on one core
SPARE = 32  # directions beyond those that are wanted, which take what is not separated yet
ROUNDS = 2


def leading_directions(rows: Tensor, num: int, *, rounds: int = ROUNDS) -> Tensor:
    r"""The eigenvectors of :math:`R^\top R` with the largest eigenvalues, which come first.

    Arguments:
        rows: R, `(M, K)`.
        num: How many are wanted.
        rounds: How often a subspace is turned, with more than 1,024 columns.

    Returns:
        Orthonormal columns `(K, q)`, with q the smallest of `num`, K and, with more than 1,024
        columns, M; in the precision of the rows.

    Example:
        >>> leading_directions(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), 1).abs()
        tensor([[1.],
                [0.]])
    """
    if rows.shape[1] <= EXACT:
        _, vectors = torch.linalg.eigh((rows.T @ rows).double())
        leading: Tensor = vectors.flip(1)[:, :num].to(rows.dtype)
        return leading
    generator = torch.Generator().manual_seed(0)
    width = min(num + SPARE, *rows.shape)
    basis = torch.randn(rows.shape[1], width, generator=generator).to(rows)
    for _ in range(rounds):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    seen = rows @ basis
    _, turn = torch.linalg.eigh((seen.T @ seen).double())
    directions: Tensor = basis @ turn.flip(1)[:, :num].to(rows.dtype)
    return directions


__all__ = ["leading_directions"]
