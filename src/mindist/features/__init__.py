"""Random Fourier features, their bandwidth, and mean embeddings.

May import: torch, `mindist.checks`, `mindist.protocols`.
"""

from mindist.features.bandwidth import choose_bandwidth, median_distance
from mindist.features.fourier import FourierFeatures
from mindist.features.kernel import gaussian_kernel, mmd_squared

__all__ = [
    "FourierFeatures",
    "choose_bandwidth",
    "gaussian_kernel",
    "median_distance",
    "mmd_squared",
]
