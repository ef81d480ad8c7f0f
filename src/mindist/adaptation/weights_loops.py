"""The compiled loops of `mindist.adaptation.weights`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.compiled import jit_reordered
from mindist.features.spans import RUN


@jit_reordered
def inner_products(features: Any, mu: Any, out: Any) -> None:
    """The inner product of each row of features `(B, N, L)` with mu `(B, L)`, into `(B, N)`."""
    for b in range(len(features)):
        at = mu[b].astype(features.dtype)
        for n in range(features.shape[1]):
            row = features[b, n]
            total = at[0] * 0
            for k in range(len(row)):
                total += row[k] * at[k]
            out[b, n] = total


@jit_reordered
def add_rows(values: Any, weight: Any, total: Any) -> None:
    """Add rows `(n, K)` times weights `(n,)` to `(K,)`, four at a time."""
    whole = len(values) // 4 * 4
    for n in range(0, whole, 4):
        a, b, c, d = values[n], values[n + 1], values[n + 2], values[n + 3]
        u, v, w, x = weight[n], weight[n + 1], weight[n + 2], weight[n + 3]
        for k in range(len(total)):
            total[k] += u * a[k] + v * b[k] + w * c[k] + x * d[k]
    for n in range(whole, len(values)):
        row, at = values[n], weight[n]
        for k in range(len(total)):
            total[k] += at * row[k]


@jit_reordered
def weighted_means(values: Any, rows: Any, weight: Any, least: Any, mean: Any) -> None:
    """Weighted means of values `(B, N, K)` of some datasets.

    Runs of rows are summed in the precision of the values, and the sums in float64.

    Arguments:
        values: Of all datasets.
        rows: Which of them to average, `(n,)`.
        weight: Of all rows, `(B, N)`.
        least: What the sum of weights counts as at least.
        mean: Of all datasets `(B, K)`, float64, of which some are overwritten.
    """
    run, share = np.empty(values.shape[2], values.dtype), np.empty(values.shape[1], values.dtype)
    for b in rows:
        total = max(weight[b].sum(), least)
        for n in range(len(share)):
            share[n] = weight[b, n] / total
        mean[b] = 0.0
        for first in range(0, len(share), RUN):
            run[:] = 0
            add_rows(values[b, first : first + RUN], share[first : first + RUN], run)
            for k in range(len(run)):
                mean[b, k] += run[k]
