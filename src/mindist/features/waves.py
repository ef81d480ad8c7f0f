r"""Cosine and sine of many angles, compiled.

Angles are counted in turns, :math:`t = x w / 2 \pi`, because a turn is taken off without rounding:

.. math::
    r = t - \operatorname{round}(t) \in [-\tfrac12, \tfrac12], \qquad
    \cos 2 \pi t = S(\tfrac14 - |r|), \qquad
    \sin 2 \pi t = \operatorname{sign}(r) \, S(\min(|r|, \tfrac12 - |r|)) ,

with :math:`S(y) = \sin 2 \pi y` on :math:`[-\tfrac14, \tfrac14]`, one odd polynomial, the best in
the maximum norm (Remez' algorithm): 5 terms leave 3e-9 for float32, 8 terms 9e-17 for float64.
With the rounding the waves are right to 1.7e-7 and 4e-16 (`tests/test_waves.py`), after the
rounding of the angle itself. There is no branch, so that the compiler makes vector instructions of
it: .33 ns for a cosine and its sine in float32 on one core of an AMD EPYC, where `torch.cos` and
`torch.sin` take 2.6 and NumPy's 1.2.

The kernels take a slice of the work, write it into an array of the caller's and hold no lock, so
that threads may share an array of results. Each number is computed in the same order whatever the
slice. Contraction to fused multiply-add is the only licence the compiler has: not that NaN and
infinity do not occur (an angle that is not finite gives NaN), nor to sum in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from mindist.compiled import EXACT, jit
from mindist.features.spans import RUN

Array = NDArray[Any]
Share = tuple[int, int, int, int]
"""Datasets from one number to another, frequencies from one number to another."""

# Rounded, the second and the third term moved by one unit in the last place: S(1/4) = 1 exactly.
SINE_32 = tuple(np.float32(c) for c in (6.283185, -41.341652, 81.601, -76.54978, 39.536705))
SINE_64 = (
    *(6.28318530717958, -41.34170224039507, 81.60524927502613, -76.7058596474588),
    *(42.058688304977125, -15.094471608090517, 3.816997338082219, -0.690935500300059),
)

# ---------------------------------------------------------------------------- one angle


def _sine(y: Any) -> Any:
    """S(y), in the precision of y; the compiler takes one of the functions below."""


@overload(_sine, jit_options={"fastmath": EXACT})
def _sine_of(y: Any) -> Callable[[Any], Any]:
    return _short_sine if y == numba.float32 else _long_sine


def _short_sine(y: Any) -> Any:
    a, b, c, d, e = SINE_32
    u = y * y
    return y * (a + u * (b + u * (c + u * (d + u * e))))


def _long_sine(y: Any) -> Any:
    a, b, c, d, e, f, g, h = SINE_64
    u = y * y
    return y * (a + u * (b + u * (c + u * (d + u * (e + u * (f + u * (g + u * h)))))))


def wave(t: Any) -> Any:
    """Cosine and sine of t turns."""


@overload(wave, jit_options={"fastmath": EXACT})
def _wave_of(t: Any) -> Callable[[Any], Any]:
    # A literal would be a float64, and the arithmetic with it too.
    kind = np.float32 if t == numba.float32 else np.float64
    quarter, half = kind(0.25), kind(0.5)

    def both(t: Any) -> Any:
        r = t - np.rint(t)
        near = abs(r)
        far = half - near
        return _sine(quarter - near), math.copysign(_sine(near if near < far else far), r)

    return both


# ---------------------------------------------------------------------------- one observation


@jit
def _turn(x: Array, weight: Array, lo: int, hi: int, phase: Array) -> None:
    """phase = x @ weight[:, lo:hi], of one observation `(D,)`."""
    first, w = x[0], weight[0, lo:hi]
    for k in range(len(phase)):
        phase[k] = first * w[k]
    for d in range(1, len(x)):
        other, w = x[d], weight[d, lo:hi]
        for k in range(len(phase)):
            phase[k] += other * w[k]


@jit
def _add_row(phase: Array, run: Array) -> None:
    """Add the cosines and the sines of phases `(h,)` to the two rows of a run."""
    cosines, sines = run[0], run[1]
    for k in range(len(phase)):
        c, s = wave(phase[k])
        cosines[k] += c
        sines[k] += s


@jit
def _add_run(run: Array, total: Array, lo: int, hi: int) -> None:
    """Add a run to sums `(2 H,)` in float64, at frequencies lo to hi, and empty it."""
    half = len(total) // 2
    for part in range(2):
        source, target = run[part], total[part * half + lo : part * half + hi]
        for k in range(len(source)):
            target[k] += source[k]
            source[k] = 0


@jit
def _write_row(phase: Array, scale: Any, out: Array) -> None:
    """Write scaled cosines, then sines, of phases `(H,)`."""
    half = len(phase)
    cosines, sines = out[:half], out[half:]
    for k in range(half):
        c, s = wave(phase[k])
        cosines[k] = scale * c
        sines[k] = scale * s


@jit
def write_mean(total: Array, scale: float, groups: int, lo: int, hi: int, out: Array) -> None:
    """Write scaled sums `(2 H,)`, cosines, then sines, at frequencies lo to hi.

    Frequencies are in groups of like size: of each its cosines, then its sines.
    """
    half = len(total) // 2
    size = half // groups
    for k in range(lo, hi):
        at = k + k // size * size
        out[at] = scale * total[k]
        out[at + size] = scale * total[half + k]


# ---------------------------------------------------------------------------- kernels


@jit
def mean_of_data(
    x: Array, weight: Array, scale: float, groups: int, out: Array, share: Share
) -> None:
    """Scaled sums of the waves of each dataset, with the phases computed here.

    Arguments:
        x: Datasets `(B, N, D)`.
        weight: Frequencies in turns `(D, H)`.
        scale: A factor of the sums.
        groups: Into how many kernels the frequencies are divided.
        out: The result `(B, 2 H)`, of each kernel cosines, then sines.
        share: What of it to compute.
    """
    start, stop, lo, hi = share
    num_obs, half = x.shape[1], weight.shape[1]
    phase, run = np.empty(hi - lo, x.dtype), np.zeros((2, hi - lo), x.dtype)
    total = np.empty(2 * half)
    for b in range(start, stop):
        total[:] = 0
        for first in range(0, num_obs, RUN):
            for n in range(first, min(first + RUN, num_obs)):
                _turn(x[b, n], weight, lo, hi, phase)
                _add_row(phase, run)
            _add_run(run, total, lo, hi)
        write_mean(total, scale, groups, lo, hi, out[b])


@jit
def add_phases(phase: Array, total: Array, share: Share) -> None:
    """Add the waves of some observations of one dataset to its sums.

    Arguments:
        phase: In turns, `(n, H)`.
        total: Sums `(2 H,)`, float64.
        share: Which frequencies to add, after two numbers that do not count.
    """
    lo, hi = share[2], share[3]
    run = np.zeros((2, hi - lo), phase.dtype)
    for first in range(0, len(phase), RUN):
        for n in range(first, min(first + RUN, len(phase))):
            _add_row(phase[n, lo:hi], run)
        _add_run(run, total, lo, hi)


@jit
def mean_of_phases(phase: Array, scale: float, groups: int, out: Array, share: Share) -> None:
    """Scaled sums of the waves of phases in turns `(B n, H)`, n rows of each dataset.

    The rest as in `mean_of_data`.
    """
    start, stop, lo, hi = share
    num_obs, total = len(phase) // len(out), np.empty(2 * phase.shape[1])
    for b in range(start, stop):
        total[:] = 0
        add_phases(phase[b * num_obs : (b + 1) * num_obs], total, share)
        write_mean(total, scale, groups, lo, hi, out[b])


@jit
def waves_of_data(x: Array, weight: Array, scale: Any, out: Array, share: tuple[int, int]) -> None:
    """Scaled waves of each observation, with the phases computed here.

    Arguments:
        x: Observations `(n, D)`.
        weight: Frequencies in turns `(D, H)`.
        scale: A factor, in the precision of the data.
        out: The result `(n, 2 H)`, cosines, then sines.
        share: Rows from one number to another.
    """
    phase = np.empty(weight.shape[1], x.dtype)
    for n in range(share[0], share[1]):
        _turn(x[n], weight, 0, len(phase), phase)
        _write_row(phase, scale, out[n])


@jit
def waves_of_phases(phase: Array, scale: Any, out: Array, share: tuple[int, int]) -> None:
    """Scaled waves of phases in turns `(n, H)`; the rest as in `waves_of_data`."""
    for n in range(share[0], share[1]):
        _write_row(phase[n], scale, out[n])
