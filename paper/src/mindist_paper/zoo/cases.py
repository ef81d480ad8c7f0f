r"""A small model, and the ways in which its data go wrong.

.. math:: \tilde x_n = y_n \ \text{for } \mathrm{round}(\epsilon N) \text{ of the observations,}
    \qquad y_n = c(\theta) + k_n\, d(\theta)\, u ,

with the median :math:`c` and the half width :math:`d` of the central 68% of an observation at the
true parameters (mean and standard deviation of a normal one), and a unit vector u. With
:math:`\epsilon = 1` all observations are misspecified: they come from the model with a twist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Generator = np.random.Generator
# theta (B, d_theta), N, generator and a twist ("" for none) to x (B, N, *event)
Draw = Callable[[Array, int, Generator, str], Array]
NUM_REFERENCE = 400  # simulated observations from which c and d are taken


@dataclass(frozen=True)
class Model:
    """A prior, a simulator, a summary, and the cases on which to try it."""

    name: str
    sample_prior: Callable[[int, Generator], Array]  # n to theta (n, d_theta)
    draw: Draw
    summary: Callable[[Tensor], Tensor]  # x (B, N, *event) to s (B, d_s), for any N above a few
    cases: tuple[Case, ...]
    num_obs: int = 100
    possible: Callable[[Array], Array] = np.asarray  # the nearest values that data can have

    def simulate(self, theta: Array, num_obs: int, rng: Generator, twist: str = "") -> Array:
        """Simulate datasets x `(B, num_obs, *event)` in float32."""
        return self.draw(theta, num_obs, rng, twist).astype(np.float32)


Bad = Callable[[Model, Array, Array, Generator], Array]


@dataclass(frozen=True)
class Case:
    """What replaces which share of the observations."""

    name: str
    epsilon: float  # 1: all observations are a little wrong, and the summary may still be right
    bad: Bad  # from model, clean x, theta and generator to the replacements, shaped like x


def contaminate(model: Model, case: Case, x: Array, theta: Array, rng: Generator) -> Array:
    """Return datasets of which `round(epsilon N)` observations, at least one, are replaced."""
    ranks = rng.random(x.shape[:2]).argsort(1).argsort(1)
    chosen = _beside(ranks < max(1, round(case.epsilon * x.shape[1])), x)
    return np.where(chosen, model.possible(case.bad(model, x, theta, rng)), x).astype(np.float32)


def _beside(values: Array, x: Array) -> Array:
    """Append axes of length one, so that values of single observations broadcast to x."""
    return values.reshape(values.shape + (1,) * (x.ndim - values.ndim))


def away(
    low: float,
    high: float | None = None,
    width: float = 0.2,
    *,
    both: bool = False,
    log: bool = False,
) -> Bad:
    """Place observations off the centre, in one direction for each dataset.

    Arguments:
        low: How far off, in sd of an observation at the true parameters.
        high: Distances are uniform up to here; None for a cluster at `low`.
        width: Standard deviation about the place, in the same unit.
        both: Whether half of them lie on the other side.
        log: Whether all of this is about the logarithm of an observation.
    """

    def bad(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
        reference = model.draw(theta, NUM_REFERENCE, rng, "")
        reference = np.log(reference) if log else reference
        below, centre, above = np.quantile(reference, (0.16, 0.5, 0.84), axis=1)
        u = rng.standard_normal(centre.shape) if centre[0].size > 1 else np.ones_like(centre)
        u /= np.sqrt((u**2).sum(1, keepdims=True))
        k = rng.uniform(low, low if high is None else high, x.shape[:2])
        k *= rng.choice((-1, 1), k.shape) if both else 1
        offset = _beside(k, x) * u[:, None] + width * rng.standard_normal(x.shape)
        y: Array = centre[:, None] + 0.5 * (above - below)[:, None] * offset
        return np.exp(y) if log else y

    return bad


def twists(*names: str) -> tuple[Case, ...]:
    """Return cases in which all observations are simulated anew, with another assumption."""

    def bad(twist: str) -> Bad:
        return lambda model, x, theta, rng: model.simulate(theta, x.shape[1], rng, twist)

    return tuple(Case(name, 1.0, bad(name)) for name in names)


def constant(value: float) -> Bad:
    """Replace observations by one value, such as 0."""
    return lambda model, x, theta, rng: np.full_like(x, value)


def copies(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
    """Repeat the dataset's first observation."""
    return np.repeat(x[:, :1], x.shape[1], axis=1)
