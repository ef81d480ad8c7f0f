r"""The compiled loops of `mindist.adaptation.own_kernel`.

The exponential is :math:`e^u = 2^k e^r` with whole k and :math:`|r| \le \ln(2) / 2`, whose series
to the twelfth power leaves out less than 2e-16 of it. The library's handles one number at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.compiled import jit_reordered

LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first has so few digits that its product with any k is exact.
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
LEAST = -708.0  # e^-708 is the smallest that is no subnormal number: 3e-308


@jit_reordered
def exponential(u: Any, bits: Any) -> None:
    """Overwrite numbers `(n,)`, at most 0, by their exponentials; `bits` is memory for integers."""
    for i in range(len(u)):
        v = LEAST if u[i] < LEAST else u[i]
        k = np.floor(v * LOG2_E + 0.5)
        r = (v - k * LN2_HIGH) - k * LN2_LOW
        p = 1 + r / 12
        for j in range(11, 0, -1):
            p = 1 + p * r * (1 / j)
        u[i] = p
        bits[i] = (np.int64(k) + 1023) << 52  # of the number 2^k
    power = bits.view(np.float64)
    for i in range(len(u)):
        u[i] *= power[i]


@jit_reordered
def add_squares(x: Any, y: Any, total: Any) -> None:
    """Add squared differences of a point `(D,)` from points `(D, n)` to `(n,)`."""
    whole = len(x) // 4 * 4
    for j in range(0, whole, 4):
        a, b, c, d = y[j], y[j + 1], y[j + 2], y[j + 3]
        p, q, r, s = x[j], x[j + 1], x[j + 2], x[j + 3]
        for i in range(len(total)):
            first = (a[i] - p) * (a[i] - p) + (b[i] - q) * (b[i] - q)
            total[i] += first + (c[i] - r) * (c[i] - r) + (d[i] - s) * (d[i] - s)
    for j in range(whole, len(x)):
        row, at = y[j], x[j]
        for i in range(len(total)):
            total[i] += (row[i] - at) * (row[i] - at)


@jit_reordered
def kernel_values(points: Any, every: Any, factor: Any, out: Any) -> None:
    """The Gaussian kernel between points `(B, N, D)` and one in `every` of them, `(B, N, S)`.

    Arguments:
        points: In float32 or float64.
        every: How many points one is taken of.
        factor: Of a squared distance in the exponent.
        out: The result, float64.
    """
    _, num, dim = points.shape
    few, bits, x = np.empty((dim, out.shape[2])), np.empty(out.shape[2], np.int64), np.empty(dim)
    for b in range(len(points)):
        for i in range(out.shape[2]):
            for j in range(dim):
                few[j, i] = points[b, i * every, j]
        for n in range(num):
            row = out[b, n]
            x[:] = points[b, n]
            row[:] = 0.0
            add_squares(x, few, row)
            for i in range(len(row)):
                row[i] *= factor
            exponential(row, bits)
