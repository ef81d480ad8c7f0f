"""The compiled loops of `mindist.adaptation.weights`."""

from __future__ import annotations

from typing import Any

from mindist.compiled import jit_reordered


@jit_reordered
def inner_products(features: Any, mu: Any, out: Any) -> None:
    """The inner product of each row of features `(B, N, L)` with mu `(B, L)`, into `(B, N)`."""
    for b in range(len(features)):
        at = mu[b].astype(features.dtype)
        for n in range(features.shape[1]):
            row = features[b, n]
            total = at[0] * 0
            for k in range(len(row)):
                total += row[k] * at[k]
            out[b, n] = total


@jit_reordered
def weigh(
    features: Any, mu: Any, own: Any, share: Any, weight: Any, threshold: Any, least: Any
) -> None:
    """The weights `(B, N)` of `Fit.weight`, without the rest of the fit.

    Arguments:
        features: Of each observation `(B, N, L)`.
        mu: Of the model `(B, L)`, float64.
        own: The density of the data at each observation `(B, N)`.
        share: What each observation counts `(B, N)`.
        weight: The result.
        threshold: Above it a mass of the model counts as 1.
        least: The smallest mass.
    """
    inner_products(features, mu, weight)
    for b in range(len(weight)):
        square, total, count = 0.0, 0.0, 0.0
        for k in range(mu.shape[1]):
            square += mu[b, k] * mu[b, k]
        for n in range(weight.shape[1]):
            total += share[b, n] * weight[b, n]
            count += share[b, n]
        mass = total / count / max(square, 1e-300)
        mass = min(max(mass, least), 1.0) if mass < threshold else 1.0
        for n in range(weight.shape[1]):
            ratio = mass * weight[b, n] / own[b, n]
            weight[b, n] = share[b, n] * min(max(ratio, 0.0), 1.0)
