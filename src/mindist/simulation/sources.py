r"""What the user gives: :math:`\theta \sim p(\theta)`, :math:`x_{1:N} \sim p_\theta`, s = f(x).

A prior has `.sample((n,))`, as those of torch and sbi, or is a function of n. A simulator takes one
theta `(d_theta,)` and gives one dataset `(N, *event)`, or takes `(B, d_theta)` and gives
`(B, N, *event)`. Functions that name an argument `generator` get a torch generator, `rng` a NumPy
generator, `n_obs` (or `num_observations`) the number of observations; all others draw from the
global generators, which are seeded for each call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.simulation.seeds import seed_globals

N_OBS = ("n_obs", "num_observations")


@dataclass(frozen=True)
class Sources:
    """Where parameters, datasets and summaries come from.

    Arguments:
        prior: Has `.sample((n,))`, or is a function of n; gives `(n, d_theta)`.
        simulator: One theta to one dataset, or a batch to a batch.
        summary: Datasets `(B, N, *event)` to summaries `(B, d_s)`.
    """

    prior: Any
    simulator: Callable[..., Any]
    summary: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not (callable(getattr(self.prior, "sample", None)) or callable(self.prior)):
            raise TypeError(
                "prior: expected an object with .sample((n,)) or a function of n that gives "
                f"parameters (n, d_theta), got {type(self.prior).__name__}."
            )
        for name in ("simulator", "summary"):
            if not callable(getattr(self, name)):
                got = type(getattr(self, name)).__name__
                raise TypeError(f"{name}: expected a function, got {got}.")

    @property
    def names(self) -> dict[str, str]:
        """What the three are called, for the record of a bank."""
        return {name: _name(getattr(self, name)) for name in ("prior", "simulator", "summary")}


def draw_prior(prior: Any, num: int, seed: int) -> Any:
    """Parameters `(num, d_theta)`, a tensor or an array as the prior gives them.

    Example:
        >>> draw_prior(lambda n, rng: rng.normal(size=(n, 2)), 3, seed=1).shape
        (3, 2)
    """
    seed_globals(seed)
    sample = getattr(prior, "sample", None)
    theta = sample((num,)) if callable(sample) else prior(num, **randomness(prior, seed))
    if isinstance(theta, Tensor):
        theta = theta.detach().cpu()
    if tuple(np.shape(theta))[:1] != (num,) or len(np.shape(theta)) != 2 or not np.shape(theta)[1]:
        raise ValueError(
            f"prior: expected parameters of shape ({num}, d_theta), got shape "
            f"{tuple(np.shape(theta))}. One number for each draw needs [:, None]."
        )
    checks.as_tensor(theta, "prior (its result)")
    return theta


def simulate(simulator: Callable[..., Any], theta: Any, n_obs: int, seed: int) -> Any:
    """One call of the simulator from a seed of its own."""
    seed_globals(seed)
    sizes = dict.fromkeys(named(simulator, N_OBS), n_obs)
    return simulator(theta, **randomness(simulator, seed), **sizes)


def randomness(function: Callable[..., Any], seed: int) -> dict[str, Any]:
    """The generators that a function asks for by name, from one seed."""
    makers: dict[str, Callable[[], Any]] = {
        "generator": lambda: torch.Generator().manual_seed(seed),
        "rng": lambda: np.random.default_rng(seed),
    }
    return {name: makers[name]() for name in named(function, tuple(makers))}


def named(function: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    """Which of these names a function takes as keyword arguments.

    Example:
        >>> named(lambda theta, *, rng: rng.normal(theta), ("generator", "rng"))
        ('rng',)
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return ()
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name in names if name in parameters and parameters[name].kind in kinds)


def _name(thing: Any) -> str:
    function = getattr(thing, "func", thing)  # of functools.partial
    return str(getattr(function, "__qualname__", type(function).__name__))


__all__ = ["Sources", "draw_prior", "named", "randomness", "simulate"]
