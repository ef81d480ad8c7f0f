r"""One block of observed datasets, from its detection to the summaries to query a posterior with.

Search with weights (`mindist.adaptation.reweight`); see how each observation moves what was found
(`mindist.adaptation.influence`); search again without weights where almost any summary would give
weights that confirm it (`mindist.adaptation.response`); judge every observation by the model at
the summary that is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mindist.adaptation import (
    Adaptation,
    Cloud,
    Detection,
    EmbeddingDistance,
    Influence,
    Observations,
    Problem,
    Response,
    Search,
    Status,
    influence,
    reweighted_search,
)
from mindist.fitted import Fitted

UNLIKELY = 2 / 3  # the score of an observation with a weight of one half


@dataclass
class _Block:
    """Where the datasets of a block stand: summaries, weights, weighted embeddings, status."""

    fitted: Fitted
    options: Search
    problem: Problem
    observations: Observations
    detection: Detection
    s: Tensor
    weight: Tensor
    z_bar: Tensor
    cloud: Cloud | None
    status: list[Status]

    @property
    def threshold(self) -> float:
        return self.fitted.mass_threshold(self.problem.x.shape[1])

    @property
    def adapted(self) -> Tensor:
        return (self.s != self.detection.s_obs).any(1)

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        options: Search,
        x: Tensor,
        detection: Detection,
        z_bar: Tensor,
        room: Tensor | None,
    ) -> _Block:
        """Before any search: observed summaries, and copies of one observation counted once."""
        distinct = fitted.continuous and options.distinct and options.reweight > 0
        observations = Observations.of(fitted.embedding, x, distinct=distinct, room=room)
        copies = (observations.share < 1).any(1)
        z_bar = torch.where(copies[:, None], observations.mean(observations.share), z_bar)
        cloud, mu_obs = fitted.wide.cloud(options, z_bar), fitted.wide.decode(detection.s_obs)
        return cls(
            fitted,
            options,
            Problem(x, detection.s_obs, z_bar, cloud, mu_obs),
            observations,
            detection,
            detection.s_obs.clone(),
            torch.ones(x.shape[:2], dtype=torch.float64, device=x.device),
            z_bar.clone(),
            cloud,
            [Status.WELL_SPECIFIED] * len(x),
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
        self.search(rows[loose], replace(self.options, reweight=0), seed)
        rest = torch.ones_like(chosen)
        rest[rows[~loose]] = False
        if not rest.any():
            return moved
        others = rest.nonzero()[:, 0]
        order = torch.cat([rows[~loose], others]).argsort()
        return moved[~loose].joined(self.influence(others, answering=False), order)

    def search(self, rows: Tensor, options: Search, seed: int) -> None:
        """Search for the datasets with these indices."""
        if not len(rows):
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
        self.s[rows] = weighed.found.s_star.to(self.s.dtype)
        self.weight[rows], self.z_bar[rows] = weighed.weight, weighed.z_bar
        self.stay_near(rows, weighed.cloud)
        for row, status in zip(rows.tolist(), weighed.found.status, strict=True):
            self.status[row] = status
        if self.options.divergence == "mmd":
            # Rounding s_star to the precision of the summaries may undo a tiny gain.
            before, after = self.objectives(rows, self.fitted.wide.decode(self.s[rows]))
            self.keep_observed(rows[~(after <= before)])
        self.keep_observed(rows[~self.adapted[rows]])

    def stay_near(self, rows: Tensor, cloud: Cloud | None) -> None:
        """Keep the clouds of some datasets."""
        if self.cloud is not None and cloud is not None:
            self.cloud = self.cloud.updated(rows, cloud)

    def keep_observed(self, rows: Tensor) -> None:
        """Go back to the data as they are, where no search found anything better."""
        if not len(rows):
            return
        observed = self.problem[rows]
        self.stay_near(rows, observed.cloud)
        self.s[rows], self.z_bar[rows] = observed.s_obs, observed.z_bar
        self.weight[rows] = 1.0
        for row in rows.tolist():
            self.status[row] = Status.KEPT_OBSERVED

    def objectives(self, rows: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised, at the observed summaries and at those found, both `(n,)`.

        Arguments:
            rows: Indices of datasets.
            mu: The decoder's embeddings at the summaries that were found, `(n, K)`.
        """
        objective, every = self.objective(rows), torch.arange(len(rows), device=rows.device)
        before, after = (s[rows].double() for s in (self.problem.s_obs, self.s))
        mu_obs = self.problem.mu_obs
        assert mu_obs is not None  # `of` decodes
        return objective.at(mu_obs[rows], before, every), objective.at(mu, after, every)

    def objective(self, rows: Tensor) -> EmbeddingDistance:
        """What is minimised for some datasets."""
        cloud = None if self.cloud is None else self.cloud[rows]
        return self.fitted.wide.objective(self.options, self.z_bar[rows], cloud)

    def influence(self, rows: Tensor, *, answering: bool) -> Influence:
        """Of the observations of some datasets, with weights that answer or with fixed ones."""
        s, seen = self.s[rows].double(), self.observations[rows]
        response = None
        if answering:
            response = Response.of(seen, self.fitted.density.decoder, s, self.threshold)
        scale = self.fitted.bank.scale
        return influence(self.objective(rows), s, seen.wide, self.weight[rows], scale, response)


def adapt_block(
    fitted: Fitted,
    options: Search,
    x: Tensor,
    detection: Detection,
    z_bar: Tensor,
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
        chosen: Which to adapt, `(B,)`.
        seed: Of perturbations of starts.
        room: Memory for the features of all observations, if there is some to use again.
    """
    block = _Block.of(fitted, options, x, detection, z_bar, room)
    moved = block.adapt(chosen, seed)
    s_star, adapted = block.s, block.adapted
    mu = fitted.wide.decode(s_star)
    distance = torch.where(adapted, (mu - z_bar).square().sum(1), detection.distance_obs)
    before, after = block.objectives(torch.arange(len(x), device=x.device), mu)
    density = mu if fitted.local is None else fitted.local.decode(s_star)
    fit = block.observations.all_counted().fit(density)
    score = fit.score(block.threshold)
    return Adaptation(
        **vars(detection),
        s_star=s_star,
        distance_star=distance,
        objective_obs=before,
        objective_star=after,
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


__all__ = ["adapt_block"]
