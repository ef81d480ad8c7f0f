r"""See, sort, speak, calibrated on clean simulations: what the default does with a dataset.

1. *See* each observation as a residual of the model at a summary (`mindist.features.residuals`).
2. *Sort* and *speak* in turn (`mindist.adaptation.sorting`, `speaking`): a summary t of the
   observations that the model at t explains.
3. *Project*: the minimum-distance summary of the paper, of all observations, is a second robust
   summary; both are calibrated (`calibration`).
4. *Detect* by four statistics, ranked together among clean simulations that went the same way: how
   far the observed summary lies from where t says it should, and from where the projection says it
   should; how unlike the model at t all observations are; and how far the observed summary lies
   from simulated ones, by the standard of its neighbourhood.
5. *Believe* t where what is left looks like the model: its distance and the share of it at the
   model's edge are those of clean simulations, and t is a summary that simulations have. Otherwise
   the data are wrong in a way that sorting does not mend. *Believe* the projection where its
   distance is one that clean simulations have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

STATISTICS = (
    "summary moved",
    "observations odd",
    "summary unlike simulated ones",
    "summary unlike its embedding",
)
MOST_COORDINATES = 64  # of an observation, all of which become residuals
COMPONENTS = 8  # principal ones of longer observations
REFERENCES, CALIBRATED = 1_000, 1_000  # simulated datasets: residuals, and the whole way
LEAST = 40  # simulated datasets for each of the two
FEWEST = 5  # observations of which some can be left out
BIAS_FEATURES, TYPICAL_FEATURES = 40, 50
USUAL = 0.999  # share of clean simulations whose rest looks no less like the model
ROOM = 0.5  # log of the factor by which what is left may be farther off than usual
CLEARLY = 1.0  # log of the factor by which sorting makes the distance smaller where what is left
# is believed although it is a little farther off than usual
FAR = 2.0  # log of the factor beyond all clean simulations by which a summary has moved so far
# that it is worse than any misfit
INFORMATIVE = 0.0  # mean log variance of a projection, in sampling variances of a summary
AGREE = 3.0  # squared length of the difference of two summaries that agree, for each number
CONTRADICTED = 0.01  # p-value of the last two statistics at which a projection may be warranted
MOVED = 0.15  # p-value of the first statistic above which a summary is left where it is
BLOCK_ELEMENTS = 2**23  # kernel values of all paths of a block, 32 MB


class Examined(NamedTuple):
    """What was found about B datasets, before anything is decided."""

    spoken: Spoken
    centre: Tensor  # the calibrated summary of what is left `(B, d_s)`
    spread: Tensor  # its covariance U, `(B, d_s, d_s)`
    projected: Tensor  # the calibrated projection `(B, d_s)`
    projected_spread: Tensor  # its covariance `(B, d_s, d_s)`
    noise: Tensor  # the sampling covariance of a summary, V, `(B, d_s, d_s)`
    statistics: Tensor  # `(B, 4)`

    @property
    def projection_is_narrower(self) -> Tensor:
        """Return whether two summaries that agree are the more certain as projection, `(B,)`."""
        both = self.spread + self.projected_spread
        apart = moved_by(self.centre, self.projected, both, self.noise)
        agree = apart <= math.log1p(AGREE * self.centre.shape[1])
        return agree & (_log_ratio(self.projected_spread, self.spread) < 0)

    def select(self, b: slice | Tensor) -> Examined:
        """Select datasets."""
        spoken = Spoken(*(part[b] for part in self.spoken))
        return Examined(spoken, *(part[b] for part in self[1:]))


@dataclass(frozen=True)
class Coordinates:
    """The numbers of an observation that become residuals.

    Up to 64 numbers all of them. Of more, the summary of the observation alone, where it has one,
    and what the estimator's kernel sees, if that is short; else principal components of it, and the
    size of what they leave out.

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
        short = cls(False, none, none[:, None].clone())
        if math.prod(x.shape[2:]) <= MOST_COORDINATES:
            return short
        try:
            one = summarise(x[:200, :1]).double()
            alone = bool(torch.isfinite(one).all()) and bool((one.std(0) > 0).any())
        except Exception:  # a summary that one observation does not have
            alone = False
        if alone or _is_short(embedding):
            return replace(short, alone=alone)
        rows = embedding.represent(x[:200, :20]).flatten(0, 1).double()
        centre = rows.mean(0)
        components = torch.linalg.svd(rows - centre, full_matrices=False).Vh[:COMPONENTS].T
        return cls(False, centre, components.contiguous())

    def __call__(self, x: Tensor, embedding: Embedding, summarise: Summariser) -> Tensor:
        """Return `(B, N, q)`, float64, of datasets `(B, N, *event)`."""
        B, N = x.shape[:2]
        if math.prod(x.shape[2:]) <= MOST_COORDINATES:
            return x.reshape(B, N, math.prod(x.shape[2:])).double()
        parts = []
        if self.alone:
            one = summarise(x.reshape(B * N, 1, *x.shape[2:])).double()
            parts.append(one.nan_to_num().reshape(B, N, -1))
        if _is_short(embedding):
            parts.append(embedding.represent(x).double())
        if parts:
            return torch.cat(parts, -1)
        seen = embedding.represent(x).double() - self.centre
        scores = seen @ self.components
        rest = (seen.square().sum(-1) - scores.square().sum(-1)).clamp(min=1e-12)
        return torch.cat([scores, rest.log()[..., None]], -1)


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
        calibration: The summary of clean data given that of what is left.
        projection: The summary of clean data given their projection.
        outlyingness: How far a summary lies from simulated ones.
        test: The joint null of the four statistics.
        refill: Whether the summary function fails on fewer observations.
        num_obs: N0, of the simulations.
        misfit: The largest log distance of what is left that is usual.
        edge: The largest usual share of what is left at the model's edge.
        unlike: The largest usual third statistic.
    """

    coordinates: Coordinates
    sorter: Sorter
    bias: Regression
    typical: Regression
    calibration: Calibration
    projection: Calibration
    outlyingness: SummaryOutlyingness
    test: CombinedTest
    refill: bool
    num_obs: Annotated[int, range(1, 2**31)]
    misfit: float
    edge: float
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
        near: Tensor,
    ) -> Procedure | None:
        """Learn from a sample of simulated datasets.

        Arguments:
            embedding: Represents long observations.
            summarise: The summary function.
            noise: The sampling noise of a summary.
            outlyingness: How far a summary lies from simulated ones.
            x: Datasets `(M, N, *event)`: one half for residuals, the other to be calibrated on.
            s: Their summaries `(M, d_s)`.
            near: Projections, and other summaries to start from, `(M, S, d_s)`.

        Returns:
            None where there are too few different datasets, or too few observations to sort.
        """
        half, num_obs = len(x) // 2, x.shape[1]
        s = s.double()
        if half < LEAST or num_obs < FEWEST or len(s.unique(dim=0)) < LEAST:
            return None
        coordinates = Coordinates.of(embedding, summarise, x)
        seen = torch.cat([coordinates(part, embedding, summarise) for part in x.split(64)])
        first, last = slice(min(half, REFERENCES)), slice(half, half + CALIBRATED)
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
        typical, _ = Regression.of(at, distance[usable, None], TYPICAL_FEATURES)
        points = FixedPoints(sorter, speaker, bias, typical)
        found = _whole_way(points, x[last], seen[last], s[last], near[last])
        calibration, centre, covariance = Calibration.of(found.s, s[last])
        V = noise.covariance(centre)
        spread = spread_of(covariance, V, found.weights.sum(1), num_obs, num_obs)
        unlike, moved = outlyingness(s[last]), moved_by(s[last], centre, spread, V)
        projection, centre, covariance = Calibration.of(near[last][:, 0], s[last])
        apart = moved_by(s[last], centre, covariance, V)
        null = torch.stack([moved, found.oddness, unlike, apart], 1)
        return cls(
            coordinates,
            sorter,
            bias,
            typical,
            calibration,
            projection,
            outlyingness,
            CombinedTest(null, STATISTICS),
            speaker.refill,
            num_obs,
            float(found.misfit.quantile(USUAL)),
            float(found.edge.double().quantile(USUAL)),
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
        """Examine datasets `(B, N, *event)` with summaries `(B, d_s)`; arguments as in `of`."""
        s_obs, num_obs = s_obs.double(), x.shape[1]
        points = FixedPoints(self.sorter, Speaker(summarise, self.refill), self.bias, self.typical)
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
        apart = moved_by(s_obs, projected, ratio * covariance, ratio * V)
        unlike = self.outlyingness(s_obs)
        statistics = torch.stack([moved, spoken.oddness, unlike, apart], 1)
        return Examined(spoken, centre, spread, projected, wide, V, statistics)

    def believable(self, found: Examined) -> Tensor:
        """Return whether what is left looks like the model, `(B,)`."""
        spoken = found.spoken
        fits = (spoken.misfit <= self.misfit) & (spoken.edge <= self.edge + 1e-6)
        mended = spoken.oddness - spoken.misfit > CLEARLY
        likely = fits | (mended & (spoken.misfit <= self.misfit + ROOM))
        far = found.statistics[:, 0] > self.test.null[:, 0].max() + FAR
        some = spoken.weights.mean(1) >= LEAST_SHARE
        return some & (likely | far) & (self.outlyingness(spoken.s) <= self.unlike)

    def contradicted(self, found: Examined) -> Tensor:
        """Return whether the projection, or what simulations have, speaks against the summary.

        A projection that is less certain than a summary has to differ from it by more than in any
        clean simulation: its error has to be the smaller of the two.
        """
        alone = self.test.p_values(found.statistics)[:, 2:].amin(1) <= CONTRADICTED
        certain = _log_ratio(found.projected_spread, found.noise) < INFORMATIVE
        beyond = found.statistics[:, 3] > self.test.null[:, 3].max() + ROOM
        return (alone & certain) | beyond

    def p_value(self, found: Examined) -> Tensor:
        """Return the p-values of the joint test, `(B,)`."""
        return self.test.p_value(found.statistics)

    def p_values(self, found: Examined) -> dict[str, Tensor]:
        """Return the p-values `(B,)` of each statistic alone, by name."""
        alone = self.test.p_values(found.statistics)
        return dict(zip(STATISTICS, alone.T, strict=True))


def _log_ratio(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean log ratio of the variances in two covariances `(B, d, d)`."""
    first, second = (part.diagonal(dim1=1, dim2=2).clamp(min=1e-300) for part in (one, other))
    return (first / second).log().mean(1)


def _whole_way(points: FixedPoints, x: Tensor, seen: Tensor, s_obs: Tensor, near: Tensor) -> Spoken:
    """Sort and speak for all datasets, in blocks that fit into memory, on all threads."""
    B, N = x.shape[:2]
    if not B:
        none = s_obs.new_zeros(0)
        return Spoken(s_obs, none.view(0, N).float(), none, none, none)
    size = max(1, BLOCK_ELEMENTS // (N * (N + 512) * (22 + near.shape[1])))

    def block(b: Tensor) -> Spoken:
        starts = torch.cat([points.starts(x[b], seen[b], s_obs[b]), near[b]], 1)
        return points(x[b], seen[b], s_obs[b], starts)

    parts = each_in_a_thread(block, torch.arange(B, device=x.device).split(size))
    return Spoken(*(torch.cat(column) for column in zip(*parts, strict=True)))
