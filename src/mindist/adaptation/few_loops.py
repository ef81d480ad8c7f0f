"""All rounds of `mindist.adaptation.rounds` in one compiled call, one dataset after the other.

A product of a matrix with one vector takes as long as reading the matrix, in a loop or in a library
of products: for few datasets a loop saves the calls between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mindist.adaptation.cloud_loops import gather
from mindist.adaptation.rounds_loops import aim, cosines_at, follow, take, weigh
from mindist.adaptation.weights_loops import add_rows, weighted_means
from mindist.compiled import jit_reordered


class Sight(NamedTuple):
    """What a view is to the loops.

    Arguments:
        basis: The decoder's cosines and its main directions.
        mixing: Its matrix A, `(P, K)`, float32.
        single: The same transposed, `(K, P)`.
        bias: Its bias `(K,)`, float64.
        single_bias: The same in float32.
        limits: Of a search.
        directions: Of the likeness `(K, q)`.
        likeness: The simulations in few of these directions `(c, m)`, in the others `(m, q - c)`,
            and the norms of the latter.
        simulations: Their summaries `(m, d)`, scales `(d,)`, and the ridge of `gather`.
    """

    basis: Any
    mixing: Any
    single: Any
    bias: Any
    single_bias: Any
    limits: Any
    directions: Any
    likeness: Any
    simulations: Any


class Place(NamedTuple):
    """Where the datasets stand: summaries `(B, d)`, embeddings `(B, K)`, and the clouds of these.

    Arguments:
        s: The summaries.
        z_bar: The embeddings, float64.
        centre: Means `(B, d)`.
        whitener: Matrices `(B, d, d)`.
        factor: Of these matrices, in what is minimised.
    """

    s: Any
    z_bar: Any
    centre: Any
    whitener: Any
    factor: Any


@jit_reordered
def product(vector: Any, matrix: Any, out: Any) -> None:
    """Of a vector `(n,)` with a matrix `(n, m)`, into `(m,)`."""
    out[:] = 0
    add_rows(matrix, vector, out)


@jit_reordered
def decode(sight: Any, s: Any, rows: Any, mu: Any) -> None:
    """The model's embedding `(1, K)`, float32, at the summary of the one dataset of `rows`."""
    cosine = np.empty((1, len(sight.mixing)), np.float32)
    cosines_at(sight.basis, s, rows, cosine)
    mu[0] = sight.single_bias
    add_rows(sight.mixing, cosine[0], mu[0])


@jit_reordered
def look(sight: Any, place: Any, rows: Any, clouds: Any, near: Any) -> None:
    """Look for the summary of one dataset, as `Side.follow`."""
    K, num = sight.single.shape
    pull, rounded = np.empty((1, num), np.float32), np.empty((1, K), np.float32)
    target = np.empty_like(rounded)
    square = aim(place.z_bar, rows, sight.bias, rounded, target)
    if clouds:
        few, others, norms = sight.likeness
        seen, coarse = np.empty(sight.directions.shape[1], np.float32), np.empty_like(few[:1])
        product(rounded[0], sight.directions, seen)
        product(seen[: len(few)], few, coarse[0])
        rest = np.empty((1, len(seen) - len(few)), np.float32)
        rest[0] = seen[len(few) :]
        s, scale, ridge = sight.simulations
        gather((coarse, rest, others, norms), rows, s, scale, ridge, place.centre, place.whitener)
    product(target[0], sight.single, pull[0])
    targets = pull, square, place.centre, place.whitener, place.factor
    follow(sight.basis, targets, rows, near, sight.limits, place.s)


@jit_reordered
def all_rounds(sights: Any, places: Any, wide: Any, seen: Any, limits: Any, weight: Any) -> None:
    """Search and weigh in turn, for each dataset until its weights are settled.

    Arguments:
        sights: The wide view, the one that estimates densities, and whether they are two.
        places: Of the wide view, at the observed embedding; of the other, to be overwritten.
        wide: Wide features `(B, N, K)`.
        seen: As for `weigh`.
        limits: How many rounds; the smallest mass; that above which it counts as 1; what counts as
            settled; the smallest sum of weights; and when the other weights are clearly larger.
        weight: Of the observations `(B, N)`, which are changed.
    """
    (side, density, two), (place, other) = sights, places
    num_rounds, least, threshold, settled, least_sum, clearly = limits
    mu = np.empty((1, len(density.single)), np.float32)
    new, more = np.empty((1, weight.shape[1])), np.empty((1, weight.shape[1]))
    for b in range(len(weight)):
        rows = np.arange(b, b + 1)
        look(side, place, rows, False, False)
        if two:
            weighted_means(seen[0], rows, seen[2], least_sum, other.z_bar)
            look(density, other, rows, True, False)
        for index in range(num_rounds):
            decode(density, place.s, rows, mu)
            weigh(seen, rows, mu, (least, threshold), new)
            if two and index == 0:
                decode(density, other.s, rows, mu)
                weigh(seen, rows, mu, (least, threshold), more)
                if clearly * new.sum() < more.sum():
                    new[:] = more
            if not len(take(new, rows, (least, settled), weight)):
                break
            weighted_means(wide, rows, weight, least_sum, place.z_bar)
            look(side, place, rows, True, True)
