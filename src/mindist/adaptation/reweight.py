r"""Search and weigh in turn: the summary of the part of the data that the model explains.

.. math:: \bar z_w = \frac{\sum_n w_n z(x_n)}{\sum_n w_n}, \qquad
    s \leftarrow \arg\min_s \| \mu(s) - \bar z_w \|^2 + \lambda \,\mathrm{pen}(s), \qquad
    w_n \leftarrow \Big[ \frac{a\, p_s(x_n)}{p(x_n)} \Big]_0^1 ,

a fixed-point iteration as in iteratively reweighted least squares, with the weights of
`mindist.adaptation.weights`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.options import Search
from mindist.adaptation.search import Found, Problem, search
from mindist.adaptation.view import View
from mindist.adaptation.weights import Observations, take_weights

CLEARLY = 1.5  # 1.2 to 2 gave the same errors on the Gaussian task and the OUP


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
    problem: Problem,
    observations: Observations,
    *,
    mass_threshold: float,
    generator: torch.Generator,
) -> Weighed:
    """Search, then `options.reweight` times weigh the observations and search again.

    Arguments:
        wide: The view in which the summary is sought.
        local: The view that estimates densities; the wide one where it is None.
        options: The search.
        problem: The observed datasets, with their embeddings in the wide view.
        observations: What the kernels see of them.
        mass_threshold: Above it a mass of the model counts as 1.
        generator: Draws perturbations.
    """
    if problem.cloud is None:
        problem = replace(problem, cloud=wide.cloud(options, problem.z_bar))
    if not options.reweight:
        found = search(wide, options, problem, generator)
        return Weighed(found, observations.share.clone(), problem.z_bar, problem.cloud)
    density, dtype = wide if local is None else local, observations.local.dtype
    going = torch.arange(len(problem.x), device=problem.x.device)
    weight, problem = observations.share.clone(), replace(problem, z_bar=problem.z_bar.clone())
    found = search(wide, options, problem, generator)
    for round_ in range(options.reweight):
        seen = observations[going]
        new = seen.weigh(density.decode(found.s_star[going], dtype), mass_threshold)
        if round_ == 0 and local is not None:
            seen_locally = Problem(problem.x, problem.s_obs, observations.local_mean())
            other = search(local, options, seen_locally, generator).s_star
            new = heavier(new, seen.weigh(local.decode(other, dtype), mass_threshold))
        going = take_weights(new, going, weight)
        if not len(going):
            break
        problem = problem.moved(going, observations[going].mean(weight[going]), wide)
        again = search(wide, options, problem[going], generator, near=found.s_star[going])
        found.update(going, again)
    return Weighed(found, weight, problem.z_bar, problem.cloud)


def heavier(a: Tensor, b: Tensor) -> Tensor:
    """Return weights `a` `(B, N)`, or `b` where `b` sums to more than 1.5 times as much.

    The first weights decide where the iteration ends. A wide kernel averages contamination in; a
    local one forgets it, but has more minima, so that it has to explain clearly more of the data to
    be the one that goes on.
    """
    return torch.where((CLEARLY * a.sum(1) < b.sum(1))[:, None], b, a)


__all__ = ["Weighed", "reweighted_search"]
