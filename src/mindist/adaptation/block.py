r"""Adapt one block of observed datasets: decide which way each goes, and judge every observation.

A dataset that is not to be adapted keeps its summary. Of the others,

1. one whose rest looks like the model is asked for at the calibrated summary of what is left, if
   that differs from the observed one by more than its error;
2. otherwise one whose summary is unlike simulated ones is *projected*: asked for at the calibrated
   minimum-distance summary of the paper;
3. any other keeps its summary: the data are odd in ways that the summary does not show.

The paper's preset sorts nothing and searches for every dataset that is to be adapted.
"""

from typing import Any

import torch
from torch import Tensor

from mindist.adaptation.influence import influence
from mindist.adaptation.procedure import Examined, Procedure
from mindist.adaptation.search import Problem, Search, search
from mindist.adaptation.speaking import Speaker
from mindist.result import Adaptation, Detection, Status

OUTLIER = 0.5  # the score above which an observation is called an outlier


def adapt_block(
    fitted: Any,
    options: Search,
    x: Tensor,
    detection: Detection,
    z_bar: Tensor,
    found: Examined | None,
    chosen: Tensor,
    *,
    force: bool,
    seed: int,
) -> Adaptation:
    """Adapt the chosen datasets of a block, and judge the observations of all.

    `fitted` is a `mindist.fitted.Fitted`, of a layer above this one; `found` what sorting found of
    the chosen ones, None where nothing is sorted; `force` adapts also where the summary has not
    moved; `seed` is that of perturbations of starts.
    """
    B, N = x.shape[:2]
    block = _Block(fitted, options, x, detection.s_obs, z_bar, seed)
    if found is None or fitted.procedure is None:
        block.search(chosen.nonzero()[:, 0])
    else:
        block.decide(found, fitted.procedure, chosen, force)
    s_star = block.s.to(detection.s_obs.dtype)
    adapted = (s_star != detection.s_obs).any(1)
    for row in (~adapted & chosen).nonzero()[:, 0].tolist():
        if block.status[row] in (Status.SORTED, Status.CONVERGED):
            block.status[row] = Status.UNMOVED
    distance = (fitted.wide.decode(s_star) - z_bar).square().sum(1)
    moved, covariance = block.influence()
    weights = torch.ones(B, N, dtype=torch.float64, device=x.device)
    if found is not None:
        weights[chosen] = found.spoken.weights.double()
    epsilon = 1 - weights.mean(1)
    return Adaptation(
        **vars(detection),
        s_star=s_star,
        distance_star=torch.where(adapted, distance, detection.distance_obs),
        objective_obs=block.before,
        objective_star=block.after,
        adapted=adapted,
        status=tuple(block.status),
        weights=weights,
        epsilon=epsilon,
        epsilon_error=(epsilon * (1 - epsilon) / N).clamp(min=0).sqrt(),
        outlier_score=1 - weights,
        outliers=1 - weights > OUTLIER,
        influence=moved,
        covariance=covariance,
        excess=block.excess,
    )


