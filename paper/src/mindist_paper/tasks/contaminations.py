r"""Contaminations that the paper never tried, for every task, :math:`\tilde x_n = C(x_n)`.

Sizes are in units of the population, all observations over the prior, with mean :math:`m` and
standard deviation :math:`\sigma` in each coordinate. Counts stay counts: there, noise is in
proportion to a count and a scale is about 0.
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
    """What the simulator's observations look like over the prior."""

    mean: Tensor  # of each coordinate, `(*event)`
    scale: Tensor  # standard deviation of each coordinate, `(*event)`
    counts: bool  # whether no observation is negative

    @classmethod
    def of_task(cls, task: Task, seed: int = 0) -> Population:
        """Measure the population of a task, from 500 parameters with 10 observations each."""
        generator = torch.Generator().manual_seed(seed)
        theta = task.sample_prior(POPULATION_DATASETS, generator)
        x = task.simulate(theta, POPULATION_OBSERVATIONS, generator=generator)
        scale, mean = torch.std_mean(x.flatten(0, 1), 0, correction=0)
        return cls(mean, scale, bool((x >= 0).all()))


@dataclass(frozen=True)
class Setting:
    """What a contamination may know besides the clean data."""

    population: Population  # of the task
    theta: Tensor  # true parameters `(B, d_theta)`
    generator: torch.Generator  # of every draw

    def chosen(self, x: Tensor, epsilon: float) -> Tensor:
        """Choose each observation with probability epsilon, `(B, N, 1, ...)`, to broadcast."""
        drawn = torch.rand(x.shape[:2], generator=self.generator) < checks.fraction(epsilon)
        return drawn.view(*drawn.shape, *[1] * (x.dim() - 2))


def cluster(
    x: Tensor, epsilon: float, setting: Setting, *, distance: float = 2.0, spread: float = 0.1
) -> Tensor:
    r"""Replace observations by a cluster on one side, :math:`m + 2 \sigma + 0.1 \sigma \xi`."""
    population, chosen = setting.population, setting.chosen(x, epsilon)
    noise = torch.randn(x.shape, generator=setting.generator)
    point = population.mean + population.scale * (distance + spread * noise)
    return torch.where(chosen, _possible(point, population), x)


def student_t(
    x: Tensor, epsilon: float, setting: Setting, *, size: float = 0.25, freedom: int = 2
) -> Tensor:
    r"""Add heavy-tailed noise, :math:`0.25 \sigma t_2`, or :math:`0.25 x_n t_2` to counts."""
    population, chosen = setting.population, setting.chosen(x, epsilon)
    normal = torch.randn(freedom + 1, *x.shape, generator=setting.generator)
    t = normal[0] / normal[1:].square().mean(0).sqrt()
    unit = x if population.counts else population.scale
    return torch.where(chosen, _possible(x + size * unit * t, population), x)


def scale(x: Tensor, epsilon: float, setting: Setting, *, factor: float = 1.5) -> Tensor:
    r"""Draw observations away from the mean, as a wrong gain does, :math:`m + 1.5 (x_n - m)`."""
    population = setting.population
    centre = torch.zeros_like(population.mean) if population.counts else population.mean
    return torch.where(setting.chosen(x, epsilon), centre + factor * (x - centre), x)


def noise_scale(x: Tensor, epsilon: float, setting: Setting, *, factor: float = 1.5) -> Tensor:
    r"""Add noise about the truth of a location model, :math:`\theta + 1.5 (x_n - \theta)`."""
    if setting.theta.shape != (len(x), *x.shape[2:]):
        raise ValueError(
            "noise-scale: expected a parameter for each coordinate of an observation "
            f"{tuple(x.shape[2:])}, got {setting.theta.shape[1]} parameters. Use 'scale'."
        )
    centre = setting.theta[:, None].to(x.dtype)
    return torch.where(setting.chosen(x, epsilon), centre + factor * (x - centre), x)


def gross(x: Tensor, epsilon: float, setting: Setting, *, size: float = 1e6) -> Tensor:
    """Set every coordinate of the first `round(epsilon N)` observations to a million."""
    result = x.clone()
    result[:, : _number(x, epsilon)] = size
    return result


def duplicates(x: Tensor, epsilon: float, setting: Setting) -> Tensor:
    """Make the first `round(epsilon N)` observations copies of the first."""
    result = x.clone()
    result[:, : _number(x, epsilon)] = x[:, :1]
    return result


def missing(x: Tensor, epsilon: float, setting: Setting) -> Tensor:
    """Record a third of an observation as 0: of its times or rows, or one of two coordinates."""
    length = x.shape[2]
    block = slice(length // 3, length // 3 + max(1, length // 3))
    gap = x.clone()
    gap[:, :, block] = 0
    return torch.where(setting.chosen(x, epsilon), gap, x)


def _number(x: Tensor, epsilon: float) -> int:
    return max(round(checks.fraction(epsilon) * x.shape[1]), int(epsilon > 0))


def _possible(x: Tensor, population: Population) -> Tensor:
    """Return observations as they may be: counts are not negative."""
    return x.clamp_min(0) if population.counts else x


# By kind; options by keyword
CONTAMINATIONS: dict[str, Callable[..., Tensor]] = {
    **{"cluster": cluster, "student-t": student_t, "scale": scale, "noise-scale": noise_scale},
    **{"gross": gross, "duplicates": duplicates, "missing": missing},
}
_ANY = ("cluster", "student-t", "scale", "gross", "duplicates", "missing")
# Which kinds make sense for which task: more noise about the truth needs a location model
SUITABLE: Mapping[str, tuple[str, ...]] = {
    "gaussian": (*_ANY, "noise-scale"),
    **dict.fromkeys(("gaussian_factor", "oup", "sir", "cryo_em"), _ANY),
}


def contaminate(
    x: Tensor, epsilon: float, setting: Setting, *, kind: str, task: str, **options: Any
) -> Tensor:
    """Return datasets of a task contaminated in one of the ways that suit it."""
    chosen = CONTAMINATIONS[checks.choice(kind, SUITABLE[task], "kind")]
    return chosen(x, epsilon, setting, **options).to(x.dtype)
