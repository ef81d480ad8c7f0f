r"""Priors as people have them, made into the torch distributions that sbi wants.

A prior of `mindist.simulate` may be a function that draws, without a density. Where sbi needs one,
to reject draws outside its support, such a prior has the whole space as its support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints

from mindist.simulation.sources import draw_prior

MAX_SEED = 2**31
NUM_DRAWS = 1_000  # for mean and standard deviation, which need not be exact


class FunctionPrior(Distribution):
    """A prior that can only be drawn from.

    Arguments:
        function: Of n, to parameters `(n, d_theta)`; or an object with `.sample((n,))`.

    Example:
        >>> prior = FunctionPrior(lambda n, rng: rng.normal(size=(n, 2)))
        >>> prior.sample((3,)).shape, prior.log_prob(torch.zeros(3, 2))
        (torch.Size([3, 2]), tensor([0., 0., 0.]))
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (torch's own is like this)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        some = self._draw(NUM_DRAWS, 0)
        self._mean, self._stddev = some.mean(0), some.std(0)
        super().__init__(event_shape=some.shape[1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean of some draws, by which sbi scales parameters."""
        return self._mean

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of some draws."""
        return self._stddev

    @property
    def support(self) -> Any:
        """Everything: the bounds are not known."""
        return constraints.independent(constraints.real, 1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Parameters `(*sample_shape, d_theta)`, from torch's global generator."""
        shape = torch.Size(sample_shape)
        seed = int(torch.randint(MAX_SEED, ()))
        return self._draw(shape.numel(), seed).reshape(*shape, *self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """0: the density is not known."""
        return value.new_zeros(value.shape[:-1])

    def _draw(self, num: int, seed: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            theta = draw_prior(self._function, num, seed)
        return torch.as_tensor(theta, dtype=torch.float32)


def as_distribution(prior: Any) -> tuple[Distribution, bool]:
    """A torch distribution over vectors `(d_theta,)`, and whether its support is known.

    Arguments:
        prior: As for `mindist.simulate`; a distribution with independent components, one number
            each, becomes one over vectors.

    Example:
        >>> prior, known = as_distribution(torch.distributions.Uniform(torch.zeros(2), 1.0))
        >>> prior.event_shape, known
        (torch.Size([2]), True)
    """
    if isinstance(prior, Distribution):
        components = len(prior.batch_shape)
        return (Independent(prior, components) if components else prior), True
    return FunctionPrior(prior), False


def check_prior(prior: Any, shape: Sequence[int], of: str) -> None:
    """Raise unless parameters that a prior draws are like those of something else.

    Arguments:
        prior: With `.sample((n,))`.
        shape: Of one parameter vector.
        of: What has it, for the message.

    Example:
        >>> check_prior(torch.distributions.Normal(torch.zeros(3), 1.0), (2,), "posterior")
        Traceback (most recent call last):
            ...
        ValueError: prior: expected one of parameters of shape (2,), as the posterior has them, ...
    """
    drawn = tuple(prior.sample((1,)).shape[1:])
    if drawn != tuple(shape):
        raise ValueError(
            f"prior: expected one of parameters of shape {tuple(shape)}, as the {of} has them, got "
            f"one of shape {drawn}. Is it the prior of another model?"
        )


__all__ = ["FunctionPrior", "as_distribution", "check_prior"]
