"""Minimum-distance summaries as methods of the benchmark: the paper's variants, and our default."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from mindist import checks
from mindist.adaptation import Adaptation
from mindist.minimum_distance import PAPER_VARIANTS, MinimumDistance
from mindist.posteriors.robust import RobustPosterior
from mindist.protocols import Array, Summary
from mindist.tasks import Task
from mindist_paper.baselines.method import Options, Simulations, one_dataset
from mindist_paper.baselines.npe import NeuralPosterior, train_neural_posterior

Train = Callable[[Task, Simulations, Options], NeuralPosterior]


class MinimumDistanceMethod:
    """A `RobustPosterior`, queried like every other method."""

    def __init__(self, posterior: RobustPosterior, fit_seconds: float = math.nan) -> None:
        self.posterior, self.fit_seconds = posterior, fit_seconds

    def adapt(self, x: Array) -> Adaptation:
        """Return what was found about the datasets."""
        return self.posterior.adapt(x)

    def used_summary(self, x: Array) -> Tensor:
        """Return the adapted summaries `(B, d_s)`."""
        batch, _ = checks.observed(x, self.posterior.mds.event_shape)
        return self.posterior.adapt(batch).s_star

    def sample(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, d_theta)` given one dataset `(N, *event)`."""
        batch = one_dataset(x, self.posterior.mds.event_shape)
        return self.sample_batched(shape, batch, seed=seed)[..., 0, :]

    def sample_batched(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, B, d_theta)` given datasets `(B, N, *event)`."""
        batch, _ = checks.observed(x, self.posterior.mds.event_shape)
        return self.posterior.sample_batched(shape, batch, seed=seed)


def unfitted(variant: str, summary: Summary, options: Options) -> MinimumDistance:
    """Return the estimator of a variant: "default", or one of the paper's, "rf", "dec", "kl"."""
    checks.choice(variant, ("default", *PAPER_VARIANTS), "variant")
    chosen: dict[str, Any] = {"bandwidth": options.bandwidth, "seed": options.seed}
    if variant in PAPER_VARIANTS:
        mds = MinimumDistance.paper(summary, variant=variant, **chosen)
    else:
        mds = MinimumDistance(summary, **chosen, **options.estimator)
    mds.search = replace(mds.search, **options.search)
    return mds


def train_minimum_distance(
    task: Task,
    data: Simulations,
    options: Options,
    *,
    variant: str,
    train: Train = train_neural_posterior,
) -> MinimumDistanceMethod:
    """Train a posterior, or take the one of the options, and fit the estimator beside it."""
    npe = train(task, data, options)
    mds = unfitted(variant, npe.summary, options).fit(data.x)
    return MinimumDistanceMethod(RobustPosterior(npe.posterior, mds))
