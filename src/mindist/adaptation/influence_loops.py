r"""The compiled loops of `mindist.adaptation.fast_influence`: one dataset after another.

What belongs to the d summaries comes before what belongs to the B datasets and to their N
observations, so that every inner loop runs along memory: waves `(1 + d, B, P)`, derivatives of the
embedding `(d, B, K)`, influences `(B, d, N)` until the last step.

A matrix that is so near to a singular one that rounding would decide is not solved with. Its
dataset is marked instead, and left to `torch.linalg.lstsq`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mindist.adaptation.matrix_loops import definite, eliminate, spectral_radius
from mindist.adaptation.weights_loops import add_rows
from mindist.compiled import jit_reordered
from mindist.solvers.cosine_loops import TURN, dot, waves

ROWS = 8  # of a matrix that are used twice while they are near: 32 kB at K = 512
TINY = np.finfo(np.float64).tiny


class Model(NamedTuple):
    """The decoder at the summaries: waves `(1 + d, B, P)`, J `(d, B, K)`, the residual times A,
    `(B, P)`, and frequencies in turns `(d, P)`.
    """

    waves: Any
    jacobian: Any
    force: Any
    frequency: Any


class Data(NamedTuple):
    """Of all datasets: features `(B, N, K)`; what the data's density is at each observation, and
    what each counts, `(B, N)`.
    """

    features: Any
    own: Any
    share: Any


class Answer(NamedTuple):
    """How weights answer: the weights, those of them that are not clipped, the relative change of
    the mass, `(B, N)`; the second times A by the data's density, `(B, d, N)`; T, `(B, d, d)`,
    and its largest absolute eigenvalue `(B,)`.
    """

    weight: Any
    free: Any
    mass: Any
    given: Any
    feedback: Any
    radius: Any


class Mass(NamedTuple):
    """Of the model: as fitted, as used, whether that is the same and below 1 (1 or 0), the mean
    density of the model, and the squared length of its embedding.
    """

    value: Any
    used: Any
    fitted: Any
    mean: Any
    square: Any


# ---------------------------------------------------------------------------- the decoder


@jit_reordered
def waves_with_slopes(basis: Any, s: Any, zero: Any) -> Any:
    """The cosines at points `(B, d)` and their derivatives, `(1 + d, B, P)`, as precise as zero."""
    d, num = basis.frequency.shape
    cosine, sine, out = np.empty(num), np.empty(num), np.full((1 + d, len(s), num), zero)
    for b in range(len(s)):
        waves(basis.frequency, basis.phase, s[b], cosine, sine)
        out[0, b] = cosine
        for i in range(d):
            row, to = basis.frequency[i], out[1 + i, b]
            for p in range(num):
                to[p] = -TURN * sine[p] * row[p]
    return out


@jit_reordered
def slopes_and_force(made: Any, residual: Any, mixing: Any) -> Any:
    """J `(d, B, K)` from waves, and residuals `(B, K)` times A, `(B, P)`, in one pass over A."""
    (num, width), count = mixing.shape, len(residual)
    jacobian, force = np.zeros((len(made) - 1, count, width)), np.empty((count, num))
    for b in range(count):
        for first in range(0, num, ROWS):
            rows = mixing[first : first + ROWS]
            for p in range(len(rows)):
                force[b, first + p] = dot(rows[p], residual[b])
            for i in range(len(jacobian)):
                add_rows(rows, made[1 + i, b, first : first + ROWS], jacobian[i, b])
    return jacobian, force


@jit_reordered
def times(made: Any, mixing: Any) -> Any:
    """Waves `(1 + d, B, P)` times A, transposed `(L, P)`, in one pass over it: `(1 + d, B, L)`."""
    (rows, count, num), width = made.shape, len(mixing)
    out = np.empty((rows, count, width), made.dtype)
    at, to = np.empty((rows, num), made.dtype), np.empty((rows, width), made.dtype)
    for b in range(count):
        at[:] = made[:, b]
        products(mixing, at, to)
        out[:, b] = to
    return out


# ---------------------------------------------------------------------------- fixed weights


@jit_reordered
def products(features: Any, vectors: Any, out: Any) -> None:
    """Inner products of features `(N, K)` with vectors `(m, K)`, into `(m, N)`."""
    for n in range(len(features)):
        row = features[n]
        for i in range(len(vectors)):
            total, other = row[0] * 0, vectors[i]
            for k in range(len(row)):
                total += row[k] * other[k]
            out[i, n] = total


@jit_reordered
def gauss_newton(J: Any, stay: Any, whitener: Any, out: Any) -> None:
    """J J' of `(d, K)` and the penalty's stay R' R, into `(d, d)`."""
    for i in range(len(out)):
        for j in range(i + 1):
            out[i, j] = dot(J[i], J[j]) + stay * dot(whitener[:, i], whitener[:, j])
            out[j, i] = out[i, j]


