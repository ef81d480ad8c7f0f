r"""See, sort, speak, calibrated on clean simulations: what the default does with a dataset.

1. *See* each observation as a residual of the model at a summary (`mindist.features.residuals`).
2. *Sort* and *speak* in turn (`mindist.adaptation.sorting`, `speaking`): a summary t of the
   observations that the model at t explains.
3. *Project*: the minimum-distance summary of the paper, of all observations, is a second robust
   summary; both are calibrated (`calibration`).
4. *Detect* by three statistics, ranked together among clean simulations that went the same way: how
   far the observed summary lies from where t says it should; how unlike the model at t all
   observations are; and how far the observed summary lies from simulated ones, by the standard of
   its neighbourhood.
5. *Believe* t where sorting has brought the data clearly nearer to the model, to a distance that
   clean simulations have, or where the summary has moved by more than in any clean simulation; and
   where t is a summary that simulations have. *Project* where they have none like the observed one.
   Otherwise the data are wrong in a way that neither mends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from mindist.adaptation.calibration import Calibration, moved_by, spread_of
from mindist.adaptation.noise import SummaryNoise
from mindist.adaptation.sorting import Sorter
from mindist.adaptation.speaking import LEAST_SHARE, FixedPoints, Speaker, Spoken
from mindist.detection import CombinedTest, SummaryOutlyingness
from mindist.features.embedding import Embedding
from mindist.features.residuals import Regression, Residuals
from mindist.summarise import Summariser
from mindist.threads import each_in_a_thread

STATISTICS = ("summary moved", "observations odd", "summary unlike simulated ones")
MOST_COORDINATES = 64  # of an observation, all of which become residuals
FEW_COORDINATES = 8  # of which the summary of one observation would add nothing
COMPONENTS = 8  # principal ones of longer observations
REFERENCES, CALIBRATED = 3_000, 1_000  # simulated datasets: residuals, and the whole way
LEAST = 40  # simulated datasets for each of the two
FEWEST = 5  # observations of which some can be left out
BIAS_FEATURES, TYPICAL_FEATURES = 40, 50
USUAL = 0.97  # share of clean simulations whose rest looks no less like the model
ROOM = 0.5  # log of the factor by which a summary may be farther from simulated ones than usual
CLEARLY = 0.5  # log of the factor by which sorting has to bring the data nearer to the model, or
# by which a summary has to have moved farther than in any clean simulation
UNLIKE = 0.01  # p-value of the last statistic at which a projection may be warranted
PASSES = 0.8  # share of clean simulations that a fixed point may be as far from the model as
BLOCK_ELEMENTS = 2**23  # kernel values of all paths of a block, 32 MB


class Examined(NamedTuple):
    """What was found about B datasets, before anything is decided."""

    spoken: Spoken
    centre: Tensor  # the calibrated summary of what is left `(B, d_s)`
    spread: Tensor  # its covariance U, `(B, d_s, d_s)`
    projected: Tensor  # the calibrated projection `(B, d_s)`
    projected_spread: Tensor  # its covariance `(B, d_s, d_s)`
    noise: Tensor  # the sampling covariance of a summary, V, `(B, d_s, d_s)`
    statistics: Tensor  # `(B, 3)`

    def select(self, b: slice | Tensor) -> Examined:
        """Select datasets."""
        spoken = Spoken(*(part[b] for part in self.spoken))
        return Examined(spoken, *(part[b] for part in self[1:]))


@dataclass(frozen=True)
class Coordinates:
    """The numbers of an observation that become residuals.

    Up to 64 numbers all of them. Of more, what the estimator's kernel sees, if that is short; else
    the summary of the observation alone, or principal components of what the kernel sees, and the
    size of what they leave out. Of more than 8 numbers also the summary of the observation alone,
    where it has one that is no linear function of them: what the summary measures.

    Arguments:
        alone: Whether the summary of one observation is among them.
        centre: Of the principal components `(D,)`; a single 0 where there are none.
        components: `(D, r)`.
    """

    alone: bool
    centre: Annotated[Tensor, "E"]
    components: Annotated[Tensor, "E r"]

    @classmethod
    def of(cls, embedding: Embedding, summarise: Summariser, x: Tensor) -> Coordinates:
        """Choose on simulated datasets `(M, N, *event)`."""
        none = torch.zeros(1, dtype=torch.float64, device=x.device)
        alone = math.prod(x.shape[2:]) > FEW_COORDINATES and _measures(summarise, x)
        if alone or _is_short(embedding) or math.prod(x.shape[2:]) <= MOST_COORDINATES:
            return cls(alone, none, none[:, None].clone())
        rows = embedding.represent(x[:200, :20]).flatten(0, 1).double()
        centre = rows.mean(0)
        components = torch.linalg.svd(rows - centre, full_matrices=False).Vh[:COMPONENTS].T
        return cls(False, centre, components.contiguous())

    def __call__(self, x: Tensor, embedding: Embedding, summarise: Summariser) -> Tensor:
        """Return `(B, N, q)`, float64, of datasets `(B, N, *event)`."""
        B, N = x.shape[:2]
        parts = []
        if self.alone:
            one = summarise(x.reshape(B * N, 1, *x.shape[2:])).double()
            parts.append(one.nan_to_num().reshape(B, N, -1))
        if math.prod(x.shape[2:]) <= MOST_COORDINATES:
            parts.append(x.reshape(B, N, -1).double())
        elif _is_short(embedding):
            parts.append(embedding.represent(x).double())
        if parts:
            return torch.cat(parts, -1)
        seen = embedding.represent(x).double() - self.centre
        scores = seen @ self.components
        rest = (seen.square().sum(-1) - scores.square().sum(-1)).clamp(min=1e-12)
        return torch.cat([scores, rest.log()[..., None]], -1)


def _measures(summarise: Summariser, x: Tensor) -> bool:
    """Return whether one observation has a summary, and one that its numbers do not show."""
    few = x[:200, :10].flatten(0, 1)
    try:
        one = summarise(few[:, None]).double()
    except Exception:  # a summary that one observation does not have
        return False
    if not torch.isfinite(one).all() or not (one.std(0) > 0).any():
        return False
    rows = torch.cat([few.flatten(1).double(), torch.ones_like(one[:, :1])], 1)
    if rows.shape[1] > MOST_COORDINATES:
        return True
    left = one - rows @ torch.linalg.lstsq(rows, one).solution
    return bool((left.square().sum(0) > 0.05 * (one - one.mean(0)).square().sum(0)).any())


def _is_short(embedding: Embedding) -> bool:
    """Return whether all that the kernel sees of an observation can become residuals."""
    return embedding.features.event_shape.numel() <= MOST_COORDINATES


@dataclass(frozen=True)
class Procedure:
    """The calibrated way of a dataset from its observations to a believable summary.

    Arguments:
        coordinates: The numbers of an observation that become residuals.
        sorter: Residuals of simulations, by summary.
        bias: What sorting takes from the summary of clean data.
        typical: The expected log distance of clean data from the model.
        usual: The distance over the expected one at which what is left looks like the model.
        calibration: The summary of clean data given that of what is left.
        projection: The summary of clean data given their projection.
        outlyingness: How far a summary lies from simulated ones.
        test: The joint null of the three statistics.
        refill: Whether the summary function fails on fewer observations.
        num_obs: N0, of the simulations.
        misfit: The largest log distance of what is left that is usual.
        unlike: The largest usual third statistic.
    """

    coordinates: Coordinates
    sorter: Sorter
    bias: Regression
    typical: Regression
    usual: float
    calibration: Calibration
    projection: Calibration
    outlyingness: SummaryOutlyingness
    test: CombinedTest
    refill: bool
    num_obs: Annotated[int, range(1, 2**31)]
    misfit: float
    unlike: float

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        embedding: Embedding,
        summarise: Summariser,
        noise: SummaryNoise,
        outlyingness: SummaryOutlyingness,
        x: Tensor,
        s: Tensor,
        project: Callable[[Tensor], Tensor],
    ) -> Procedure | None:
        """Learn from a sample of simulated datasets.

        Arguments:
            embedding: Represents long observations.
            summarise: The summary function.
            noise: The sampling noise of a summary.
            outlyingness: How far a summary lies from simulated ones.
            x: Datasets `(M, N, *event)`, some for residuals, the others to be calibrated on.
            s: Their summaries `(M, d_s)`.
            project: From datasets to projections, and other summaries to start from, `(B, S, d_s)`.

        Returns:
            None where there are too few different datasets, or too few observations to sort.
        """
        half, num_obs = len(x) // 2, x.shape[1]
        s = s.double()
        if half < LEAST or num_obs < FEWEST or len(s.unique(dim=0)) < LEAST:
            return None
        coordinates = Coordinates.of(embedding, summarise, x)
        seen = torch.cat([coordinates(part, embedding, summarise) for part in x.split(64)])
        num = max(half, len(x) - CALIBRATED)
        first, last = slice(min(num, REFERENCES)), slice(num, num + CALIBRATED)
        residuals = Residuals.of(seen, s)
        sorter = Sorter.of(residuals, seen[first], s[first])
        speaker = Speaker.of(summarise, x)

        def once(b: Tensor) -> tuple[Tensor, Tensor]:
            found = sorter(seen[b], s[b], distance=True)
            assert found.distance is not None
            return speaker.weighted(x[b], found.weights), found.distance.log()

        size = max(1, BLOCK_ELEMENTS // (num_obs * (num_obs + 512)))
        blocks = torch.arange(len(x), device=x.device)[first].split(size)
        spoken, distance = (torch.cat(p) for p in zip(*each_in_a_thread(once, blocks), strict=True))
        usable = torch.isfinite(spoken).all(1)
        if usable.sum() < LEAST:
            return None
        at = s[first][usable]
        bias, _ = Regression.of(at, at - spoken[usable], BIAS_FEATURES)
        typical, expected = Regression.of(at, distance[usable, None], TYPICAL_FEATURES)
        usual = float((distance[usable] - expected[:, 0]).exp().quantile(PASSES))
        points = FixedPoints(sorter, speaker, bias, typical, usual)
        near = project(x[last])
        found = _whole_way(points, x[last], seen[last], s[last], near)
        calibration, centre, covariance = Calibration.of(found.s, s[last])
        V = noise.covariance(centre)
        spread = spread_of(covariance, V, found.weights.sum(1), num_obs, num_obs)
        unlike, moved = outlyingness(s[last]), moved_by(s[last], centre, spread, V)
        projection, _, _ = Calibration.of(near[:, 0], s[last])
        null = torch.stack([moved, found.oddness, unlike], 1)
        return cls(
            coordinates,
            sorter,
            bias,
            typical,
            usual,
            calibration,
            projection,
            outlyingness,
            CombinedTest(null, STATISTICS),
            speaker.refill,
            num_obs,
            float(found.misfit.quantile(USUAL)),
            float(unlike.quantile(USUAL)) + ROOM,
        )

    @torch.no_grad()
    def __call__(
        self,
        x: Tensor,
        s_obs: Tensor,
        near: Tensor,
        embedding: Embedding,
        summarise: Summariser,
        noise: SummaryNoise,
    ) -> Examined:
        """Examine datasets `(B, N, *event)` with summaries `(B, d_s)` and projections."""
        s_obs, num_obs = s_obs.double(), x.shape[1]
        speaker = Speaker(summarise, self.refill)
        points = FixedPoints(self.sorter, speaker, self.bias, self.typical, self.usual)
        seen = self.coordinates(x, embedding, summarise)
        spoken = _whole_way(points, x, seen, s_obs, near)
        centre, covariance = self.calibration(spoken.s)
        V = noise.covariance(centre)
        spread = spread_of(covariance, V, spoken.weights.sum(1), num_obs, self.num_obs)
        # The observed summary varies as one of N observations does, not of the simulations' N0.
        ratio = self.num_obs / num_obs
        alone = spread_of(covariance, ratio * V, spoken.weights.sum(1), num_obs, num_obs)
        moved = moved_by(s_obs, centre, alone, ratio * V)
        projected, covariance = self.projection(near[:, 0])
        wide = spread_of(covariance, V, torch.full_like(moved, num_obs), num_obs, self.num_obs)
        unlike = self.outlyingness(s_obs, math.sqrt(ratio))
        statistics = torch.stack([moved, spoken.oddness, unlike], 1)
        return Examined(spoken, centre, spread, projected, wide, V, statistics)

    def fits(self, found: Examined) -> Tensor:
        """Return whether what is left looks like the model, `(B,)`."""
        return found.spoken.misfit <= self.misfit

    def believable(self, found: Examined) -> Tensor:
        """Return whether the summary of what is left is to be asked at, `(B,)`.

        It has to differ from the observed one by more than its error, whose expected squared length
        in d_s dimensions is d_s.
        """
        spoken, moved = found.spoken, found.statistics[:, 0]
        mended = self.fits(found) & (spoken.oddness - spoken.misfit > CLEARLY)
        far = moved > self.test.null[:, 0].max() + CLEARLY
        some = spoken.weights.mean(1) >= LEAST_SHARE
        likely = some & (mended | far) & (moved > math.log1p(found.centre.shape[1]))
        return likely & (self.outlyingness(spoken.s) <= self.unlike)

    def unlike_simulated(self, found: Examined) -> Tensor:
        """Return whether simulations have no such summary, so that it is to be projected, `(B,)`.

        A projection that varies more than a summary of clean data does is worth it only where the
        summary is farther off than that of any clean simulation.
        """
        variances = (
            part.diagonal(dim1=1, dim2=2) for part in (found.projected_spread, found.noise)
        )
        wide, noise = (part.clamp(min=1e-300).log().mean(1) for part in variances)
        unlike = self.test.p_values(found.statistics)[:, 2] <= UNLIKE
        beyond = found.statistics[:, 2] > self.test.null[:, 2].max() + ROOM
        return (unlike & (wide < noise)) | beyond

    def p_value(self, found: Examined) -> Tensor:
        """Return the p-values of the joint test, `(B,)`."""
        return self.test.p_value(found.statistics)

    def p_values(self, found: Examined) -> dict[str, Tensor]:
        """Return the p-values `(B,)` of each statistic alone, by name."""
        alone = self.test.p_values(found.statistics)
        return dict(zip(STATISTICS, alone.T, strict=True))


def _whole_way(points: FixedPoints, x: Tensor, seen: Tensor, s_obs: Tensor, near: Tensor) -> Spoken:
    """Sort and speak for all datasets, in blocks that fit into memory, on all threads."""
    B, N = x.shape[:2]
    if not B:
        none = s_obs.new_zeros(0)
        return Spoken(s_obs, none.view(0, N).float(), none, none)
    size = max(1, BLOCK_ELEMENTS // (N * (N + 512) * (22 + near.shape[1])))

    def block(b: Tensor) -> Spoken:
        starts = torch.cat([points.starts(x[b], seen[b], s_obs[b]), near[b]], 1)
        return points(x[b], seen[b], s_obs[b], starts)

    parts = each_in_a_thread(block, torch.arange(B, device=x.device).split(size))
    return Spoken(*(torch.cat(column) for column in zip(*parts, strict=True)))
