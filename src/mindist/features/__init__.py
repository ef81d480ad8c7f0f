"""Representations of observations, random Fourier features, their bandwidth, mean embeddings.

May import: torch, NumPy, `mindist.summarise`, `mindist.schema`, `mindist.threads`,
`mindist.storage`, `mindist.checks`, `mindist.protocols`.
"""

from mindist.features.kernel import (
    FourierFeatures,
    choose_bandwidth,
    gaussian_kernel,
    median_distance,
    mmd_squared,
)
from mindist.features.representation import (
    REPRESENTATIONS,
    Encoded,
    Representation,
    candidates,
    make_representation,
)

__all__ = [
    "REPRESENTATIONS",
    "Encoded",
    "FourierFeatures",
    "Representation",
    "candidates",
    "choose_bandwidth",
    "gaussian_kernel",
    "make_representation",
    "median_distance",
    "mmd_squared",
]