@jit_reordered
def curve(model: Any, b: Any, H: Any) -> None:
    """Add the sum of forces times second derivatives of the waves of one dataset."""
    bent = np.empty(model.force.shape[1])
    for i in range(len(H)):
        row = model.frequency[i]
        for p in range(len(bent)):
            bent[p] = TURN * TURN * model.force[b, p] * model.waves[0, b, p] * row[p]
        for j in range(i + 1):
            H[i, j] -= dot(bent, model.frequency[j])
            H[j, i] = H[i, j]


@jit_reordered
def pull(model: Any, penalty: Any, features: Any, rows: Any) -> Any:
    """A, the influences at weights of one, `(B, d, N)`, and where they can be computed, `(B,)`.

    Arguments:
        model: The decoder at the summaries of B datasets.
        penalty: Their embeddings `(B, K)`, its factor, and R `(B, d, d)`.
        features: Of all datasets.
        rows: Which of them the B are.
    """
    (z_bar, stay, whitener), d = penalty, len(model.jacobian)
    out, sure = np.empty((len(rows), d, features.shape[1])), np.empty(len(rows), np.bool_)
    single = np.empty((d, features.shape[2]), features.dtype)
    J, newton = np.empty((d, features.shape[2])), np.empty((d, d))
    for b in range(len(rows)):
        J[:] = model.jacobian[:, b]
        single[:] = J
        products(features[rows[b]], single, out[b])
        for i in range(d):
            out[b, i] -= dot(z_bar[b], J[i])
        gauss_newton(J, stay, whitener[b], newton)
        H = newton.copy()
        curve(model, b, H)
        sign = definite(H)
        sure[b] = sign != 0 and eliminate(H if sign > 0 else newton, out[b])
    return out, sure


@jit_reordered
def weigh_fixed(fixed: Any, weight: Any) -> Any:
    """Influences `(B, N, d)` and covariances `(B, d, d)` at fixed weights `(B, N)`, from A."""
    (count, d, num), ones = fixed.shape, np.ones(weight.shape[1])
    value, covariance = np.empty((count, num, d)), np.empty((count, d, d))
    for b in range(len(weight)):
        for i in range(fixed.shape[1]):
            fixed[b, i] *= weight[b]
        finish(fixed[b], weight[b], ones, value[b], covariance[b])
    return value, covariance


@jit_reordered
def finish(moved: Any, weight: Any, share: Any, value: Any, covariance: Any) -> None:
    """Influences times the mean weight `(d, N)` to influences `(N, d)`, and their covariance.

    Copies of an observation are drawn together: their influences add up before they are squared.
    """
    mean, num = max(weight.sum() / len(weight), TINY), len(weight)
    for i in range(len(moved)):
        moved[i] /= mean
        value[:, i] = moved[i]
        for j in range(i + 1):
            total = 0.0
            for n in range(num):
                total += moved[i, n] * moved[j, n] / share[n]
            covariance[i, j] = total / num**2
            covariance[j, i] = covariance[i, j]


# ---------------------------------------------------------------------------- weights that answer


@jit_reordered
def answer(model: Any, data: Any, rows: Any, masses: Any, fixed: Any, sure: Any) -> Any:
    """How the weights of B datasets answer: `Response.of`, T, and what they give to others.

    Arguments:
        model: Embeddings without the bias and their derivatives, `(1 + d, B, L)`, and the bias.
        data: Of all datasets, in the view that estimates densities.
        rows: Which of them the B are.
        masses: The smallest mass, and that above which it counts as 1.
        fixed: A, `(B, d, N)`.
        sure: Where A is known, `(B,)`; False is written where T is not finite.
    """
    (made, bias), (count, d, num) = model, fixed.shape
    out = Answer(
        np.empty((count, num)), np.empty((count, num)), np.empty((count, num)),
        np.empty((count, d, num)), np.empty((count, d, d)), np.empty(count),
    )  # fmt: skip
    vectors, seen = np.empty((1 + d, len(bias)), made.dtype), np.empty((1 + d, num))
    slope = np.empty((d, num))
    for b in range(len(rows)):
        vectors[:] = made[:, b]
        vectors[0] += bias
        products(data.features[rows[b]], vectors, seen)
        own, share, weight, free = (
            data.own[rows[b]],
            data.share[rows[b]],
            out.weight[b],
            out.free[b],
        )
        mass = fit_mass(vectors[0], seen[0], share, masses)
        weigh(seen[0], own, share, mass.used, weight, free)
        for n in range(num):
            out.mass[b, n] = mass.fitted * (seen[0, n] / mass.mean - 1)
        differentiate(vectors, seen, own, share, mass, weight, free, slope)
        total, T = max(weight.sum(), TINY), out.feedback[b]
        for i in range(d):
            for j in range(d):
                T[i, j] = dot(fixed[b, i], slope[j]) / total
            for n in range(num):
                out.given[b, i, n] = free[n] * fixed[b, i, n] / own[n]
        out.radius[b] = spectral_radius(T)
        sure[b] = sure[b] and np.isfinite(out.radius[b])
    return out


