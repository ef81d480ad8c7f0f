"""The compiled loop of `mindist.adaptation.weights`."""

from __future__ import annotations

from typing import Any

from mindist.compiled import jit_reordered


@jit_reordered
def inner_products(features: Any, mu: Any, out: Any) -> None:
    """The inner product of each row of features `(B, N, L)` with mu `(B, L)`, into `(B, N)`."""
    for b in range(len(features)):
        at = mu[b]
        for n in range(features.shape[1]):
            row = features[b, n]
            total = at[0] * 0
            for k in range(len(row)):
                total += row[k] * at[k]
            out[b, n] = total
