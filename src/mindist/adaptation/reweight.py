r"""Search and weigh in turn: the summary of the part of the data that the model explains.

.. math:: \bar z_w = \frac{\sum_n w_n z(x_n)}{\sum_n w_n}, \qquad
    s \leftarrow \arg\min_s \| \mu(s) - \bar z_w \|^2 + \lambda \,\mathrm{pen}(s), \qquad
    w_n \leftarrow \Big[ \frac{a\, p_s(x_n)}{p(x_n)} \Big]_0^1 ,

a fixed-point iteration as in iteratively reweighted least squares, with the weights of
`mindist.adaptation.weights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.search import Found, Search
from mindist.adaptation.view import View
from mindist.adaptation.weights import LEAST_MASS, Observations

CLEARLY = 1.5  # 1.2 to 2 gave the same errors on the Gaussian task and the OUP
WORTH_A_COPY = 0.7  # a smaller share of the features at hand is copied, to go on with it alone
SETTLED = 1e-3  # no weight moved by more: another round would find the same summary


@dataclass(frozen=True)
class Weighed:
    """The end of a search with weights.

    Arguments:
        found: The search of the last round.
        weight: The weights `(B, N)` with which it was made.
        z_bar: The weighted mean embeddings `(B, K)`.
        cloud: The clouds to stay near, where they matter.
    """

    found: Found
    weight: Tensor
    z_bar: Tensor
    cloud: Cloud | None


def reweighted_search(
    wide: View,
    local: View | None,
    options: Search,
    *,
    x: Tensor,
    observations: Observations,
    s_obs: Tensor,
    z_bar: Tensor,
    mass_threshold: float,
    generator: torch.Generator,
    mu_obs: Tensor | None = None,
    cloud: Cloud | None = None,
) -> Weighed:
    """Search, then `options.reweight` times weigh the observations and search again.

    Arguments:
        wide: The view in which the summary is sought.
        local: The view that estimates densities; the wide one where it is None.
        options: The search.
        x: Observed datasets `(B, N, *event)`.
        observations: What the kernels see of them.
        s_obs: Observed summaries `(B, d_s)`.
        z_bar: Observed mean embeddings `(B, K)`, wide.
        mass_threshold: Above it a mass of the model counts as 1.
        generator: Draws perturbations.
        mu_obs: The decoder's embeddings at `s_obs`, `(B, K)`, if they are known already.
        cloud: The clouds of the datasets as they are, if they are known already.
    """
    density = wide if local is None else local

    def weigh(s: Tensor, seen: Observations) -> Tensor:
        single = seen.local.dtype == torch.float32
        mu = density.decode_single(s) if single else density.decode(s)
        return seen.weigh(mu, mass_threshold)

    every = torch.arange(len(x), device=x.device)
    weight, z_bar = observations.share.clone(), z_bar.clone()
    cloud = wide.cloud(options, z_bar) if cloud is None else cloud
    data: dict[str, Any] = {"x": x, "s_obs": s_obs, "z_bar": z_bar, "generator": generator}
    s = wide.follow(options, **data, cloud=cloud) if options.reweight else s_obs
    rows, seen = every, observations  # the datasets whose features are at hand
    going = torch.ones_like(every, dtype=torch.bool)  # whose weights still change
    for round_ in range(options.reweight):
        if not going.any():
            break
        if going[rows].sum() < WORTH_A_COPY * len(rows):
            rows = rows[going[rows]]
            seen = observations[rows]
        new = weigh(s[rows], seen)
        if round_ == 0 and local is not None:
            # The first weights decide where the iteration ends. A wide kernel averages
            # contamination in; a local one forgets it, but has more minima, so that it has to
            # explain clearly more of the data to be the one that goes on.
            other = local.follow(options, **{**data, "z_bar": seen.local_mean()})
            new = _heavier(new, weigh(other, seen))
        # Where the model explains next to nothing, the data as they are say more than the rest.
        new = torch.where(new.mean(1, keepdim=True) < LEAST_MASS, weight[rows], new)
        moved = going[rows] & ((new - weight[rows]).abs().amax(1) >= SETTLED)
        going[rows] = moved
        changed = rows[moved]
        weight[changed] = new[moved]
        z_bar[changed] = seen.mean(weight[rows])[moved]
        nearby = None
        if cloud is not None:
            nearby = wide.bank.cloud(z_bar[changed])
            cloud = cloud.updated(changed, nearby)
        s[changed] = wide.follow(
            options,
            x=x[changed],
            s_obs=s_obs[changed],
            z_bar=z_bar[changed],
            generator=generator,
            cloud=nearby,
            near=s[changed],
        )
    near = s if options.reweight else None
    found = wide.search(options, **data, cloud=cloud, mu_obs=mu_obs, near=near)
    return Weighed(found, weight, z_bar, cloud)


def _heavier(a: Tensor, b: Tensor) -> Tensor:
    """Of two weights `(B, N)` for each dataset the first, unless the second are clearly larger."""
    return torch.where((CLEARLY * a.sum(1) >= b.sum(1))[:, None], a, b)


__all__ = ["Weighed", "reweighted_search"]
