"""The compiled loops of `mindist.adaptation.rounds`: each is about some datasets of a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.adaptation.weights_loops import inner_products
from mindist.compiled import jit_reordered
from mindist.solvers.cosine_loops import Target, make_room, search_one, waves


@jit_reordered
def cosines_at(basis: Any, s: Any, rows: Any, out: Any) -> None:
    """c(s) of some of the points `(B, d)`, into the first rows of `(B, P)`."""
    cosine, sine = np.empty(out.shape[1]), np.empty(out.shape[1])
    for i in range(len(rows)):
        waves(basis.frequency, basis.phase, s[rows[i]], cosine, sine)
        out[i] = cosine


@jit_reordered
def weigh(seen: Any, rows: Any, mu: Any, masses: Any, weight: Any) -> None:
    """The weights `(n, N)` of `Fit.weight`, without the rest of the fit.

    Arguments:
        seen: Features `(B, N, L)`, the density of the data `(B, N)`, and what each observation
            counts, `(B, N)`.
        rows: Which datasets to weigh, `(n,)`.
        mu: Of the model `(n, L)`.
        masses: The smallest mass, and that above which it counts as 1.
        weight: The result.
    """
    (features, own, share), (least, threshold) = seen, masses
    for i in range(len(rows)):
        b = rows[i]
        inner_products(features[b : b + 1], mu[i : i + 1], weight[i : i + 1])
        square, total, count = 0.0, 0.0, 0.0
        for k in range(mu.shape[1]):
            square += mu[i, k] * mu[i, k]
        for n in range(weight.shape[1]):
            total += share[b, n] * weight[i, n]
            count += share[b, n]
        mass = total / count / max(square, 1e-300)
        mass = min(max(mass, least), 1.0) if mass < threshold else 1.0
        for n in range(weight.shape[1]):
            ratio = mass * weight[i, n] / own[b, n]
            weight[i, n] = share[b, n] * min(max(ratio, 0.0), 1.0)


@jit_reordered
def take(new: Any, rows: Any, limits: Any, weight: Any) -> Any:
    """As `take_weights`: new weights `(n, N)` into those of all `(B, N)`; whose have moved."""
    moved, count = np.empty_like(rows), 0
    for i in range(len(rows)):
        old, change, total = weight[rows[i]], 0.0, 0.0
        for n in range(len(old)):
            change = max(change, abs(new[i, n] - old[n]))
            total += new[i, n]
        if total >= limits[0] * len(old) and change >= limits[1]:
            old[:] = new[i]
            moved[count] = rows[i]
            count += 1
    return moved[:count]


@jit_reordered
def aim(z_bar: Any, rows: Any, bias: Any, rounded: Any, target: Any) -> Any:
    """Round some embeddings `(B, K)`, and less the bias; the squared lengths of the latter."""
    square = np.zeros(len(rows))
    for i in range(len(rows)):
        row = z_bar[rows[i]]
        for k in range(len(row)):
            t = row[k] - bias[k]
            rounded[i, k], target[i, k] = row[k], t
            square[i] += t * t
    return square


@jit_reordered
def follow(basis: Any, targets: Any, rows: Any, near: Any, limits: Any, s: Any) -> None:
    """Search without the rest, from the centre of a cloud or, if it is lower, from another point.

    Arguments:
        basis: The decoder's.
        targets: q `(n, P)` and constants `(n,)` of some datasets; m `(B, d)` and R `(B, d, d)` of
            all, with a factor of R.
        rows: Which datasets these are, `(n,)`.
        near: Whether the search may begin at `s` as well.
        limits: Of the search.
        s: Of all datasets `(B, d)`; the ends are written to it.
    """
    (pulls, constant, centre, whitener, factor), room = targets, make_room(basis)
    pull, start = np.empty(pulls.shape[1]), np.empty((2 if near else 1, s.shape[1]))
    for i in range(len(rows)):
        b = rows[i]
        pull[:] = pulls[i]
        start[0] = centre[b]
        if near:
            start[1] = s[b]
        target = Target(pull, constant[i], centre[b], factor * whitener[b])
        search_one(basis, target, start, limits, s[b], room)
