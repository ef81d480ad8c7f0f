r"""Queries at summaries some of which are uncertain.

.. math:: p(\theta) = p(\theta \mid s) \quad \text{or, around an uncertain } s, \quad
    p(\theta) = \tfrac1J \textstyle\sum_j p(\theta \mid s_j) .

The datasets of a batch whose summary is certain are asked for together and first, exactly as if
there were no others; then the uncertain ones together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.posteriors.averaged import AveragedBackend
from mindist.posteriors.backend import Queried
from mindist.posteriors.density import LeakageOptions
from mindist.posteriors.query import BoundedQueries
from mindist.posteriors.rejection import Budget, Drawn
from mindist.posteriors.sampling import Sampling


@dataclass(frozen=True)
class Conditions:
    """At which summaries to ask for B datasets.

    Arguments:
        s: One for each dataset, `(B, d_s)`.
        uncertain: For which to average instead, `(B,)`.
        around: Over which, `(B, J, d_s)`; J may be 0 where none is uncertain.
    """

    s: Tensor
    uncertain: Tensor
    around: Tensor

    @classmethod
    def certain(cls, s: Tensor) -> Conditions:
        """One summary for each dataset and no more."""
        none = torch.zeros(len(s), dtype=torch.bool, device=s.device)
        return cls(s, none, s[:, None][:, :0])

    def __len__(self) -> int:
        return len(self.s)

    def __getitem__(self, index: Tensor) -> Conditions:
        """Those of some datasets."""
        return Conditions(self.s[index], self.uncertain[index], self.around[index])


class UncertainQueries(Sampling[Conditions]):
    """`BoundedQueries` at `Conditions`.

    Arguments:
        backend: The posterior, through its library's bridge.
        max_draws: Draws allowed for each sample.
        num: J, how many summaries stand for an uncertain one.
    """

    def __init__(self, backend: Queried, max_draws: int, num: int) -> None:
        super().__init__(backend)
        self.certain = BoundedQueries(backend, max_draws)
        self.averaged = BoundedQueries(AveragedBackend(backend, num), max_draws)
        self.max_draws = max_draws

    def draw(
        self,
        num: int,
        at: Conditions,
        budget: Budget,
        *,
        reject: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Drawn:
        """At most `num` draws for each dataset, from torch's global generator."""
        parts = [
            queries.draw(num, s, budget, reject=reject, options=options)
            for queries, s, _ in self._parts(at)
        ]
        return Drawn.joined(parts, _order(at)) if len(parts) > 1 else parts[0]

    def log_prob(
        self,
        theta: Tensor,
        conditions: Conditions,
        *,
        norm_posterior: bool | None = None,
        leakage: LeakageOptions | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Log-probabilities `(S, B)` of parameters `(S, B, d_theta)`."""
        parts = [
            queries.log_prob(
                theta[:, which],
                s,
                norm_posterior=norm_posterior,
                leakage=leakage,
                seed=seed,
                options=options,
                datasets=which,
            )
            for queries, s, which in self._parts(conditions)
        ]
        return torch.cat(parts, dim=1)[:, _order(conditions)] if len(parts) > 1 else parts[0]

    def to(self, device: torch.device) -> None:
        """Move the posterior and forget what was computed elsewhere."""
        self.certain.to(device)
        self.averaged.to(device)

    def _parts(self, conditions: Conditions) -> list[tuple[BoundedQueries, Tensor, Tensor]]:
        """Whom to ask, at what, for which datasets; at least one, perhaps without datasets."""
        uncertain = conditions.uncertain.nonzero()[:, 0]
        still = (~conditions.uncertain).nonzero()[:, 0]
        parts = []
        if len(still) or not len(uncertain):
            parts.append((self.certain, conditions.s[still], still))
        if len(uncertain):
            rows = conditions.around[uncertain].flatten(1)
            parts.append((self.averaged, rows, uncertain))
        return parts


def _order(conditions: Conditions) -> Tensor:
    """Where each dataset stands when the certain ones come first, `(B,)`."""
    return conditions.uncertain.long().argsort(stable=True).argsort()


__all__ = ["Conditions", "UncertainQueries"]
