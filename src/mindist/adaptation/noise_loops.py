"""The compiled loops of `mindist.adaptation.noise`, for one summary after another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindist.adaptation.matrix_loops import eigen, product
from mindist.compiled import jit_reordered


@jit_reordered
def covariance(noise: Any, s: Any, V: Any) -> None:
    """V(s), `(d, d)`, at one summary `(d,)`; of equally near simulations the first ones count.

    Arguments:
        noise: Summaries of simulations over their scale `(M, d)`, deviations `(M, R, d)`, the scale
            `(d,)`, and how many of the nearest to average.
        s: The summary.
        V: The result, written.
    """
    points, deviation, scale, most = noise
    squared = np.zeros(len(points))
    for j in range(len(s)):
        at = s[j] / scale[j]
        for m in range(len(points)):
            squared[m] += (points[m, j] - at) ** 2
    limit = np.partition(squared, most - 1)[most - 1]
    nearer = 0
    for m in range(len(points)):
        nearer += squared[m] < limit
    equal = most - nearer
    V[:] = 0.0
    for m in range(len(points)):
        if squared[m] > limit or (squared[m] == limit and equal == 0):
            continue
        equal -= squared[m] == limit
        for r in range(deviation.shape[1]):
            row = deviation[m, r]
            for i in range(len(row)):
                for j in range(i + 1):
                    V[i, j] += np.float64(row[i]) * np.float64(row[j])
    for i in range(len(V)):
        for j in range(i + 1):
            V[i, j] /= most
            V[j, i] = V[i, j]


@jit_reordered
def factor(V: Any, least: Any, L: Any, inverse: Any) -> None:
    """L with `V = L L'`, and its inverse where V is not 0, as in `positive_excess`.

    Arguments:
        V: A covariance `(d, d)`, overwritten.
        least: The least eigenvalue of its correlations that counts.
        L: Written.
        inverse: Written; 0 in directions in which V is.
    """
    d = len(V)
    size, vector = np.empty(d), np.empty((d, d))
    for i in range(d):
        size[i] = math.sqrt(V[i, i]) if V[i, i] > 0 else 1.0
    for i in range(d):
        for j in range(d):
            V[i, j] = V[i, j] / size[i] / size[j]
    eigen(V, vector)
    top = least
    for k in range(d):
        top = max(top, V[k, k])
    for k in range(d):
        kept = V[k, k] > least * top
        root = math.sqrt(V[k, k]) if kept else 0.0
        for i in range(d):
            L[i, k] = size[i] * vector[i, k] * root
            inverse[k, i] = vector[i, k] / root / size[i] if kept else 0.0


@jit_reordered
def positive_excess(C: Any, V: Any, least: Any, out: Any) -> None:
    """U of one covariance C and another V, both `(d, d)`, as the function of `noise`.

    V is overwritten.
    """
    d = len(C)
    L, inverse = np.empty((d, d)), np.empty((d, d))
    half, Q = np.empty((d, d)), np.empty((d, d))
    factor(V, least, L, inverse)
    product(inverse, C, half)
    for i in range(d):
        for j in range(i + 1):
            V[i, j] = 0.0
            for k in range(d):
                V[i, j] += half[i, k] * inverse[j, k]
            V[j, i] = V[i, j]
    eigen(V, Q)
    product(L, Q, half)
    for i in range(d):
        for j in range(i + 1):
            out[i, j] = 0.0
            for k in range(d):
                out[i, j] += half[i, k] * half[j, k] * max(V[k, k] - 1, 0.0)
            out[j, i] = out[i, j]


@jit_reordered
def excesses(noise: Any, s: Any, C: Any, least: Any, out: Any) -> None:
    """U of summaries `(B, d)` with covariances `(B, d, d)`; 0 where one is not finite."""
    V = np.empty(C.shape[1:])
    for b in range(len(s)):
        if not np.isfinite(C[b]).all():
            out[b] = 0.0
            continue
        covariance(noise, s[b], V)
        positive_excess(C[b], V, least, out[b])
