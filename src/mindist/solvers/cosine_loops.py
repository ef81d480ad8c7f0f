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
from typing import Any, NamedTuple

import numpy as np

from mindist.compiled import jit_reordered
from mindist.features.waves import wave

TURN = 2 * math.pi
INITIAL_DAMPING, MAX_DAMPING = 1e-3, 1e16  # as in `mindist.solvers.levenberg_marquardt`
ROUNDING = 1e-15  # of the objective, a sum of terms of order one: no step can be seen to gain less
SINGULAR = 1e-14  # a pivot below this share of its diagonal element has lost its sign
TRIPLE = 3  # derivatives whose products with the matrix are made in one pass through it
CONVERGED, MAX_ITERATIONS, STALLED, NONFINITE = 0, 1, 2, 3  # of `SolverStatus`


class Basis(NamedTuple):
    """Cosines and a matrix: frequencies `(d, P)` and phases `(P,)` in turns, A `(r, P)`."""

    frequency: Any
    phase: Any
    mixing: Any


class Target(NamedTuple):
    """Of one problem, or of n with a leading axis: q `(P,)`, a constant, m `(d,)`, R `(d, d)`."""

    pull: Any
    constant: Any
    centre: Any
    whitener: Any


class Limits(NamedTuple):
    """Steps to try; the share and the amount of the objective that it is not worth a step for."""

    max_iterations: int
    tolerance: float
    least: float


class Ends(NamedTuple):
    """Of n problems: where each ended `(n, d)`, its objective, status and steps, all `(n,)`."""

    value: Any
    objective: Any
    status: Any
    iterations: Any


class Room(NamedTuple):
    """Memory for what is known at a point: waves `(P,)`, `y = c A` `(r,)`, R (s - m) `(d,)`;
    for derivatives, those of waves and of y in whole `TRIPLE`s of unknowns; and for a step.
    """

    cosine: Any
    sine: Any
    y: Any
    offset: Any
    force: Any
    slopes: Any
    jacobian: Any
    g: Any
    gauss: Any
    H: Any
    scale: Any
    L: Any
    step: Any
    trial: Any