@jit_reordered
def fit_mass(mu: Any, density: Any, share: Any, masses: Any) -> Any:
    """The mass of the model, from its embedding `(L,)` and its densities `(N,)`."""
    least, threshold = masses
    square, total, count = 0.0, 0.0, 0.0
    for k in range(len(mu)):
        square += np.float64(mu[k]) * np.float64(mu[k])
    for n in range(len(share)):
        total += share[n] * density[n]
        count += share[n]
    mean = total / count
    mass = mean / max(square, TINY)
    used = min(max(mass, least), 1.0) if mass < threshold else 1.0
    return Mass(mass, used, 1.0 if used < 1 and used == mass else 0.0, mean, square)


@jit_reordered
def weigh(density: Any, own: Any, share: Any, mass: Any, weight: Any, free: Any) -> None:
    """The weights `(N,)`, and those of them that are not clipped, else 0."""
    for n in range(len(weight)):
        ratio = mass * density[n] / own[n]
        weight[n] = share[n] * (0.0 if ratio < 0 else 1.0 if ratio > 1 else ratio)
        free[n] = weight[n] if 0 < weight[n] < share[n] else 0.0


@jit_reordered
def differentiate(
    vectors: Any, seen: Any, own: Any, share: Any, mass: Any, weight: Any, free: Any, out: Any
) -> None:
    """The derivatives of weights by the summary, `(d, N)`.

    Arguments:
        vectors: The model's embedding and its derivatives `(1 + d, L)`.
        seen: Their inner products with the features, `(1 + d, N)`.
        own: The density of the data `(N,)`.
        share: What each observation counts `(N,)`.
        mass: Of the model.
        weight: The weights `(N,)`.
        free: Those that are not clipped, else 0.
        out: The result.
    """
    count = share.sum()
    for i in range(len(out)):
        along = 0.0
        for k in range(vectors.shape[1]):
            along += np.float64(vectors[1 + i, k]) * np.float64(vectors[0, k])
        by_mass = dot(share, seen[1 + i]) / count - 2 * mass.value * along
        by_mass = mass.fitted * by_mass / mass.square / mass.used
        for n in range(len(share)):
            by_summary = mass.used * seen[1 + i, n] / own[n] + weight[n] / share[n] * by_mass
            out[i, n] = (share[n] if free[n] > 0 else 0.0) * by_summary


@jit_reordered
def through(kernel: Any, rows: Any, given: Any) -> Any:
    """As `OwnKernel.through`, of `(B, d, N)`, with kernels `(., N, N)` of all datasets."""
    out = np.zeros_like(given)
    for b in range(len(rows)):
        for i in range(given.shape[1]):
            add_rows(kernel[rows[b]], given[b, i], out[b, i])
    return out


@jit_reordered
def settle(fixed: Any, out: Any, lost: Any, data: Any, rows: Any, weight: Any, sure: Any) -> Any:
    """Influences `(B, N, d)` and covariances `(B, d, d)` where weights answer.

    Arguments:
        fixed: A, `(B, d, N)`, which is overwritten.
        out: How weights answer.
        lost: What each observation takes from others through their densities, `(B, d, N)`.
        data: Of all datasets.
        rows: Which of them the B are.
        weight: The weights of the search `(B, N)`.
        sure: Where A and T are known, `(B,)`; False is written where I - T is nearly singular.
    """
    count, d, num = fixed.shape
    value, covariance = np.empty((count, num, d)), np.empty((count, d, d))
    for b in range(len(rows)):
        share, rest = data.share[rows[b]], np.empty((d, d))
        total = share.sum()
        for i in range(d):
            mean = dot(out.free[b], fixed[b, i]) / total
            for n in range(num):
                direct = out.weight[b, n] * fixed[b, i, n] - share[n] * lost[b, i, n] / total
                fixed[b, i, n] = direct + share[n] * (1 + out.mass[b, n]) * mean
            for j in range(d):
                rest[i, j] = (1.0 if i == j else 0.0) - out.feedback[b, i, j]
        sure[b] = eliminate(rest, fixed[b]) and sure[b]
        finish(fixed[b], weight[b], share, value[b], covariance[b])
    return value, covariance
