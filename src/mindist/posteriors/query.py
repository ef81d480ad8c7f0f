r"""A posterior over summaries whose every query ends: samples and log-probabilities given s.

.. math:: s \mapsto p(\theta \mid s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import Queried
from mindist.posteriors.cache import Recent, digest
from mindist.posteriors.density import (
    Leakage,
    LeakageOptions,
    estimate_leakage,
    leakage_message,
    log_prob_mixture,
)
from mindist.posteriors.guards import warn_user
from mindist.posteriors.rejection import Budget, Drawn, draw_mixture
from mindist.posteriors.sampling import Sampling
from mindist.posteriors.seeding import seeded
from mindist.posteriors.turns import my_turn

# Normalising constants remembered: a few numbers each.
CAPACITY = 4096


class BoundedQueries(Sampling[Tensor]):
    """Queries of a posterior at given summaries `(B, d_s)`, none of which can go on for ever.

    Arguments:
        backend: The posterior, through its library's bridge.
        max_draws: Draws allowed for each sample.
    """

    def __init__(self, backend: Queried, max_draws: int) -> None:
        checks.positive(max_draws, "max_draws_per_sample")
        if len(backend.condition_shape) != 1:
            raise _trained_on_other("summaries (d_s,)", backend.condition_shape)
        super().__init__(backend)
        self.max_draws = max_draws
        self._leakages: Recent[Leakage] = Recent(CAPACITY)

    def checked(self, s: Tensor) -> Tensor:
        """Summaries `(B, d_s)`, of the length that the posterior was trained on."""
        if s.shape[1:] != self.backend.condition_shape:
            expected = f"summaries of shape {tuple(s.shape[1:])}"
            raise _trained_on_other(expected, self.backend.condition_shape)
        return s

    def draw(
        self,
        num: int,
        at: Tensor,
        budget: Budget,
        *,
        reject: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Drawn:
        """At most `num` draws for each summary `(B, d_s)`, from torch's global generator."""
        if not num or not len(at):
            all_ = torch.full((len(at),), num, device=at.device)
            nothing = at.new_empty(num, len(at), self.backend.num_parameters)
            return Drawn(nothing, num, all_, all_, all_)
        return draw_mixture(self._components(reject), at, num, budget, options or {})

    def log_prob(
        self,
        theta: Tensor,
        s: Tensor,
        *,
        norm_posterior: bool | None = None,
        leakage: LeakageOptions | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        datasets: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities `(S, B)` of parameters `(S, B, d_theta)`.

        A warning speaks of a dataset by its place in `datasets`, `(B,)`; by default the first B.
        """
        components, leakage = self.backend.components, leakage or LeakageOptions()
        with my_turn():
            leakages = [
                self._leakage(index, s, leakage, seed, datasets)
                if component.bounded
                and (component.corrects_leakage if norm_posterior is None else norm_posterior)
                else None
                for index, component in enumerate(components)
            ]
            return log_prob_mixture(components, theta, s, leakages, options or {})

    def to(self, device: torch.device) -> None:
        """Move the posterior and forget what was computed elsewhere."""
        self.backend.to(device)
        self._leakages.clear()

    def _components(self, reject: bool) -> Sequence[Any]:
        components = self.backend.components
        return components if reject else [Untruncated(component) for component in components]

    def _leakage(
        self, index: int, s: Tensor, how: LeakageOptions, seed: int, datasets: Tensor | None
    ) -> Leakage:
        """Z(s) of one component, `(B,)`, remembered."""
        key = (digest(s), self.backend.version, index, how, seed)
        leakage = self._leakages.get(key)
        if leakage is None:
            budget = Budget(
                self.max_draws,
                how.rejection_sampling_batch_size,
                show_progress_bars=how.show_progress_bars,
            )
            component = self.backend.components[index]
            with seeded(seed, s.device):
                leakage = estimate_leakage(component, s, how.num_rejection_samples, budget)
            self._leakages.put(key, leakage)
        if not leakage.resolved.all():
            warn_user(leakage_message(leakage, datasets))
        return leakage


def _trained_on_other(expected: str, shape: torch.Size) -> ValueError:
    return ValueError(
        f"posterior: expected one trained on {expected}, got one trained on shape {tuple(shape)}. "
        "One trained on raw data with an embedding net can be split: summary, posterior = "
        "split_embedding(posterior), from mindist.posteriors.sbi_bridge. Otherwise train it on "
        "the summaries that MinimumDistance uses."
    )


class Untruncated:
    """A component that accepts every draw."""

    def __init__(self, component: Any) -> None:
        self.weight, self.draw = component.weight, component.draw

    def in_support(self, theta: Tensor) -> Tensor:
        """Everywhere."""
        return torch.ones(theta.shape[:-1], dtype=torch.bool, device=theta.device)


__all__ = ["BoundedQueries"]
