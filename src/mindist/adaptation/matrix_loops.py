"""Compiled loops for one small square matrix at a time: signs, solutions, eigenvalues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindist.compiled import jit_reordered
from mindist.solvers.cosine_loops import dot

# Of its diagonal element: a pivot of Cholesky's that is smaller may have lost its sign.
NO_SIGN = 1e-10
# Of the largest element: `torch.linalg.lstsq` takes a pivot below 1e-15 for zero.
NO_PIVOT = 1e-13
SWEEPS = 30  # of Jacobi's method, which converges quadratically: 5 or 6 are usual
ROUNDING = 1e-30  # the square of what is left beside the diagonal, relative to what is on it


@jit_reordered
def definite(H: Any) -> Any:
    """1 if a symmetric matrix is positive definite, -1 if it is not, 0 if rounding decides."""
    L, largest = np.zeros_like(H), 0.0
    for i in range(len(H)):
        largest = max(largest, abs(H[i, i]))
    for i in range(len(H)):
        for j in range(i):
            L[i, j] = (H[i, j] - dot(L[i, :j], L[j, :j])) / L[j, j]
        pivot, unit = H[i, i] - dot(L[i, :i], L[i, :i]), NO_SIGN * abs(H[i, i])
        if pivot < -unit:
            return -1
        if not (pivot > unit and pivot > NO_PIVOT * largest):
            return 0
        L[i, i] = math.sqrt(pivot)
    return 1


@jit_reordered
def eliminate(A: Any, x: Any) -> Any:
    """Solve A x = y for the columns of `(d, N)`, in place; False where A is nearly singular.

    By Gauss with row pivots; A `(d, d)` is overwritten.
    """
    largest = np.abs(A).max()
    for k in range(len(A)):
        best = k
        for i in range(k + 1, len(A)):
            best = i if abs(A[i, k]) > abs(A[best, k]) else best
        if not abs(A[best, k]) > NO_PIVOT * largest:
            return False
        if best != k:
            for j in range(len(A)):
                A[k, j], A[best, j] = A[best, j], A[k, j]
            for n in range(x.shape[1]):
                x[k, n], x[best, n] = x[best, n], x[k, n]
        for i in range(k + 1, len(A)):
            factor = A[i, k] / A[k, k]
            subtract(factor, A[k], A[i])
            subtract(factor, x[k], x[i])
    for k in range(len(A) - 1, -1, -1):
        for i in range(k + 1, len(A)):
            subtract(A[k, i], x[i], x[k])
        x[k] /= A[k, k]
    return True


@jit_reordered
def spectral_radius(T: Any) -> Any:
    r"""The largest absolute eigenvalue: :math:`\lim \|T^m\|^{1/m}`, by squaring (Gelfand).

    Each power is divided by a power of two, which is exact. At :math:`m = 2^{60}` neither what is
    left of its norm nor a multiple eigenvalue matters any more.
    """
    power, square, exponent, share = T.copy(), np.empty_like(T), 0.0, 1.0
    for _ in range(60):
        size = 0.0
        for row in power:
            for value in row:
                size = max(size, abs(value)) if np.isfinite(value) else np.inf
        if size == 0 or not np.isfinite(size):
            return size
        _, e = math.frexp(size)
        exponent, factor = exponent + share * e, math.ldexp(1.0, -e)
        for i in range(len(power)):
            for j in range(len(power)):
                total = 0.0
                for k in range(len(power)):
                    total += (factor * power[i, k]) * (factor * power[k, j])
                square[i, j] = total
        power, square, share = square, power, share / 2
    return 2.0**exponent


@jit_reordered
def subtract(factor: Any, a: Any, b: Any) -> None:
    """b - factor a, in place of b."""
    for n in range(len(a)):
        b[n] -= factor * a[n]


@jit_reordered
def eigen(A: Any, vectors: Any) -> None:
    """Turn a symmetric matrix `(d, d)` to its eigenvalues on the diagonal, by Jacobi's method.

    Arguments:
        A: The matrix, overwritten.
        vectors: Its eigenvectors, one in each column, written.
    """
    d = len(A)
    vectors[:] = 0.0
    for i in range(d):
        vectors[i, i] = 1.0
    for _ in range(SWEEPS):
        on, off = 0.0, 0.0
        for i in range(d):
            on += A[i, i] * A[i, i]
            for j in range(i):
                off += A[i, j] * A[i, j]
        if not off > ROUNDING * on:
            break
        for i in range(1, d):
            for j in range(i):
                if A[i, j] != 0.0:
                    rotate(A, vectors, i, j)


@jit_reordered
def rotate(A: Any, vectors: Any, i: int, j: int) -> None:
    """Make one element beside the diagonal 0 by a rotation of two coordinates."""
    slope = (A[j, j] - A[i, i]) / (2 * A[i, j])
    t = math.copysign(1.0, slope) / (abs(slope) + math.hypot(slope, 1.0))
    c = 1 / math.sqrt(t * t + 1)
    s = t * c
    for k in range(len(A)):
        A[k, i], A[k, j] = c * A[k, i] - s * A[k, j], s * A[k, i] + c * A[k, j]
    for k in range(len(A)):
        A[i, k], A[j, k] = c * A[i, k] - s * A[j, k], s * A[i, k] + c * A[j, k]
    for k in range(len(A)):
        a, b = vectors[k, i], vectors[k, j]
        vectors[k, i], vectors[k, j] = c * a - s * b, s * a + c * b


@jit_reordered
def product(A: Any, B: Any, out: Any) -> None:
    """The product of two small matrices."""
    for i in range(len(A)):
        for j in range(B.shape[1]):
            out[i, j] = 0.0
            for k in range(len(B)):
                out[i, j] += A[i, k] * B[k, j]
