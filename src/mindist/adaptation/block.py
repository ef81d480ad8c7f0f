r"""Adapt one block of observed datasets: search and weigh in turn, then judge every observation.

.. math:: \bar z_w = \frac{\sum_n w_n z(x_n)}{\sum_n w_n}, \qquad
    s \leftarrow \arg\min_s \| \mu(s) - \bar z_w \|^2 + \lambda \,\mathrm{pen}(s), \qquad
    w_n \leftarrow \Big[ \frac{a\, p_s(x_n)}{p(x_n)} \Big]_0^1 ,

a fixed-point iteration as in iteratively reweighted least squares, with the weights of
`mindist.adaptation.weights`.

Then see how each observation moves what was found (`mindist.adaptation.influence`), search again
without weights where almost any summary would give weights that confirm it, and judge every
observation by the model at the summary that is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from mindist.adaptation.influence import Derivatives, Influence, Response, influence
from mindist.adaptation.objective import EmbeddingDistance
from mindist.adaptation.search import Found, Problem, Search, View, search
from mindist.adaptation.starts import Bank, Cloud
from mindist.adaptation.weights import Observations, in_order, take_weights
from mindist.features.embedding import Embedding
from mindist.result import Adaptation, Detection, Status

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


UNLIKELY = 2 / 3  # the score of an observation with a weight of one half


class _Learned(Protocol):
    """The part of `mindist.fitted.Fitted` that adapting needs."""

    @property
    def embedding(self) -> Embedding: ...
    @property
    def wide(self) -> View: ...
    @property
    def local(self) -> View | None: ...
    @property
    def density(self) -> View: ...
    @property
    def bank(self) -> Bank: ...
    @property
    def continuous(self) -> bool: ...
    @property
    def score_threshold(self) -> float: ...
    def mass_threshold(self, num_obs: int) -> float: ...
    def excess(self, s_star: Tensor, covariance: Tensor, adapted: Tensor) -> Tensor: ...


@dataclass
class _Block:
    """Keep the summaries, weights, weighted embeddings and status of a block's datasets."""

    fitted: _Learned
    options: Search
    problem: Problem
    observations: Observations
    s: Tensor
    mu: Tensor
    weight: Tensor
    z_bar: Tensor
    cloud: Cloud | None
    before: Tensor
    after: Tensor
    status: list[Status]

    @property
    def threshold(self) -> float:
        return self.fitted.mass_threshold(self.problem.x.shape[1])

    @property
    def adapted(self) -> Tensor:
        return (self.s != self.problem.s_obs).any(1)

    @classmethod
    def of(
        cls, fitted: _Learned, options: Search, s_obs: Tensor, x: Tensor, z_bar: Tensor,
        mu: Tensor, observations: Observations,
    ) -> _Block:  # fmt: skip
        """Before any search: observed summaries, and copies of one observation counted once."""
        copies = (observations.share < 1).any(1)
        if copies.any():
            z_bar = torch.where(copies[:, None], observations.mean(observations.share), z_bar)
        cloud = fitted.wide.cloud(options, z_bar)
        every = torch.arange(x.shape[0], device=x.device)
        before = fitted.wide.objective(options, z_bar, cloud).at(mu, s_obs.double(), every)
        return cls(
            fitted,
            options,
            Problem(x, s_obs, z_bar, cloud, mu),
            observations,
            s_obs.clone(),
            mu.clone(),
            torch.ones_like(observations.share),
            z_bar.clone(),
            cloud,
            before,
            before.clone(),
            [Status.WELL_SPECIFIED] * x.shape[0],
        )

    def adapt(self, chosen: Tensor, seed: int) -> Influence:
        """Search for the chosen datasets `(B,)`, and say how observations move what is used.

        Where weights feed back too much on the summary that gave them, the search is made again
        without.
        """
        self.search(chosen.nonzero()[:, 0], self.options, seed)
        rows = self.adapted.nonzero()[:, 0]
        moved = self.influence(rows, answering=bool(self.options.reweight))
        loose = moved.feedback > self.options.feedback
        if rows.shape[0] == chosen.shape[0] and not loose.any():
            return moved
        self.search(rows[loose], replace(self.options, reweight=0), seed)
        rest = torch.ones_like(chosen)
        rest[rows[~loose]] = False
        others = rest.nonzero()[:, 0]
        order = torch.cat([rows[~loose], others]).argsort()
        return moved[~loose].joined(self.influence(others, answering=False), order)

    def search(self, rows: Tensor, options: Search, seed: int) -> None:
        """Search for the datasets with these indices, and keep what is better than observed."""
        if not rows.numel():
            return
        weighed = reweighted_search(
            self.fitted.wide,
            self.fitted.local,
            options,
            self.problem[rows],
            self.observations[rows],
            mass_threshold=self.threshold,
            generator=torch.Generator().manual_seed(seed),
        )
        found = weighed.found
        self.s[rows], self.mu[rows] = found.s_star.to(self.s.dtype), found.mu
        self.weight[rows], self.z_bar[rows] = weighed.weight, weighed.z_bar
        if self.cloud is not None and weighed.cloud is not None:
            self.cloud = self.cloud.updated(rows, weighed.cloud)
        self.before[rows], self.after[rows] = found.objective_obs, found.objective_star
        if self.options.divergence == "kl":
            self.before[rows], self.after[rows] = self.objectives(rows)
        for row, status in zip(rows.tolist(), found.status, strict=True):
            self.status[row] = status
        kept = ~self.adapted[rows]
        if kept.any():
            self.keep_observed(rows[kept])

    def keep_observed(self, rows: Tensor) -> None:
        """Go back to the data as they are, where no search found anything better."""
        observed = self.problem[rows]
        if self.cloud is not None and observed.cloud is not None:
            self.cloud = self.cloud.updated(rows, observed.cloud)
        self.z_bar[rows], self.weight[rows] = observed.z_bar, 1.0
        self.before[rows], self.after[rows] = self.objectives(rows)
        for row in rows.tolist():
            self.status[row] = Status.KEPT_OBSERVED

    def objectives(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The squared distance, and what keeps near simulations, at observed and used summaries."""
        objective, every = self.objective(rows), torch.arange(rows.shape[0], device=rows.device)
        before, after = (s[rows].double() for s in (self.problem.s_obs, self.s))
        mu_obs = self.problem.mu_obs
        assert mu_obs is not None  # `of` decodes
        return objective.at(mu_obs[rows], before, every), objective.at(self.mu[rows], after, every)

    def objective(self, rows: Tensor) -> EmbeddingDistance:
        """Return the objective of some datasets."""
        cloud = self.cloud
        if cloud is not None and rows.shape[0] < self.s.shape[0]:
            cloud = cloud[rows]
        return self.fitted.wide.objective(self.options, _some(self.z_bar, rows), cloud)

    def influence(self, rows: Tensor, *, answering: bool) -> Influence:
        """Return the influence of each observation, with weights that react or are held fixed."""
        s, seen = self.s[rows].double(), self.observations[rows]
        response = None
        if answering:
            response = Response.of(seen, self.fitted.density, s, self.threshold)
        scale, objective = self.fitted.bank.scale, self.objective(rows)
        at = Derivatives.of(objective, s, self.mu[rows])
        return influence(objective, s, seen.wide, self.weight[rows], scale, response, at)


def _some(values: Tensor, rows: Tensor) -> Tensor:
    """Select datasets, without a copy if all are selected, in order."""
    return values if in_order(rows, values.shape[0]) else values[rows]


def adapt_block(
    fitted: _Learned,
    options: Search,
    x: Tensor,
    detection: Detection,
    z_bar: Tensor,
    mu: Tensor,
    chosen: Tensor,
    *,
    seed: int,
    room: Tensor | None = None,
) -> Adaptation:
    """Adapt the chosen datasets of a block, and judge the observations of all.

    Arguments:
        fitted: What was learned from simulations.
        options: The search.
        x: Observed datasets `(B, N, *event)`.
        detection: What is known of them already.
        z_bar: Their mean embeddings `(B, K)`, wide.
        mu: The decoder's at their summaries.
        chosen: Which to adapt, `(B,)`.
        seed: Of perturbations of starts.
        room: Memory for the features of all observations, if there is some to use again.
    """
    distinct = fitted.continuous and options.distinct and options.reweight > 0
    observations = Observations.of(fitted.embedding, x, distinct=distinct, room=room)
    block = _Block.of(fitted, options, detection.s_obs, x, z_bar, mu, observations)
    moved = block.adapt(chosen, seed)
    s_star, adapted, mu = block.s, block.adapted, block.mu
    distance = torch.where(adapted, (mu - z_bar).square().sum(1), detection.distance_obs)
    density = mu if fitted.local is None else fitted.local.decode(s_star, observations.local.dtype)
    fit = block.observations.all_counted().fit(density)
    score = fit.score(block.threshold)
    return Adaptation(
        **vars(detection),
        s_star=s_star,
        distance_star=distance,
        objective_obs=block.before,
        objective_star=block.after,
        adapted=adapted,
        status=tuple(block.status),
        weights=block.weight,
        epsilon=fit.epsilon,
        epsilon_error=fit.error,
        outlier_score=score,
        outliers=(score > fitted.score_threshold) & (score > UNLIKELY),
        influence=moved.value,
        covariance=moved.covariance,
        excess=fitted.excess(s_star, moved.covariance, adapted),
    )
