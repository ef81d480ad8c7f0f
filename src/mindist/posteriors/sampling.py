"""Samples from whatever can be drawn from, and what is said where they fall short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import Queried
from mindist.posteriors.guards import warn_user
from mindist.posteriors.rejection import Budget, Drawn, shortfall_message
from mindist.posteriors.seeding import seeded

# Above this share of draws outside the prior's support, keeping them deserves a warning: sbi's.
MANY_OUTSIDE = 0.05

At = TypeVar("At")
"""At what a posterior is asked."""


class Sampling(ABC, Generic[At]):
    """Samples of a posterior, from its draws.

    Arguments:
        backend: The posterior.
    """

    def __init__(self, backend: Queried) -> None:
        self.backend = backend

    @abstractmethod
    def draw(
        self,
        num: int,
        at: At,
        budget: Budget,
        *,
        reject: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Drawn:
        """At most `num` draws for each dataset, from torch's global generator."""

    def sample(
        self,
        sample_shape: Sequence[int],
        at: At,
        budget: Budget,
        *,
        seed: int | None = None,
        reject: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Samples `(*sample_shape, B, d_theta)`, or `(k, B, d_theta)` and a warning."""
        shape = torch.Size(checks.sizes(sample_shape))
        num = shape.numel()
        with seeded(seed, self.backend.device):
            drawn = self.draw(num, at, budget, reject=reject, options=options)
        if not reject and drawn.samples.numel():
            self._warn_outside(drawn.samples)
        if drawn.complete:
            return drawn.samples.reshape(*shape, *drawn.samples.shape[1:])
        message = shortfall_message(drawn, budget)
        if budget.expired() and budget.raise_on_timeout:
            raise RuntimeError(
                f"{message} To get what was accepted in time, pass return_partial_on_timeout=True."
            )
        warn_user(message)
        return drawn.samples

    def _warn_outside(self, theta: Tensor) -> None:
        share = 1 - self.backend.components[0].in_support(theta).double().mean().item()
        if share > MANY_OUTSIDE:
            warn_user(
                f"{share:.0%} of the samples lie outside the support of the prior, because "
                "reject_outside_prior=False keeps them. They are not draws from the posterior."
            )


__all__ = ["Sampling"]
