r"""A posterior averaged over several summaries, as one density.

.. math:: \bar q(\theta \mid s_1, \dots, s_J) = \tfrac1J \textstyle\sum_j q(\theta \mid s_j) ,

cut to the support of the prior as one density too: a summary at which the posterior leaks counts
for less, and cannot keep the others from being drawn from. The J summaries of a dataset are handed
over in one row `(J * d_s,)`, so that whatever asks a posterior can ask its average.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.posteriors.backend import Component, Queried
from mindist.posteriors.rejection import MAX_ROWS


@dataclass(frozen=True)
class AveragedComponent:
    """One density, averaged over J summaries.

    Arguments:
        component: The density given one summary.
        num: J.
    """

    component: Component
    num: int

    @property
    def weight(self) -> float:
        """The component's share of the mixture."""
        return self.component.weight

    @property
    def bounded(self) -> bool:
        """Whether the density can leak."""
        return self.component.bounded

    @property
    def corrects_leakage(self) -> bool:
        """Whether the library's own `log_prob` divides by Z."""
        return self.component.corrects_leakage

    def draw(
        self, num_samples: int, s: Tensor, *, show_progress_bars: bool, **options: Any
    ) -> Tensor:
        """Draws `(num_samples, B, d_theta)` given `(B, J * d_s)`, in random order.

        Each of the J summaries gets as many, or one more than another; which, is random.
        """
        rounds, num_datasets = -(-num_samples // self.num), len(s)
        drawn = self.component.draw(
            rounds, self._rows(s), show_progress_bars=show_progress_bars, **options
        )
        drawn = drawn.unflatten(1, (num_datasets, self.num)).transpose(1, 2).flatten(0, 1)
        whole = (rounds - 1) * self.num
        last = torch.rand(self.num, num_datasets, device=s.device).argsort(0)
        first = torch.arange(whole, device=s.device)[:, None].expand(-1, num_datasets)
        chosen = torch.cat([first, whole + last[: num_samples - whole]])
        order = torch.rand(num_samples, num_datasets, device=s.device).argsort(0)
        chosen = chosen.gather(0, order)
        theta: Tensor = drawn.gather(0, chosen[..., None].expand(-1, -1, drawn.shape[2]))
        return theta

    def in_support(self, theta: Tensor, /) -> Tensor:
        """Whether parameters `(..., d_theta)` lie in the support of the prior, `(...)`."""
        return self.component.in_support(theta)

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """The log of the average, `(S, B)`, of parameters `(S, B, d_theta)`."""
        rows, parts = self._rows(s), []
        for block in theta.split(max(1, MAX_ROWS // max(1, len(rows)))):
            each = block.repeat_interleave(self.num, dim=1)
            log_q = self.component.log_density(each, rows, **options)
            parts.append(log_q.unflatten(1, (len(s), self.num)).logsumexp(2) - math.log(self.num))
        return torch.cat(parts)

    def _rows(self, s: Tensor) -> Tensor:
        """One summary in each row, `(B * J, d_s)`."""
        return s.reshape(len(s) * self.num, -1)


@dataclass(frozen=True)
class AveragedBackend:
    """A posterior over J summaries at once.

    Arguments:
        backend: The posterior over one summary.
        num: J.
    """

    backend: Queried
    num: int

    @property
    def components(self) -> Sequence[AveragedComponent]:
        """The mixture, each component averaged."""
        return [AveragedComponent(component, self.num) for component in self.backend.components]

    @property
    def condition_shape(self) -> torch.Size:
        """`(J * d_s,)`."""
        return torch.Size((self.num * self.backend.condition_shape.numel(),))

    @property
    def num_parameters(self) -> int:
        """d_theta."""
        return self.backend.num_parameters

    @property
    def device(self) -> torch.device:
        """Where the posterior computes."""
        return self.backend.device

    @property
    def version(self) -> Hashable:
        """Changes whenever the posterior's weights do."""
        return self.backend.version

    def to(self, device: torch.device) -> None:
        """Move the posterior."""
        self.backend.to(device)


__all__ = ["AveragedBackend", "AveragedComponent"]
