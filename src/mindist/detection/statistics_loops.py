"""The compiled loops of `mindist.detection`: statistics and p-values of one dataset after another.

NaN stays NaN, as in the tensor operations that these take the place of.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.compiled import jit_literal, jit_reordered
from mindist.decoders.ridge_loops import cosines_at


@jit_reordered
def square(row: Any) -> Any:
    """The squared length of a vector."""
    total = 0.0
    for k in range(len(row)):
        value = np.float64(row[k])
        total += value * value
    return total


@jit_reordered
def clamp(value: Any, low: Any, high: Any) -> Any:
    """The nearest number between two others."""
    if value < low:
        return low
    return high if value > high else value


@jit_reordered
def whiten(residual: Any, columns: Any, out: Any) -> None:
    """Residuals `(B, K)` times a matrix that is 0 below the diagonal, given as its columns."""
    for b in range(len(residual)):
        row = residual[b]
        for k in range(len(row)):
            column, total = columns[k], row[0] * 0
            for i in range(k + 1):
                total += row[i] * column[i]
            out[b, k] = total


@jit_reordered
def squares(residual: Any, white: Any, unit: Any, rounded: Any, out: Any) -> None:
    """Squared lengths and squared Mahalanobis lengths, as in `Mahalanobis`.

    Arguments:
        residual: `(B, K)`.
        white: The same whitened, `(B, q)`.
        unit: The square of the unit of `white`.
        rounded: A squared length that is nothing but rounding.
        out: The result, `(2, B)`, written.
    """
    for b in range(len(residual)):
        out[0, b] = square(residual[b])
        out[1, b] = (unit if out[0, b] > rounded else 0.0) * square(white[b])


@jit_reordered
def log_scales(scale: Any, s: Any, out: Any) -> None:
    """g, `(B,)`, at summaries `(B, d)` as in `ResidualStatistics`; `scale` is a `Scale`."""
    cosine, inside = np.empty(len(scale.weight)), np.empty(s.shape[1])
    for b in range(len(s)):
        for j in range(len(inside)):
            inside[j] = clamp(s[b, j], scale.low[j], scale.high[j])
        cosines_at(scale.waves, inside, cosine)
        value = scale.bias
        for p in range(len(cosine)):
            value += cosine[p] * scale.weight[p]
        out[b] = clamp(value, scale.least, scale.most)


@jit_reordered
def regress(regression: Any, z_bar: Any, s: Any, out: Any) -> None:
    """Residuals `(B, d)` as in `SummaryRegression`, of embeddings `(B, K)` and summaries.

    Arguments:
        regression: Centre of the embeddings `(K,)`, centre and scale of the summaries `(d,)`, and
            the weight, transposed, `(d, K)`.
        z_bar: In any precision.
        s: `(B, d)`.
        out: The residuals, written.
    """
    centre, s_centre, s_scale, weight = regression
    offset = np.empty(len(centre))
    for b in range(len(s)):
        for k in range(len(centre)):
            offset[k] = z_bar[b, k] - centre[k]
        for j in range(len(weight)):
            row, total = weight[j], 0.0
            for k in range(len(row)):
                total += offset[k] * row[k]
            out[b, j] = (s[b, j] - s_centre[j]) / s_scale[j] - total


@jit_literal
def p_values(null: Any, statistics: Any, out: Any) -> None:
    """Combined p-values `(B,)` of statistics `(B, T)` as in `CombinedTest`, without NaN.

    A level such as 0.05 is compared with them: the last division is rounded as any other.

    Arguments:
        null: Sorted statistics of simulations `(T, n)`; and their groups: best ranks, who has them,
            and how many simulations are in earlier groups.
        statistics: Of observed datasets.
        out: The p-values, written.
    """
    ordered, levels, members, before = null
    num, above = ordered.shape[1], np.empty(len(ordered), np.int64)
    for b in range(len(statistics)):
        best = num + 1
        for t in range(len(ordered)):
            below = np.searchsorted(ordered[t], statistics[b, t])
            best = min(best, 1 + num - below)
            above[t] = num - np.searchsorted(ordered[t], statistics[b, t], side="right")
        group = np.searchsorted(levels, best)
        count = before[group]
        while group < len(levels) and levels[group] == best:
            for t in range(len(above)):
                if members[group, t] and above[t] >= best:
                    count += before[group + 1] - before[group]
                    break
            group += 1
        out[b] = (1 + count) / (1 + num)
