"""The compiled loops of `mindist.adaptation.cloud`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindist.compiled import jit, jit_reordered
from mindist.solvers.cosine_loops import dot

STRIP = 16  # scores that are looked at together
ROUNDING = 1e-6  # of a product of vectors of length one in float32, with some to spare


@jit
def sink(score: Any, heap: Any) -> None:
    """Let the first index of a heap sink to where no index below it has a lower score."""
    top, at = heap[0], 0
    while 2 * at + 1 < len(heap):
        child = 2 * at + 1
        if child + 1 < len(heap) and score[heap[child + 1]] < score[heap[child]]:
            child += 1
        if score[top] <= score[heap[child]]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = top


@jit
def keep_largest(score: Any, chosen: Any) -> None:
    """The indices of the k largest of the scores into `(k,)`, a heap with the lowest first."""
    k = len(chosen)
    chosen[:] = np.argsort(score[:k])
    for i in range(k, len(score)):
        if score[i] > score[chosen[0]]:
            chosen[0] = i
            sink(score, chosen)


@jit
def largest(score: Any, chosen: Any) -> None:
    """The indices of the k largest of m scores, in any order, into `(k,)`.

    All are among k of 8 k groups, those whose largest scores are largest, so that most scores are
    looked at once only, several at a time.
    """
    k, m, width = len(chosen), len(score), 8 * len(chosen)
    if m < 2 * width:
        keep_largest(score, chosen)
        return
    best = score[:width].copy()
    for first in range(width, m, width):
        row = score[first : first + width]
        for i in range(len(row)):
            best[i] = row[i] if row[i] > best[i] else best[i]
    keep_largest(best, chosen)
    least, count = best[chosen[0]], 0
    index, value = np.empty(m, np.int64), np.empty_like(score)
    for group in chosen:
        for i in range(group, m, width):
            if score[i] >= least:
                index[count], value[count] = i, score[i]
                count += 1
    if count >= k:  # fewer only of NaN
        keep_largest(value[:count], chosen)
        for i in range(k):
            chosen[i] = index[chosen[i]]


@jit_reordered
def most_alike(coarse: Any, z: Any, unit: Any, tail: Any, chosen: Any) -> None:
    """The indices of the k of m simulations with the largest inner products, into `(k,)`.

    Exactly, from the products in a few coordinates and the norms of the others: a simulation whose
    product cannot reach that of the k which are best in the few is not looked at.

    Arguments:
        coarse: The products in the first coordinates, `(m,)`.
        z: The other coordinates of a vector, `(q,)`.
        unit: Those of the simulations, `(m, q)`.
        tail: Their norms, `(m,)`.
        chosen: The result.
    """
    largest(coarse, chosen)
    reach, least = math.sqrt(dot(z, z)), np.inf
    for i in chosen:
        least = min(least, coarse[i] + dot(z, unit[i]))
    reach, least = coarse.dtype.type(reach), coarse.dtype.type(least - ROUNDING)
    index, value, count = np.empty(len(coarse), np.int64), np.empty_like(coarse), 0
    for first in range(0, len(coarse), STRIP):
        some, norms = coarse[first : first + STRIP], tail[first : first + STRIP]
        hits = 0
        for i in range(len(some)):
            hits += some[i] + reach * norms[i] >= least
        if hits:
            for i in range(len(some)):
                if some[i] + reach * norms[i] >= least:
                    index[count] = first + i
                    value[count] = some[i] + dot(z, unit[first + i])
                    count += 1
    if count >= len(chosen):  # fewer only of NaN
        keep_largest(value[:count], chosen)
        for i in range(len(chosen)):
            chosen[i] = index[chosen[i]]


@jit_reordered
def whiten(covariance: Any, scale: Any, whitener: Any) -> None:
    """The inverse of the lower Cholesky factor of a matrix, over scales; both are overwritten."""
    L, d = covariance, len(covariance)
    for i in range(d):
        for j in range(i + 1):
            value = L[i, j]
            for k in range(j):
                value -= L[i, k] * L[j, k]
            L[i, j] = math.sqrt(value) if i == j else value / L[j, j]
    whitener[:] = 0.0
    for j in range(d):
        whitener[j, j] = 1 / L[j, j]
        for i in range(j + 1, d):
            value = 0.0
            for k in range(j, i):
                value -= L[i, k] * whitener[k, j]
            whitener[i, j] = value / L[i, i]
        for i in range(j, d):
            whitener[i, j] /= scale[j]


@jit_reordered
def gather(
    likeness: Any, rows: Any, s: Any, scale: Any, ridge: Any, centre: Any, whitener: Any
) -> None:
    """The clouds of `Cloud.of` about the simulations that are most alike, of some datasets.

    Arguments:
        likeness: Arguments of `most_alike`, the first two for each dataset, `(n, m)` and `(n, q)`.
        rows: Which of all datasets these are, `(n,)`.
        s: Simulated summaries `(m, d)`.
        scale: Their standard deviations `(d,)`, none of them 0.
        ridge: How many simulations are in a cloud, and the relative and the absolute ridge.
        centre: The means of all `(B, d)`, a result.
        whitener: The whitening matrices of all `(B, d, d)`, a result.
    """
    (coarse, z, unit, tail), k, d = likeness, ridge[0], s.shape[1]
    chosen, offset, covariance = np.empty(k, np.int64), np.empty((d, k)), np.empty((d, d))
    for index in range(len(rows)):
        b = rows[index]
        most_alike(coarse[index], z[index], unit, tail, chosen)
        for i in range(d):
            mean = 0.0
            for n in range(k):
                offset[i, n] = s[chosen[n], i]
                mean += offset[i, n]
            mean /= k
            centre[b, i] = mean
            for n in range(k):
                offset[i, n] = (offset[i, n] - mean) / scale[i]
        for i in range(d):
            for j in range(i + 1):
                total = 0.0
                for n in range(k):
                    total += offset[i, n] * offset[j, n]
                covariance[i, j] = total / k
            covariance[i, i] += ridge[1] * covariance[i, i] + ridge[2]
        whiten(covariance, scale, whitener[b])
