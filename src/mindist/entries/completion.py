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
    search: Search, y: Tensor, sets: Tensor, noise: Tensor, num: int, widening: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw `num` vectors for each of several sets of entries to believe.

    Arguments:
        search: Which has the simulations.
        y: Vectors `(B, D)` in standard units, finite.
        sets: Entries to believe `(B, C, D)`.
        noise: E, the further variance of each entry, `(B, D)`.
        num: Draws for each set.
        widening: Factor of their distance from the mean.
        seed: All vectors have the same random numbers, so that none depends on the others.

    Returns:
        Conditional means `(B, C, D)` and draws `(B, C * num, D)`.
    """
    (B, C, D), generator = sets.shape, torch.Generator().manual_seed(seed)
    y, noise = y.repeat_interleave(C, 0), noise.repeat_interleave(C, 0)
    kept = sets.flatten(0, 1)
    near, local, table = search.shared(y, kept, noise)
    both = kept[:, :, None] & kept[:, None]
    gain = local.covariance @ torch.where(both, -table.values[:, :-1, :-1], 0.0)
    mean = local.mean + (gain @ (y - local.mean)[..., None])[..., 0]
    k = near.shape[1]
    order = torch.randperm(k, generator=generator).repeat(-(-C * num // k))[: C * num]
    x = search.bank.z[near.gather(1, order.view(C, num).repeat(B, 1))].double()
    epsilon = torch.randn(C, num, D, dtype=torch.float64, generator=generator).repeat(B, 1, 1)
    seen = x + noise.sqrt()[:, None] * epsilon
    drawn = mean[:, None] + widening * (x + (y[:, None] - seen) @ gain.mT - mean[:, None])
    return mean.view(B, C, D), drawn.view(B, C * num, D)
