r"""Search and weigh in turn: the summary of the part of the data that the model explains.

.. math:: \bar z_w = \frac{\sum_n w_n z(x_n)}{\sum_n w_n}, \qquad
    s \leftarrow \arg\min_s \| \mu(s) - \bar z_w \|^2 + \lambda \,\mathrm{pen}(s), \qquad
    w_n \leftarrow \Big[ \frac{a\, p_s(x_n)}{p(x_n)} \Big]_0^1 ,

a fixed-point iteration as in iteratively reweighted least squares, with the weights of
`mindist.adaptation.weights`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.adaptation.search import EmbeddingDistance, Found, Search
from mindist.adaptation.view import View
from mindist.adaptation.weights import LEAST_MASS, Observations

CLEARLY = 1.5  # 1.2 to 2 gave the same errors on the Gaussian task and the OUP
SETTLED = 1e-3  # no weight moved by more: another round would find the same summary


@dataclass(frozen=True)
class Weighed:
    """The end of a search with weights.

    Arguments:
        found: The search of the last round.
        weight: The weights `(B, N)` with which it was made.
        z_bar: The weighted mean embeddings `(B, K)`.
    """

    found: Found
    weight: Tensor
    z_bar: Tensor


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
    """
    decoder = (wide if local is None else local).decoder

    @torch.no_grad()
    def weigh(s: Tensor, seen: Observations) -> Tensor:
        return seen.fit(decoder(s)).weight(mass_threshold)

    weight, z_bar = observations.share.clone(), z_bar.clone()
    found = wide.search(options, x=x, s_obs=s_obs, z_bar=z_bar, generator=generator)
    going = torch.arange(len(x), device=x.device)  # datasets whose weights still change
    for round_ in range(options.reweight):
        if not len(going):
            break
        seen = observations[going]
        new = weigh(found.s_star[going], seen)
        if round_ == 0 and local is not None:
            # The first weights decide where the iteration ends. A wide kernel averages
            # contamination in; a local one forgets it, but has more minima, so that it has to
            # explain clearly more of the data to be the one that goes on.
            z_local = seen.local_mean()
            other = local.search(options, x=x, s_obs=s_obs, z_bar=z_local, generator=generator)
            new = _heavier(new, weigh(other.s_star, seen))
        # Where the model explains next to nothing, the data as they are say more than the rest.
        new = torch.where(new.mean(1, keepdim=True) < LEAST_MASS, weight[going], new)
        moved = (new - weight[going]).abs().amax(1) >= SETTLED
        going = going[moved]
        weight[going] = new[moved]
        z_bar[going] = seen[moved].mean(weight[going])
        found = found.updated(
            going,
            wide.search(
                options, x=x[going], s_obs=s_obs[going], z_bar=z_bar[going], generator=generator
            ),
        )
    return Weighed(found, weight, z_bar)


def _heavier(a: Tensor, b: Tensor) -> Tensor:
    """Of two weights `(B, N)` for each dataset the first, unless the second are clearly larger."""
    return torch.where((CLEARLY * a.sum(1) >= b.sum(1))[:, None], a, b)


def minimised(wide: View, options: Search, z_bar: Tensor) -> EmbeddingDistance:
    """The objective that a search minimises for embeddings `(B, K)`."""
    stay = options.stay * max(wide.error, 0.0)
    cloud = wide.bank.cloud(z_bar) if stay else None
    return EmbeddingDistance(wide.decoder, z_bar, wide.head, cloud, stay)


__all__ = ["Weighed", "minimised", "reweighted_search"]