class _Block:
    """Summaries, weights, spread and status of a block's datasets while it is decided."""

    def __init__(
        self, fitted: Any, options: Search, x: Tensor, s_obs: Tensor, z_bar: Tensor, seed: int
    ) -> None:
        self.fitted, self.options, self.x, self.z_bar, self.seed = fitted, options, x, z_bar, seed
        self.s_obs, self.s = s_obs, s_obs.double().clone()
        B, dim = s_obs.shape
        self.weights = torch.ones(B, x.shape[1], dtype=torch.float64, device=x.device)
        self.weighted = z_bar.clone()  # embeddings of the weighted data
        self.excess = torch.zeros(B, dim, dim, dtype=torch.float64, device=x.device)
        self.status = [Status.WELL_SPECIFIED] * B
        self.searched = torch.zeros(B, dtype=torch.bool, device=x.device)
        self.before = (fitted.wide.decode(s_obs) - z_bar).square().sum(1)
        self.after = self.before.clone()

    def decide(self, found: Examined, procedure: Procedure, chosen: Tensor, force: bool) -> None:
        """Choose the way of each of the chosen datasets, of which it was found, and go it."""
        rows = chosen.nonzero()[:, 0]
        unlike, fits = procedure.unlike_simulated(found), procedure.fits(found)
        spoken = procedure.believable(found) | (force & ~unlike)
        projected = unlike & ~spoken
        for i in (~spoken & ~projected).nonzero()[:, 0].tolist():
            self.status[int(rows[i])] = Status.UNMOVED if fits[i] else Status.UNEXPLAINED
            self.excess[rows[i]] = found.kept_spread[i]
        self.take(rows[spoken], found.centre[spoken], found.spread[spoken], Status.SORTED)
        self.weigh(rows[spoken], found.spoken.weights[spoken].double())
        own = found.projected[projected], found.projected_spread[projected]
        self.take(rows[projected], *own, Status.CONVERGED)
        self.searched[rows[projected]] = True

    def take(self, rows: Tensor, s: Tensor, spread: Tensor, status: Status) -> None:
        """Set the summaries of some datasets."""
        self.s[rows], self.excess[rows] = s, spread
        self.after[rows] = (self.fitted.wide.decode(s) - self.z_bar[rows]).square().sum(1)
        for row in rows.tolist():
            self.status[row] = status

    def weigh(self, rows: Tensor, weights: Tensor) -> None:
        """Set the weights of some datasets, and measure the distances of the weighted data."""
        self.weights[rows] = weights
        for row in rows.tolist():
            w = self.weights[row] / self.weights[row].sum().clamp(min=1e-12)
            self.weighted[row] = w @ self.fitted.embedding(self.x[row]).double()
        self.before[rows], self.after[rows] = (
            (self.fitted.wide.decode(s[rows]) - self.weighted[rows]).square().sum(1)
            for s in (self.s_obs, self.s)
        )

    def search(self, rows: Tensor) -> None:
        """Search for the minimum-distance summaries of some datasets."""
        if not len(rows):
            return
        problem = Problem(self.x[rows], self.s_obs[rows], self.weighted[rows])
        generator = torch.Generator().manual_seed(self.seed)
        reached = search(self.fitted.wide, self.options, problem, generator)
        self.before[rows], self.after[rows] = reached.objective_obs, reached.objective_star
        if self.options.divergence == "kl":  # squared distances, as for the others
            at = (self.s_obs[rows], reached.s_star)
            mu = (self.fitted.wide.decode(s) - self.weighted[rows] for s in at)
            self.before[rows], self.after[rows] = (part.square().sum(1) for part in mu)
        self.s[rows], self.searched[rows] = reached.s_star, True
        for row, status in zip(rows.tolist(), reached.status, strict=True):
            self.status[row] = status

    def influence(self) -> tuple[Tensor, Tensor]:
        """Return the influence of each observation `(B, N, d_s)`, and the sampling covariance.

        Where a summary was searched for, to first order in the embedding; elsewhere that of the
        observations that are left on their summary, by the jackknife.
        """
        procedure, N = self.fitted.procedure, self.x.shape[1]
        if procedure is None:
            return self._searched(torch.arange(len(self.s), device=self.x.device))
        speaker = Speaker(self.fitted.summarise, procedure.refill)
        value = speaker.influence(self.x, self.weights)
        kept = self.weights.sum(1).clamp(min=2)
        covariance = value.mT @ value / (kept * (kept - 1))[:, None, None]
        value = value * (N / kept)[:, None, None]
        rows = self.searched.nonzero()[:, 0]
        if len(rows):
            value[rows], covariance[rows] = self._searched(rows)
        if len(rows) and self.fitted.noise is not None:
            # The posterior knows V; data that scatter more make a projection as much less certain.
            V = self.fitted.noise.covariance(self.s[rows]) * (procedure.num_obs / N)
            values, vectors = torch.linalg.eigh(covariance[rows] - V)
            self.excess[rows] += (vectors * values.clamp(min=0)[:, None]) @ vectors.mT
        return value, covariance

    def _searched(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        view, options, target = self.fitted.wide, self.options, self.weighted[rows]
        objective = view.objective(options, target, view.bank.cloud(target))
        features = self.fitted.embedding(self.x[rows])
        return influence(objective, self.s[rows], features, self.weights[rows], view.bank.scale)
