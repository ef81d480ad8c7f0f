r"""Contaminations that the paper never tried, for every task.

.. math:: \tilde x_n = C(x_n) \ \text{ for a fraction } \epsilon \text{ of the observations,}
    \qquad \tilde x_n = x_n \ \text{ for the rest.}

Sizes are in units of the population, all observations of the simulator over the prior, with mean
:math:`m` and standard deviation :math:`\sigma` in each coordinate. Counts, which are never
negative, stay so: there, noise is in proportion to a count and a scale is about 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.tasks.task import Task

POPULATION_DATASETS, POPULATION_OBSERVATIONS = 500, 10


@dataclass(frozen=True)
class Population:
    """What the simulator's observations look like over the prior.

    Arguments:
        mean: Of each coordinate, `(*event)`.
        scale: Its standard deviation, `(*event)`.
        counts: Whether no observation is negative.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0]]])
        >>> Population.of(x)
        Population(mean=tensor([2.]), scale=tensor([1.]), counts=True)
    """

    mean: Tensor
    scale: Tensor
    counts: bool

    @classmethod
    def of(cls, x: Tensor) -> Population:
        """The population of datasets `(B, N, *event)`."""
        scale, mean = torch.std_mean(x.flatten(0, 1), 0, correction=0)
        return cls(mean, scale, bool((x >= 0).all()))

    @classmethod
    def of_task(cls, task: Task, seed: int = 0) -> Population:
        """The population of a task, from 500 parameters with 10 observations each."""
        generator = torch.Generator().manual_seed(seed)
        theta = task.sample_prior(POPULATION_DATASETS, generator)
        return cls.of(task.simulate(theta, POPULATION_OBSERVATIONS, generator=generator))


@dataclass(frozen=True)
class Setting:
    """What a contamination may know besides the clean data.

    Arguments:
        population: Of the task.
        theta: True parameters `(B, d_theta)`.
        generator: Of every draw.

    Example:
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> setting = Setting(Population.of_task(task), torch.zeros(3, 2), generator)
        >>> setting.chosen(torch.zeros(3, 100, 2), epsilon=0.1).shape
        torch.Size([3, 100, 1])
    """

    population: Population
    theta: Tensor
    generator: torch.Generator

    def chosen(self, x: Tensor, epsilon: float) -> Tensor:
        """Each observation with probability epsilon, `(B, N, 1, ...)`, to broadcast over `x`."""
        drawn = torch.rand(x.shape[:2], generator=self.generator) < checks.fraction(epsilon)
        return drawn.view(*drawn.shape, *[1] * (x.dim() - 2))


def cluster(
    x: Tensor, epsilon: float, setting: Setting, *, distance: float = 2.0, spread: float = 0.1
) -> Tensor:
    r"""Observations replaced by a tight cluster on one side, :math:`m + 2 \sigma + 0.1 \sigma \xi`.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Contaminated fraction.
        setting: Population and generator.
        distance: Of the cluster from the population's mean, in its standard deviations.
        spread: Standard deviation within the cluster, in the same unit.

    Example:
        >>> population = Population(torch.tensor([1.0]), torch.tensor([3.0]), counts=False)
        >>> setting = Setting(population, torch.zeros(1, 1), torch.Generator().manual_seed(0))
        >>> cluster(torch.zeros(1, 2, 1), 1.0, setting, spread=0.0).flatten()
        tensor([7., 7.])
    """
    population, chosen = setting.population, setting.chosen(x, epsilon)
    noise = torch.randn(x.shape, generator=setting.generator)
    point = population.mean + population.scale * (distance + spread * noise)
    return torch.where(chosen, _possible(point, population), x)


def student_t(
    x: Tensor, epsilon: float, setting: Setting, *, size: float = 0.25, freedom: int = 2
) -> Tensor:
    r"""Heavy-tailed noise added, :math:`x_n + 0.25 \sigma t_2`; to counts :math:`0.25 x_n t_2`.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Contaminated fraction.
        setting: Population and generator.
        size: Of the noise, in standard deviations of the population (in counts: of the value).
        freedom: Degrees of freedom, a whole number; with 2 the variance is infinite.

    Example:
        >>> population = Population(torch.zeros(1), torch.ones(1), counts=False)
        >>> setting = Setting(population, torch.zeros(1, 1), torch.Generator().manual_seed(0))
        >>> noise = student_t(torch.zeros(1, 100_000, 1), 1.0, setting, size=1.0)
        >>> noise.abs().median()  # of t_2 it is sqrt(2/3)
        tensor(0.81...)
    """
    population, chosen = setting.population, setting.chosen(x, epsilon)
    normal = torch.randn(freedom + 1, *x.shape, generator=setting.generator)
    t = normal[0] / normal[1:].square().mean(0).sqrt()
    unit = x if population.counts else population.scale
    return torch.where(chosen, _possible(x + size * unit * t, population), x)


def scale(x: Tensor, epsilon: float, setting: Setting, *, factor: float = 1.5) -> Tensor:
    r"""Observations drawn away from the population's mean, :math:`m + 1.5 (x_n - m)`.

    A wrong gain of an instrument. With epsilon = 1 all observations have it. For counts m = 0.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Contaminated fraction.
        setting: Population and generator.
        factor: Of the distance from the mean.

    Example:
        >>> population = Population(torch.tensor([1.0]), torch.ones(1), counts=False)
        >>> setting = Setting(population, torch.zeros(1, 1), torch.Generator().manual_seed(0))
        >>> scale(torch.tensor([[[3.0]]]), 1.0, setting).flatten()
        tensor([4.])
    """
    population = setting.population
    centre = torch.zeros_like(population.mean) if population.counts else population.mean
    return torch.where(setting.chosen(x, epsilon), centre + factor * (x - centre), x)


def noise_scale(x: Tensor, epsilon: float, setting: Setting, *, factor: float = 1.5) -> Tensor:
    r"""More noise about the truth, :math:`\theta + 1.5 (x_n - \theta)`.

    Of location models, in which :math:`\theta` is the mean of an observation.

    Arguments:
        x: Clean datasets `(B, N, *event)`, with one parameter for each coordinate.
        epsilon: Contaminated fraction.
        setting: Parameters and generator.
        factor: Of the noise.

    Example:
        >>> population = Population(torch.zeros(1), torch.ones(1), counts=False)
        >>> setting = Setting(population, torch.full((1, 1), 2.0), torch.Generator())
        >>> noise_scale(torch.tensor([[[4.0]]]), 1.0, setting).flatten()
        tensor([5.])
    """
    if setting.theta.shape != (len(x), *x.shape[2:]):
        raise ValueError(
            "noise-scale: expected a parameter for each coordinate of an observation "
            f"{tuple(x.shape[2:])}, got {setting.theta.shape[1]} parameters. Use 'scale'."
        )
    centre = setting.theta[:, None].to(x.dtype)
    return torch.where(setting.chosen(x, epsilon), centre + factor * (x - centre), x)


def gross(x: Tensor, epsilon: float, setting: Setting, *, size: float = 1e6) -> Tensor:
    """A few observations with every coordinate at a million, as many in each dataset.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: The first `round(epsilon N)` observations, at least one if it is not 0.
        setting: Not used.
        size: Of every coordinate.

    Example:
        >>> gross(torch.zeros(1, 4, 1), 0.25, setting=None).flatten()
        tensor([1000000.,       0.,       0.,       0.])
    """
    result = x.clone()
    result[:, : _number(x, epsilon)] = size
    return result


def duplicates(x: Tensor, epsilon: float, setting: Setting) -> Tensor:
    """Observations that are copies of one, the first, as many in each dataset.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Of the N observations `round(epsilon N)` are the same one.
        setting: Not used.

    Example:
        >>> duplicates(torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]), 0.5, setting=None).flatten()
        tensor([1., 1., 3., 4.])
    """
    result = x.clone()
    result[:, : _number(x, epsilon)] = x[:, :1]
    return result


def missing(x: Tensor, epsilon: float, setting: Setting) -> Tensor:
    """A third of an observation missing, recorded as 0.

    The middle third of the times of a series, of the rows of an image; the first coordinate of a
    vector of two.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Contaminated fraction.
        setting: Generator.

    Example:
        >>> setting = Setting(None, None, torch.Generator().manual_seed(0))
        >>> missing(torch.ones(1, 1, 6), 1.0, setting).flatten()
        tensor([1., 1., 0., 0., 1., 1.])
    """
    length = x.shape[2]
    block = slice(length // 3, length // 3 + max(1, length // 3))
    gap = x.clone()
    gap[:, :, block] = 0
    return torch.where(setting.chosen(x, epsilon), gap, x)


def _number(x: Tensor, epsilon: float) -> int:
    """How many observations of a dataset a fraction is, at least one if it is not 0."""
    return max(round(checks.fraction(epsilon) * x.shape[1]), int(epsilon > 0))


def _possible(x: Tensor, population: Population) -> Tensor:
    """Observations as they may be: counts are not negative."""
    return x.clamp_min(0) if population.counts else x


CONTAMINATIONS: dict[str, Callable[..., Tensor]] = {
    "cluster": cluster,
    "student-t": student_t,
    "scale": scale,
    "noise-scale": noise_scale,
    "gross": gross,
    "duplicates": duplicates,
    "missing": missing,
}
"""By kind: clean datasets, epsilon and a setting to contaminated datasets; options by keyword."""

_ANY = ("cluster", "student-t", "scale", "gross", "duplicates", "missing")
SUITABLE: Mapping[str, tuple[str, ...]] = {
    "gaussian": (*_ANY, "noise-scale"),
    "gaussian_factor": _ANY,
    "oup": _ANY,
    "sir": _ANY,
    "cryo_em": _ANY,
}
"""Which kinds make sense for which task: more noise about the truth needs a location model."""


def contaminate(
    x: Tensor, epsilon: float, setting: Setting, *, kind: str, task: str, **options: Any
) -> Tensor:
    """Contaminate datasets of a task in one of these ways; `x` is kept.

    Arguments:
        x: Clean datasets `(B, N, *event)`.
        epsilon: Contaminated fraction.
        setting: What the contamination may know.
        kind: A key of `CONTAMINATIONS` that suits the task.
        task: A key of `SUITABLE`.
        options: Of the kind, such as `factor=2.0`.

    Example:
        >>> contaminate(torch.zeros(1, 4, 2), 0.1, None, kind="noise-scale", task="oup")
        Traceback (most recent call last):
            ...
        ValueError: kind: expected one of 'cluster', 'student-t', ..., got 'noise-scale'.
    """
    chosen = CONTAMINATIONS[checks.choice(kind, SUITABLE[task], "kind")]
    return chosen(x, epsilon, setting, **options).to(x.dtype)


__all__ = [
    "CONTAMINATIONS",
    "SUITABLE",
    "Population",
    "Setting",
    "cluster",
    "contaminate",
    "duplicates",
    "gross",
    "missing",
    "noise_scale",
    "scale",
    "student_t",
]
