r"""See, sort, speak, calibrated on clean simulations: what the default does with a dataset.

1. *See* each observation as a residual of the model at a summary (`mindist.features.residuals`).
2. *Detect*: are all observations at the observed summary unlike the model's, together or number by
   number, or is that summary farther from simulated ones than any clean one
   (`mindist.detection.statistics`)? Three statistics, ranked together among clean simulations.
3. *Sort* and *speak* in turn (`mindist.adaptation.sorting`, `speaking`): a summary t of the
   observations that the model at t explains.
4. *Project*: the minimum-distance summary of the paper, of all observations, is a second robust
   summary; both are calibrated (`calibration`).
5. *Believe* t where sorting has brought the data clearly nearer to the model, to a distance that
   clean simulations have, or where the summary has moved by more than in any clean simulation; and
   where t is a summary that simulations have. *Project* where they have none like the observed one.
   Otherwise the data are wrong in a way that neither mends.

Only 2 is done for every dataset, and costs about what its summary costs.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from mindist.adaptation.calibration import Calibration, SummaryNoise, moved_by, spread_of
from mindist.adaptation.sorting import DEFAULT, STRICT, Rules, Sorter
from mindist.adaptation.speaking import LEAST_SHARE, FixedPoints, Further, Speaker, Spoken
from mindist.detection import CombinedTest, Misfit, SummaryOutlyingness
from mindist.detection.statistics import all_of, mean_of
from mindist.features.embedding import Embedding
from mindist.features.representation import Encoded
from mindist.features.residuals import Regression, Residuals
from mindist.summarise import Summariser
from mindist.threads import each_in_a_thread

STATISTICS = ("observations odd", "single numbers odd", "summary unlike simulated ones")
MOST_COORDINATES = 64  # of an observation, all of which become residuals
FEW_COORDINATES = 8  # of which the summary of one observation would add nothing
COMPONENTS = 8  # principal ones of longer observations
REFERENCES = 3_000  # datasets to learn from, at most three fifths; the others are the null
CALIBRATED = 600  # of the others, which go the whole way
LEAST = 40  # simulated datasets for each of the two
FEWEST = 5  # observations of which some can be left out
BIAS_FEATURES = 40
USUAL = 0.99  # share of clean simulations whose rest looks no less like the model
# The log of the factor by which sorting has to bring the data nearer to the model, and by which a
# summary has to be farther from others than any clean one.
CLEARLY = 0.5
PASSES = 0.8  # share of clean simulations that a fixed point may be as far from the model as
BLOCK_ELEMENTS = 2**24  # kernel values of all paths of a block, 64 MB


class Examined(NamedTuple):
    """What sorting and projecting found about B datasets, before anything is decided."""

    spoken: Spoken
    centre: Tensor  # the calibrated summary of what is left `(B, d_s)`
    spread: Tensor  # its covariance U, `(B, d_s, d_s)`
    kept_spread: Tensor  # the covariance of an observed summary that is kept `(B, d_s, d_s)`
    projected: Tensor  # the calibrated projection `(B, d_s)`
    projected_spread: Tensor  # its covariance `(B, d_s, d_s)`
    moved: Tensor  # log(1 + H): how far the observed summary is from the calibrated one, `(B,)`
    statistics: Tensor  # of the detection `(B, 3)`

    def select(self, b: slice | Tensor) -> "Examined":
        """Select datasets."""
        spoken = Spoken(*(part[b] for part in self.spoken))
        return Examined(spoken, *(part[b] for part in self[1:]))


@dataclass(frozen=True)
class Coordinates:
    """The numbers of an observation that become residuals.

    What a representation of the user's own shows, if that is short. Else up to 64 numbers all of
    them. Of more, what the estimator's kernel sees, if that is short; else
    the summary of the observation alone, or principal components of what the kernel sees, and the
    size of what they leave out. Of more than 8 numbers also the summary of the observation alone,
    where it has one that is no linear function of them: what the summary measures.
    """

    alone: bool  # whether the summary of one observation is among them
    # of the principal components `(D,)`; a single 0 where there are none
    centre: Annotated[Tensor, "E"]
    components: Annotated[Tensor, "E r"]  # `(D, r)`

    @classmethod
    def of(cls, embedding: Embedding, summarise: Summariser, x: Tensor) -> "Coordinates":
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
        given = isinstance(embedding.representation, Encoded)  # a function of the user's own
        if _is_short(embedding) and (given or math.prod(x.shape[2:]) > MOST_COORDINATES):
            parts.append(embedding.represent(x).double())
        elif math.prod(x.shape[2:]) <= MOST_COORDINATES:
            parts.append(x.reshape(B, N, -1).double())
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what we asked, not what the user did
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
class Limits:
    """What clean simulations show, beyond which a dataset is something else."""

    misfit: float  # the largest usual misfit of what is left
    moved: float  # how far no summary of a clean simulation has moved
    unlike: float  # how far no summary of a clean simulation is from the others


@dataclass(frozen=True)
class Procedure:
    """The calibrated way of a dataset from its observations to a believable summary."""

    coordinates: Coordinates  # the numbers of an observation that become residuals
    sorter: Sorter  # residuals of simulations, by summary
    misfit: Misfit  # how far observations are from the model at a summary
    bias: Regression  # what sorting takes from the summary of clean data
    further: Further  # where strict sorting leads
    usual: float  # the distance over the expected one at which what is left looks like the model
    calibration: Calibration  # the summary of clean data given that of what is left
    projection: Calibration  # the summary of clean data given their projection
    outlyingness: SummaryOutlyingness  # how far a summary lies from simulated ones
    test: CombinedTest  # the joint null of the three statistics
    refill: bool  # whether the summary function fails on fewer observations
    num_obs: Annotated[int, range(1, 2**31)]  # N0, of the simulations
    limits: Limits  # what clean simulations show, beyond which a dataset is something else

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
        rules: Rules = DEFAULT,
    ) -> "Procedure | None":
        """Learn from a sample of simulated datasets `(M, N, *event)` with summaries `(M, d_s)`.

        Some serve for residuals, the others to be calibrated on. `project` gives projections of
        datasets, and other summaries to start from, `(B, S, d_s)`. Returns None where there are too
        few different datasets, or too few observations to sort.
        """
        num, num_obs = min(REFERENCES, 3 * len(x) // 5), x.shape[1]
        s = s.double()
        if len(x) - num < LEAST or num_obs < FEWEST or len(s.unique(dim=0)) < LEAST:
            return None
        coordinates = Coordinates.of(embedding, summarise, x)
        seen = torch.cat([coordinates(part, embedding, summarise) for part in x.split(64)])
        # The null was not seen by what judges it: in many dimensions residuals of simulations that
        # were learned from are smaller than those of others.
        first, null, last = slice(num), slice(num, None), slice(num, num + CALIBRATED)
        residuals = Residuals.of(seen[first], s[first], raw=not rules.residuals)
        seen = residuals.straight(seen)
        sorter = Sorter.of(residuals, seen[first], s[first], rules)
        misfit, own = Misfit.of(residuals(seen[first], s[first]), s[first])
        usual = float(mean_of(own).exp().quantile(PASSES))
        speaker = Speaker.of(summarise, x)

        def once(b: Tensor) -> Tensor:
            found = (sorter(seen[b], s[b], cut=cut).weights for cut in (rules.cut, STRICT))
            return torch.cat([speaker.weighted(x[b], weights) for weights in found], 1)

        size = max(1, BLOCK_ELEMENTS // (num_obs * (num_obs + 512)))
        blocks = torch.arange(len(x), device=x.device)[first].split(size)
        spoken = torch.cat(each_in_a_thread(once, blocks))
        usable = torch.isfinite(spoken).all(1)
        if usable.sum() < LEAST:
            return None
        at = s[first][usable]
        left, strict = spoken[usable].split(s.shape[1], 1)
        bias = Regression.of(at, at - left, BIAS_FEATURES, wider=0.0)[0]
        further = Further.of(strict - left, at, BIAS_FEATURES)
        points, near = FixedPoints(sorter, speaker, bias, further, misfit, usual), project(x[last])
        found = _whole_way(points, x[last], seen[last], s[last], near)
        calibration, centre, covariance = Calibration.of(found.s, s[last], unbiased=True)
        V = noise.covariance(centre)
        spread = spread_of(covariance, V, found.weights.sum(1), num_obs, num_obs)
        fitting = float(found.misfit.quantile(USUAL))
        rho, unlike = residuals(seen[null], s[null]), float(outlyingness(s[null]).max()) + CLEARLY
        odd = misfit(rho, all_of(rho), s[null])
        # No clean simulation is beyond the limit of the third: it adds nothing to the level.
        test = CombinedTest(torch.cat([odd, torch.zeros_like(odd[:, :1])], 1), STATISTICS)
        limits = Limits(
            fitting,
            float(moved_by(s[last], centre, spread, V).max()) + CLEARLY,
            unlike,
        )
        return cls(
            coordinates,
            sorter,
            misfit,
            bias,
            further,
            usual,
            calibration,
            Calibration.of(near[:, 0], s[last])[0],
            outlyingness,
            test,
            speaker.refill,
            num_obs,
            limits,
        )

    def seen(self, x: Tensor, embedding: Embedding, summarise: Summariser) -> Tensor:
        """Return the numbers `(B, N, q)` of observations that become residuals."""
        return self.sorter.residuals.straight(self.coordinates(x, embedding, summarise))

    @torch.no_grad()
    def statistics(
        self, x: Tensor, s_obs: Tensor, embedding: Embedding, summarise: Summariser
    ) -> Tensor:
        """Return the statistics `(B, 3)` of datasets `(B, N, *event)` with summaries `(B, d_s)`."""
        s, num_obs = s_obs.double(), x.shape[1]

        def block(b: Tensor) -> Tensor:
            rho = self.sorter.residuals(self.seen(x[b], embedding, summarise), s[b])
            return self.misfit(rho, all_of(rho), s[b])

        size = max(1, BLOCK_ELEMENTS // (num_obs * 512))
        parts = each_in_a_thread(block, torch.arange(len(x), device=x.device).split(size))
        # Summaries of fewer observations lie farther from simulated ones.
        noisier = max(1.0, math.sqrt(self.num_obs / num_obs))
        beyond = (self.outlyingness(s, noisier) - self.limits.unlike).clamp(min=0)
        beyond = beyond + self.outlyingness.outside(s, noisier)
        return torch.cat([torch.cat(parts), beyond[:, None]], 1)

    @torch.no_grad()
    def __call__(
        self,
        x: Tensor,
        s_obs: Tensor,
        near: Tensor,
        statistics: Tensor,
        embedding: Embedding,
        summarise: Summariser,
        noise: SummaryNoise,
    ) -> Examined:
        """Examine datasets `(B, N, *event)` with summaries, projections and statistics."""
        s_obs, num_obs = s_obs.double(), x.shape[1]
        speaker = Speaker(summarise, self.refill)
        points = FixedPoints(self.sorter, speaker, self.bias, self.further, self.misfit, self.usual)
        seen = self.seen(x, embedding, summarise)
        spoken = _whole_way(points, x, seen, s_obs, near)
        centre, covariance = self.calibration(spoken.s)
        V = noise.covariance(centre)
        kept = spoken.weights.sum(1)
        spread = spread_of(covariance, V, kept, num_obs, self.num_obs)
        # The observed summary varies as one of N observations does, not of the simulations' N0.
        ratio = self.num_obs / num_obs
        alone = spread_of(covariance, ratio * V, kept, num_obs, num_obs)
        moved = moved_by(s_obs, centre, alone, ratio * V)
        projected, covariance = self.projection(near[:, 0])
        wide = spread_of(covariance, V, torch.full_like(moved, num_obs), num_obs, self.num_obs)
        spread, kept_spread = spread + spoken.about(spoken.s), spoken.about(s_obs)
        return Examined(spoken, centre, spread, kept_spread, projected, wide, moved, statistics)

    def fits(self, found: Examined) -> Tensor:
        """Return whether what is left looks like the model, `(B,)`."""
        return found.spoken.misfit <= self.limits.misfit

    def believable(self, found: Examined) -> Tensor:
        """Return whether the summary of what is left is to be asked at, `(B,)`.

        It has to differ from the observed one by more than its error, whose expected squared length
        in d_s dimensions is d_s.
        """
        spoken, moved = found.spoken, found.moved
        gap = mean_of(found.statistics[:, :2]) - spoken.misfit
        mended = self.fits(found) & (gap > CLEARLY)
        likely = (mended & (moved > math.log1p(found.centre.shape[1]))) | (
            moved > self.limits.moved
        )
        some = spoken.weights.mean(1) >= LEAST_SHARE
        return likely & some & (self.outlyingness(spoken.s) <= self.limits.unlike)

    def unlike_simulated(self, found: Examined) -> Tensor:
        """Return whether to project: simulations have no summary like the observed one, `(B,)`."""
        rules, unlike = self.sorter.rules, found.statistics[:, 2] > 0
        return (unlike & rules.project) | (~self.fits(found) & rules.always)


def _whole_way(points: FixedPoints, x: Tensor, seen: Tensor, s_obs: Tensor, near: Tensor) -> Spoken:
    """Sort and speak for all datasets, in blocks that fit into memory, on all threads."""
    B, N = x.shape[:2]
    if not B:
        none = s_obs.new_zeros(0)
        return Spoken(s_obs, none.view(0, N).float(), none, none[:, None], s_obs[:, None])
    size = max(1, BLOCK_ELEMENTS // (N * (N + 512) * (22 + near.shape[1])))

    def block(b: Tensor) -> Spoken:
        return points(x[b], seen[b], s_obs[b], near[b])

    parts = each_in_a_thread(block, torch.arange(B, device=x.device).split(size))
    return Spoken(*(torch.cat(column) for column in zip(*parts, strict=True)))