@jit_reordered
def make_room(basis: Any) -> Any:
    """Memory for problems in a basis."""
    (d, num), rank = basis.frequency.shape, len(basis.mixing)
    whole = -(-d // TRIPLE) * TRIPLE
    return Room(
        np.empty(num), np.empty(num), np.empty(rank), np.empty(d),
        np.empty(num), np.zeros((whole, num)), np.empty((whole, rank)),
        np.empty(d), np.empty((d, d)), np.empty((d, d)), np.empty(d),
        np.empty((d, d)), np.empty(d), np.empty(d),
    )  # fmt: skip


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
def evaluate(basis: Any, target: Any, s: Any, room: Any) -> Any:
    """The objective of one problem at a point, with what it is made of left in the room."""
    waves(basis.frequency, basis.phase, s, room.cosine, room.sine)
    value = target.constant + energy(basis.mixing, target.pull, room.cosine, room.y)
    return value + penalise(target.whitener, target.centre, s, room.offset)


@jit_reordered
def differentiate(basis: Any, target: Any, room: Any) -> None:
    """Half the gradient `(d,)`, the matrix of Gauss and Newton and half the Hessian `(d, d)`.

    At the point of the last `evaluate`.
    """
    slope(basis, target.pull, room)
    second_order(basis, room)
    add_penalty(target.whitener, room.offset, room.g, room.gauss, room.H)
    for i in range(len(room.g)):
        room.scale[i] = room.gauss[i, i] if room.gauss[i, i] > 0 else 1.0


@jit_reordered
def slope(basis: Any, pull: Any, room: Any) -> None:
    """The force `(P,)`, the derivatives of the waves `(d, P)` and of y `(d, r)`, the gradient."""
    force, slopes, d = room.force, room.slopes, len(room.g)
    force[:] = -pull
    for i in range(d):
        row, wave = basis.frequency[i], slopes[i]
        for p in range(len(row)):
            wave[p] = -TURN * room.sine[p] * row[p]
    for i in range(0, d, TRIPLE):
        some, share = slice(i, i + TRIPLE), 1.0 if i == 0 else 0.0
        project(basis.mixing, room.y, share, force, slopes[some], room.jacobian[some])
    for i in range(d):
        room.g[i] = dot(slopes[i], force)


@jit_reordered
def project(A: Any, y: Any, share: Any, force: Any, slopes: Any, out: Any) -> None:
    """Add a share of y A to the force, and write the products of A with three vectors `(3, r)`.

    A, `(r, P)`, is larger than the nearest cache: it is read once, two rows at a time.
    """
    u, v, w, last = slopes[0], slopes[1], slopes[2], len(A) - 1
    for k in range(0, len(A), 2):
        m = min(k + 1, last)  # the last row again, where it has no other beside it
        a, b, y_a, y_b = A[k], A[m], share * y[k], share * y[m] if m > k else 0.0
        ua = ub = va = vb = wa = wb = 0.0
        for p in range(len(force)):
            ua += u[p] * a[p]
            ub += u[p] * b[p]
            va += v[p] * a[p]
            vb += v[p] * b[p]
            wa += w[p] * a[p]
            wb += w[p] * b[p]
            force[p] += y_a * a[p] + y_b * b[p]
        out[0, k], out[1, k], out[2, k] = ua, va, wa
        out[0, m], out[1, m], out[2, m] = ub, vb, wb


@jit_reordered
def second_order(basis: Any, room: Any) -> None:
    """The matrices, from the derivatives of y; those of the waves are overwritten."""
    jacobian, gauss, H = room.jacobian, room.gauss, room.H
    for i in range(len(H)):
        row, wave = basis.frequency[i], room.slopes[i]
        for p in range(len(row)):
            wave[p] = TURN * TURN * room.force[p] * room.cosine[p] * row[p]
        for j in range(i + 1):
            gauss[i, j] = dot(jacobian[i], jacobian[j])
            H[i, j] = gauss[i, j] - dot(wave, basis.frequency[j])
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
def begin(basis: Any, target: Any, start: Any, s: Any, room: Any) -> Any:
    """Write the lowest of the points `(S, d)` to s, and leave in the room what is known there."""
    F, lowest = evaluate(basis, target, start[0], room), 0
    for k in range(1, len(start)):
        F_other = evaluate(basis, target, start[k], room)
        if F_other < F or np.isnan(F):
            F, lowest = F_other, k
    s[:] = start[lowest]
    if lowest < len(start) - 1:
        evaluate(basis, target, s, room)
    return F


@jit_reordered
def propose(s: Any, damping: Any, room: Any) -> Any:
    """Write a step and where it leads; by how much it is predicted to lower the objective."""
    g, scale, step = room.g, room.scale, room.step
    if not solve_damped(room.H, scale, damping, g, room.L, step) and not solve_damped(
        room.gauss, scale, damping, g, room.L, step
    ):
        step[:] = 0.0
    predicted = 0.0
    for i in range(len(s)):
        room.trial[i] = s[i] + step[i]
        predicted += step[i] * (damping * scale[i] * step[i] - g[i])
    return predicted


@jit_reordered
def search_one(basis: Any, target: Any, start: Any, limits: Any, s: Any, room: Any) -> Any:
    """Minimise one problem from the lowest of its starts; objective, status and steps tried."""
    F = begin(basis, target, start, s, room)
    damping, growth, moved, count = INITIAL_DAMPING, 2.0, True, 0
    code = MAX_ITERATIONS if np.isfinite(F) else NONFINITE
    while code == MAX_ITERATIONS and count < limits.max_iterations:
        count += 1
        if moved:
            differentiate(basis, target, room)
        predicted = propose(s, damping, room)
        F_trial = evaluate(basis, target, room.trial, room)
        moved = F_trial < F
        # Quadratic convergence: after a step that is predicted to gain so little, the next
        # would gain nothing.
        small = predicted <= max(limits.tolerance * F, limits.least) and damping <= 1
        if moved:
            gain = min((F - F_trial) / predicted, 1.0)
            damping *= max(1 / 3, 1 - (2 * gain - 1) ** 3)
            growth, F = 2.0, F_trial
            s[:] = room.trial
        else:
            damping *= growth
            growth *= 2
        if small or (predicted <= ROUNDING and not moved):
            code = CONVERGED
        elif damping > MAX_DAMPING:
            code = STALLED
    return F, code, count


@jit_reordered
def minimise(basis: Any, targets: Any, start: Any, limits: Any, ends: Any) -> None:
    """Minimise n problems, each from the lowest of its starts `(n, S, d)`."""
    room = make_room(basis)
    for b in range(len(start)):
        target = Target(
            targets.pull[b], targets.constant[b], targets.centre[b], targets.whitener[b]
        )
        F, code, count = search_one(basis, target, start[b], limits, ends.value[b], room)
        ends.objective[b], ends.status[b], ends.iterations[b] = F, code, count
