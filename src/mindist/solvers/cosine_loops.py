r"""The compiled loops of `mindist.solvers.cosine`: Newton's method for one problem after another.

With :math:`c = \cos 2\pi(s \Omega + \phi)`, :math:`y = c A^\top`, :math:`v = y A - q` and
:math:`\dot c_i = -2\pi \sin(\cdot)\, \Omega_i`, half the gradient and half the Hessian of
:math:`\|c A^\top\|^2 - 2 c \cdot q` are

.. math:: g_i = \dot c_i \cdot v, \qquad
    H_{ij} = (\dot c_i A^\top) \cdot (\dot c_j A^\top)
        - 4 \pi^2 \sum_p v_p\, c_p\, \Omega_{ip} \Omega_{jp} .

Without its second term H is the matrix of Gauss and Newton, which is taken where H is not positive
definite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindist.compiled import jit_reordered
from mindist.features.waves import wave

TURN = 2 * math.pi
INITIAL_DAMPING, MAX_DAMPING = 1e-3, 1e16  # as in `mindist.solvers.levenberg_marquardt`
ROUNDING = 1e-15  # of the objective, a sum of terms of order one: no step can be seen to gain less
SINGULAR = 1e-14  # a pivot below this share of its diagonal element has lost its sign
CONVERGED, MAX_ITERATIONS, STALLED, NONFINITE = 0, 1, 2, 3  # of `SolverStatus`


@jit_reordered
def waves(frequency: Any, phase: Any, s: Any, cosine: Any, sine: Any) -> None:
    """Cosines and sines `(P,)` of all frequencies `(d, P)` at a point `(d,)`, in turns."""
    cosine[:] = phase
    for j in range(len(frequency)):
        row, at = frequency[j], s[j]
        for p in range(len(row)):
            cosine[p] += at * row[p]
    for p in range(len(cosine)):
        cosine[p], sine[p] = wave(cosine[p])


@jit_reordered
def dot(a: Any, b: Any) -> Any:
    """The inner product of two vectors."""
    total = 0.0
    for p in range(len(a)):
        total += a[p] * b[p]
    return total


@jit_reordered
def dot_pair(a: Any, b: Any, c: Any) -> Any:
    """The inner products of a vector with two others, which reads it once."""
    first, second = 0.0, 0.0
    for p in range(len(a)):
        first += a[p] * b[p]
        second += a[p] * c[p]
    return first, second


@jit_reordered
def energy(mixing: Any, pull: Any, cosine: Any, y: Any) -> Any:
    """The objective without penalty and constant, with y `(r,)` written on the way."""
    total = -2 * dot(pull, cosine)
    for k in range(len(mixing)):
        y[k] = dot(mixing[k], cosine)
        total += y[k] * y[k]
    return total


@jit_reordered
def penalise(whitener: Any, centre: Any, s: Any, offset: Any) -> Any:
    """The squared norm of R (s - m), with that vector written to `offset`."""
    total = 0.0
    for i in range(len(s)):
        value = 0.0
        for j in range(len(s)):
            value += whitener[i, j] * (s[j] - centre[j])
        offset[i] = value
        total += value * value
    return total


@jit_reordered
def differentiate(
    mixing: Any, frequency: Any, pull: Any, cosine: Any, sine: Any, y: Any,
    force: Any, slopes: Any, jacobian: Any, g: Any, gauss: Any, H: Any,
) -> None:  # fmt: skip
    """Half the gradient `(d,)`, the matrix of Gauss and Newton and half the Hessian `(d, d)`."""
    force[:] = -pull
    for k in range(len(mixing)):
        row, at = mixing[k], y[k]
        for p in range(len(row)):
            force[p] += at * row[p]
    d = len(frequency)
    for i in range(d):
        row, wave = frequency[i], slopes[i]
        for p in range(len(row)):
            wave[p] = -TURN * sine[p] * row[p]
        g[i] = dot(wave, force)
    for k in range(len(mixing)):
        row = mixing[k]
        for i in range(0, d - 1, 2):
            jacobian[i, k], jacobian[i + 1, k] = dot_pair(row, slopes[i], slopes[i + 1])
        if d % 2:
            jacobian[d - 1, k] = dot(row, slopes[d - 1])
    for i in range(d):
        row, wave = frequency[i], slopes[i]
        for p in range(len(row)):
            wave[p] = TURN * TURN * force[p] * cosine[p] * row[p]
        for j in range(i + 1):
            gauss[i, j] = dot(jacobian[i], jacobian[j])
            H[i, j] = gauss[i, j] - dot(wave, frequency[j])
            gauss[j, i], H[j, i] = gauss[i, j], H[i, j]


@jit_reordered
def add_penalty(whitener: Any, offset: Any, g: Any, gauss: Any, H: Any) -> None:
    """Add the derivatives of the penalty."""
    for k in range(len(g)):
        for i in range(len(g)):
            g[i] += whitener[k, i] * offset[k]
            for j in range(len(g)):
                square = whitener[k, i] * whitener[k, j]
                gauss[i, j] += square
                H[i, j] += square


@jit_reordered
def solve_damped(A: Any, scale: Any, damping: Any, g: Any, L: Any, step: Any) -> Any:
    """Solve (A + damping diag(scale)) step = -g; whether that matrix is positive definite."""
    for i in range(len(g)):
        for j in range(i):
            L[i, j] = (A[i, j] - dot(L[i, :j], L[j, :j])) / L[j, j]
        pivot = A[i, i] + damping * scale[i] - dot(L[i, :i], L[i, :i])
        if not pivot > SINGULAR * scale[i]:
            return False
        L[i, i] = math.sqrt(pivot)
    for i in range(len(g)):
        step[i] = (-g[i] - dot(L[i, :i], step[:i])) / L[i, i]
    for i in range(len(g) - 1, -1, -1):
        for k in range(i + 1, len(g)):
            step[i] -= L[k, i] * step[k]
        step[i] /= L[i, i]
    return True


@jit_reordered
def minimise(
    frequency: Any, phase: Any, mixing: Any, pull: Any, constant: Any, centre: Any, whitener: Any,
    start: Any, max_iterations: Any, tolerance: Any, least: Any,
    value: Any, objective: Any, status: Any, iterations: Any,
) -> None:  # fmt: skip
    """Minimise every problem from its start; arguments as `mindist.solvers.cosine`."""
    d, num = frequency.shape
    rank = len(mixing)
    cosine, sine, force, slopes = np.empty(num), np.empty(num), np.empty(num), np.empty((d, num))
    y, jacobian = np.empty(rank), np.empty((d, rank))
    g, scale, offset, step, trial = (
        np.empty(d), np.empty(d), np.empty(d), np.empty(d), np.empty(d),
    )  # fmt: skip
    gauss, H, L = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    for b in range(len(start)):
        s = value[b]
        s[:] = start[b, 0]
        F = np.inf
        for k in range(start.shape[1]):
            waves(frequency, phase, start[b, k], cosine, sine)
            F_trial = constant[b] + energy(mixing, pull[b], cosine, y)
            F_trial += penalise(whitener[b], centre[b], start[b, k], offset)
            if F_trial < F:
                F = F_trial
                s[:] = start[b, k]
        if start.shape[1] > 1:
            waves(frequency, phase, s, cosine, sine)
            energy(mixing, pull[b], cosine, y)
            penalise(whitener[b], centre[b], s, offset)
        damping, growth, moved, count = INITIAL_DAMPING, 2.0, True, 0
        code = MAX_ITERATIONS if np.isfinite(F) else NONFINITE
        while code == MAX_ITERATIONS and count < max_iterations:
            count += 1
            if moved:
                differentiate(
                    mixing,
                    frequency,
                    pull[b],
                    cosine,
                    sine,
                    y,
                    force,
                    slopes,
                    jacobian,
                    g,
                    gauss,
                    H,
                )
                add_penalty(whitener[b], offset, g, gauss, H)
                for i in range(d):
                    scale[i] = gauss[i, i] if gauss[i, i] > 0 else 1.0
            if not solve_damped(H, scale, damping, g, L, step) and not solve_damped(
                gauss, scale, damping, g, L, step
            ):
                step[:] = 0.0
            predicted = 0.0
            for i in range(d):
                trial[i] = s[i] + step[i]
                predicted += step[i] * (damping * scale[i] * step[i] - g[i])
            waves(frequency, phase, trial, cosine, sine)
            F_trial = constant[b] + energy(mixing, pull[b], cosine, y)
            F_trial += penalise(whitener[b], centre[b], trial, offset)
            moved = F_trial < F
            # Quadratic convergence: after a step that is predicted to gain so little, the next
            # would gain nothing.
            small = predicted <= max(tolerance * F, least) and damping <= 1
            if moved:
                gain = min((F - F_trial) / predicted, 1.0)
                damping *= max(1 / 3, 1 - (2 * gain - 1) ** 3)
                growth, F = 2.0, F_trial
                s[:] = trial
            else:
                damping *= growth
                growth *= 2
            if small or (predicted <= ROUNDING and not moved):
                code = CONVERGED
            elif damping > MAX_DAMPING:
                code = STALLED
        objective[b], status[b], iterations[b] = F, code, count
