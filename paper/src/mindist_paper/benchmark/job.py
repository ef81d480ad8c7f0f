r"""One step of the method at a given size, ready to be run: what the growth of time is measured on.

.. math:: \theta \sim \mathcal{N}_2(0, I), \qquad x_{nj} = \theta_{j \bmod 2} + \mathcal{N}(0, 1),
    \qquad s = (\bar x_1, \bar x_2) ,

so that observations may have any dimension while the summary has two. Simulations and observed
datasets come as chunks, made from one array of noise and new parameters: their cost is small, and
is measured alone to be subtracted. A fifth of the observations of observed datasets lie 4 higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.features import FourierFeatures
from mindist.minimum_distance import MinimumDistance

CHUNK_NUMBERS, CHUNK_DATASETS = 2**22, 1_000  # in one chunk, whichever is less
SHIFT, SHARE = 4.0, 5  # of every fifth observation
FIT_OBSERVATIONS = 100  # at most, in each dataset that detection and adaptation were fitted to


@dataclass(frozen=True)
class Setting:
    """Sizes of a problem.

    Arguments:
        simulations: M, datasets to fit to.
        observations: N, observations of a dataset.
        dimension: D, of an observation.
        features: K.
        datasets: B, observed datasets.
    """

    simulations: int = 1_000
    observations: int = 100
    dimension: int = 2
    features: int = 512
    datasets: int = 100


@dataclass(frozen=True)
class Job:
    """Something to measure.

    Arguments:
        run: What is measured.
        warm: The same on less, so that libraries are loaded and threads started.
        input: The part of it that only makes the input.
        kept: Bytes of the input and output that whoever calls it has to hold.
    """

    run: Callable[[], object]
    warm: Callable[[], object]
    input: Callable[[], object]
    kept: int = 0


def chunks(num: int, setting: Setting, *, contaminated: bool = False) -> Iterator[Tensor]:
    """So many datasets `(b, N, D)`, a chunk at a time.

    Example:
        >>> [len(x) for x in chunks(2_500, Setting(observations=10))]
        [1000, 1000, 500]
    """
    N, D = setting.observations, setting.dimension
    size = max(1, min(CHUNK_DATASETS, CHUNK_NUMBERS // (N * D), num))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(size, N, D, generator=generator)
    if contaminated:
        noise[:, ::SHARE] += SHIFT
    for first in range(0, num, size):
        theta = torch.randn(min(size, num - first), 1, 2, generator=generator)
        yield noise[: len(theta)] + theta.repeat(1, 1, -(-D // 2))[..., :D]


def summary(x: Tensor) -> Tensor:
    """The mean of the first two coordinates, `(B, 2)`."""
    return x[..., :2].mean(1)


def fit_job(setting: Setting) -> Job:
    """Fit our default to a stream of simulations."""

    def fit(num: int) -> MinimumDistance:
        return _estimator(setting).fit(chunks(num, setting))

    num = setting.simulations
    return Job(lambda: fit(num), lambda: fit(min(num, 400)), lambda: _drain(chunks(num, setting)))


def detect_job(setting: Setting) -> Job:
    """Test a stream of observed datasets."""
    mds = _fitted(setting)
    return _observed_job(setting, lambda x: mds.detect(x).p_value)


def adapt_job(setting: Setting) -> Job:
    """Adapt a stream of observed datasets."""
    mds = _fitted(setting)
    return _observed_job(setting, lambda x: mds.adapt(x).s_star)


def embed_job(setting: Setting) -> Job:
    """Embed one array of datasets."""
    features = FourierFeatures.draw(
        (setting.dimension,),
        setting.features,
        bandwidth=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    x = torch.cat(list(chunks(setting.datasets, setting)))
    result = 4 * setting.datasets * setting.features
    return Job(lambda: features.mean(x), lambda: features.mean(x[:10]), lambda: None, result)


JOBS: dict[str, Callable[[Setting], Job]] = {
    "fit": fit_job,
    "detect": detect_job,
    "adapt": adapt_job,
    "embed": embed_job,
}
"""By name, for a process of their own."""


def _estimator(setting: Setting) -> MinimumDistance:
    return MinimumDistance(summary, num_features=setting.features)


def _fitted(setting: Setting) -> MinimumDistance:
    few = Setting(
        setting.simulations, min(setting.observations, FIT_OBSERVATIONS), setting.dimension
    )
    return _estimator(setting).fit(chunks(few.simulations, few))


def _observed_job(setting: Setting, step: Callable[[Tensor], Tensor]) -> Job:
    def over(num: int) -> Tensor:
        # One array for what is kept: small ones between large temporaries would pin their memory.
        kept, first = torch.empty(0), 0
        for x in chunks(num, setting, contaminated=True):
            result = step(x)
            if not first:
                kept = result.new_empty(num, *result.shape[1:])
            kept[first : first + len(x)] = result
            first += len(x)
        return kept

    num = setting.datasets
    return Job(
        lambda: over(num),
        lambda: over(min(num, 4)),
        lambda: _drain(chunks(num, setting, contaminated=True)),
    )


def _drain(stream: Iterator[Tensor]) -> None:
    for _ in stream:
        pass


__all__ = ["JOBS", "Job", "Setting", "chunks", "summary"]
