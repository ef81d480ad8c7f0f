r"""Modes of a posterior over summaries, each computed once.

.. math:: s \mapsto \arg\max_\theta p(\theta \mid s)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import Backend
from mindist.posteriors.cache import Recent, digest
from mindist.posteriors.query import BoundedQueries
from mindist.posteriors.rejection import Budget
from mindist.posteriors.seeding import seeded

CAPACITY = 4096  # modes remembered: a few numbers each


class Modes:
    """The mode given one summary.

    Arguments:
        backend: The posterior, through its library's bridge.
        queries: Where starts are drawn from.
    """

    def __init__(self, backend: Backend, queries: BoundedQueries) -> None:
        self.backend, self.queries = backend, queries
        self._recent: Recent[Tensor] = Recent(CAPACITY)

    def __call__(
        self,
        s: Tensor,
        start: str | Tensor,
        num_starts: int,
        *,
        seed: int | None = None,
        force_update: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """The mode `(1, d_theta)` given one summary `(1, d_s)`, remembered."""
        options = dict(options or {})
        checks.positive(num_starts, "num_init_samples")
        how = digest(start) if isinstance(start, Tensor) else start
        asked = (how, num_starts, seed, tuple(sorted(options.items())))
        key = (digest(s), self.backend.version, *asked)
        mode = None if force_update else self._recent.get(key)
        if mode is None:
            with seeded(seed, s.device):
                mode = self.backend.maximise(s, self._starts(start, num_starts, s), **options)
            self._recent.put(key, mode)
        return mode.clone()

    def clear(self) -> None:
        """Forget what was computed elsewhere."""
        self._recent.clear()

    def _starts(self, start: str | Tensor, num_starts: int, s: Tensor) -> Tensor:
        """Where the search begins, `(n, d_theta)`."""
        if isinstance(start, Tensor):
            checks.rows(start, self.backend.num_parameters, "init_method")
            return start.to(s.device, s.dtype)
        if checks.choice(start, ("posterior", "prior"), "init_method") == "posterior":
            budget = Budget(self.queries.max_draws)
            theta = self.queries.sample((num_starts,), s, budget)[:, 0]
            if len(theta):
                return theta
        return self.backend.sample_prior(num_starts)


__all__ = ["Modes"]
