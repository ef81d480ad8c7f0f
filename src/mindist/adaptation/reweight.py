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
from mindist.adaptation.search import Found, Problem, follow, search
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


@dataclass
class _Rounds:
    """Where weights and weighted embeddings stand.

    Arguments:
        problem: The datasets, with their weighted embeddings and the clouds of these.
        weight: The weights `(B, N)`.
        going: Whose weights still change, `(B,)`.
        rows: The datasets whose features are at hand, `(n,)`.
        seen: What the kernels see of them.
    """

    problem: Problem
    weight: Tensor
    going: Tensor
    rows: Tensor
    seen: Observations

    @classmethod
    def of(cls, problem: Problem, observations: Observations) -> _Rounds:
        """Before the first round."""
        every = torch.arange(len(problem.x), device=problem.x.device)
        own = replace(problem, z_bar=problem.z_bar.clone())
        going = torch.ones_like(every, dtype=torch.bool)
        return cls(own, observations.share.clone(), going, every, observations)

    def drop_settled(self, observations: Observations) -> None:
        """Go on with the features of those that still change, where they are few."""
        if self.going[self.rows].sum() < WORTH_A_COPY * len(self.rows):
            self.rows = self.rows[self.going[self.rows]]
            self.seen = observations[self.rows]

    def reweigh(self, new: Tensor, wide: View) -> Tensor:
        """Take new weights `(n, N)` of the datasets at hand; which of all have changed."""
        rows, old = self.rows, self.weight[self.rows]
        # Where the model explains next to nothing, the data as they are say more than the rest.
        new = torch.where(new.mean(1, keepdim=True) < LEAST_MASS, old, new)
        moved = self.going[rows] & ((new - old).abs().amax(1) >= SETTLED)
        self.going[rows] = moved
        changed = rows[moved]
        self.weight[changed] = new[moved]
        self.problem.z_bar[changed] = self.seen.mean(self.weight[rows])[moved]
        if self.problem.cloud is not None:
            nearby = wide.bank.cloud(self.problem.z_bar[changed])
            cloud = self.problem.cloud.updated(changed, nearby)
            self.problem = replace(self.problem, cloud=cloud)
        return changed


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
    density = wide if local is None else local

    def weigh(s: Tensor, seen: Observations) -> Tensor:
        return seen.weigh(density.decode(s, seen.local.dtype), mass_threshold)

    rounds = _Rounds.of(problem, observations)
    s = follow(wide, options, problem, generator)
    for round_ in range(options.reweight):
        if not rounds.going.any():
            break
        rounds.drop_settled(observations)
        new = weigh(s[rounds.rows], rounds.seen)
        if round_ == 0 and local is not None:
            # The first weights decide where the iteration ends. A wide kernel averages
            # contamination in; a local one forgets it, but has more minima, so that it has to
            # explain clearly more of the data to be the one that goes on.
            seen_locally = Problem(problem.x, problem.s_obs, observations.local_mean())
            other = follow(local, options, seen_locally, generator)
            new = _heavier(new, weigh(other, observations))
        changed = rounds.reweigh(new, wide)
        s[changed] = follow(wide, options, rounds.problem[changed], generator, near=s[changed])
    found = search(wide, options, rounds.problem, generator, near=s)
    return Weighed(found, rounds.weight, rounds.problem.z_bar, rounds.problem.cloud)


def _heavier(a: Tensor, b: Tensor) -> Tensor:
    """Of two weights `(B, N)` for each dataset the first, unless the second are clearly larger."""
    return torch.where((CLEARLY * a.sum(1) >= b.sum(1))[:, None], a, b)


__all__ = ["Weighed", "reweighted_search"]
