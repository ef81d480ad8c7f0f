r"""Entries that are missing, set aside or noisy, drawn given the believed ones.

Neighbours :math:`x^j` are draws from simulations near the observed vector. With further noise of
variance E, :math:`y^j = x^j + \sqrt{E}\, \epsilon^j`, regression adjustment (Beaumont et al. 2002)
moves each to where it agrees with the observed vector on the believed entries K,

.. math:: x^{j\star} = x^j + \Sigma_{\cdot K} (\Sigma_{KK} + E_{KK})^{-1} (y_K - y^j_K) ,

which is exact where simulations are Gaussian (Matheron's rule), equals :math:`y_K` on K where E is
0, and keeps the shape of noise that is not Gaussian. A missing entry is one with infinite E.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mindist.entries.search import Search


def completed(
    search: Search, y: Tensor, kept: Tensor, noise: Tensor, num: int, widening: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return conditional means `(B, D)` and draws `(B, num, D)` of vectors in standard units."""
    near, local, table = search.neighbourhood(y, kept, noise)
    both = kept[:, :, None] & kept[:, None]
    gain = local.covariance @ torch.where(both, -table.values[:, :-1, :-1], 0.0)
    mean = local.mean + (gain @ (y - local.mean)[..., None])[..., 0]
    # The same seed for each vector: what is drawn for it does not depend on the others.
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(near.shape[1], generator=generator)[:num]
    chosen = chosen.repeat(-(-num // len(chosen)))[:num]
    x = search.bank.z[near[:, chosen]].double()
    epsilon = torch.randn(num, y.shape[1], dtype=torch.float64, generator=generator)
    seen = x + noise.sqrt()[:, None] * epsilon
    drawn = x + (y[:, None] - seen) @ gain.mT
    return mean, mean[:, None] + widening * (drawn - mean[:, None])
