r"""Where the search starts.

`"observed"` is the paper's start, :math:`s_0 = f(\tilde x)`; it may lie hundreds of standard
deviations outside the simulated summaries, where no decoder can be trusted. `"nearest"` is the
summary of the simulated dataset whose embedding is nearest to the observed one, found by one
matrix product; `"cloud"` is the mean summary of the 50 whose embeddings have the largest cosine
with it (`mindist.adaptation.cloud`). `"mean"`, `"perturbed"`, a given vector and restarts follow
the paper's initialisation ablation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation.cloud import Cloud, Likeness

Start = str | tuple[float, ...]
NAMES = ("observed", "nearest", "cloud", "mean", "perturbed")
MAX_BANK = 10_000  # a start only has to fall into the right basin; 20 MB at K = 512
BLOCK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Bank:
    """A sample of simulated datasets to start from.

    Arguments:
        s: Their summaries `(m, d_s)`, float64.
        z_bar: Their mean embeddings `(m, K)`, float32.
        centre: The mean of all simulated summaries `(d_s,)`, float64.
        scale: The standard deviation of all simulated summaries `(d_s,)`, float64.

    Example:
        >>> s = torch.tensor([[0.0], [1.0], [2.0]])
        >>> bank = Bank.of(s, torch.cat([s.cos(), s.sin()], dim=1), torch.Generator())
        >>> bank.nearest(torch.tensor([[0.0, 1.0]]))
        tensor([[2.]], dtype=torch.float64)
    """

    s: Annotated[Tensor, "M d"]
    z_bar: Annotated[Tensor, "M K"]
    centre: Annotated[Tensor, "d"]
    scale: Annotated[Tensor, "d"]

    @classmethod
    def of(cls, s: Tensor, z_bar: Tensor, generator: torch.Generator) -> Bank:
        """A bank of at most 10,000 of the given simulations, chosen at random."""
        chosen = torch.randperm(len(s), generator=generator)[:MAX_BANK].to(s.device)
        s = s.double()
        return cls(s[chosen], z_bar[chosen].float(), s.mean(0), s.std(0, unbiased=False))

    def nearest(self, z_bar: Tensor) -> Tensor:
        """Summaries `(B, d_s)` of the datasets nearest to embeddings `(B, K)`."""
        half_norm = self.z_bar.square().sum(1) / 2
        rows = max(1, BLOCK_ELEMENTS // len(self.s))
        index = [(half_norm - z @ self.z_bar.T).argmin(1) for z in z_bar.float().split(rows)]
        return self.s[torch.cat(index)] if index else self.s[:0]

    def cloud(self, z_bar: Tensor) -> Cloud:
        """Where datasets with embeddings similar to `(B, K)` have their summaries."""
        return Cloud.around(z_bar, self.likeness, self.s, self.unit)

    @cached_property
    def unit(self) -> Tensor:
        """The scale, 1 where it is 0."""
        return torch.where(self.scale > 0, self.scale, 1.0)

    @cached_property
    def likeness(self) -> Likeness:
        """Which of the simulated embeddings are most like others, prepared once."""
        return Likeness.of(self.z_bar)


def starting_points(
    starts: Sequence[Start],
    restarts: int,
    s_obs: Tensor,
    z_bar: Tensor,
    bank: Bank,
    generator: torch.Generator,
    cloud: Cloud | None = None,
) -> Tensor:
    """All starts of all datasets in one batch.

    Arguments:
        starts: Names out of `NAMES`, or vectors `(d_s,)`.
        restarts: How many perturbed copies of the first start to add.
        s_obs: Observed summaries `(B, d_s)`, float64.
        z_bar: Observed mean embeddings `(B, K)`.
        bank: Simulated datasets to start from.
        generator: Draws the perturbations, normal with the spread of the simulated summaries.
        cloud: The clouds of the datasets, where they are known already.

    Returns:
        Starting points `(B, S, d_s)`, float64.
    """

    def perturbed(base: Tensor) -> Tensor:
        # One draw for all datasets, so that a dataset's result does not depend on its batch.
        noise = torch.randn(base.shape[1], dtype=base.dtype, generator=generator).to(base.device)
        return base + noise * bank.scale

    points: list[Tensor] = []
    for start in starts:
        if start == "observed":
            points.append(s_obs)
        elif start == "nearest":
            points.append(bank.nearest(z_bar))
        elif start == "cloud":
            points.append((cloud or bank.cloud(z_bar)).centre)
        elif start == "mean":
            points.append(bank.centre.expand_as(s_obs))
        elif start == "perturbed":
            points.append(perturbed(s_obs))
        else:
            vector = torch.tensor(start, dtype=s_obs.dtype, device=s_obs.device)
            points.append(checks.start_vector(vector, s_obs.shape[1]).expand_as(s_obs))
    points += [perturbed(points[0]) for _ in range(restarts)]
    return torch.stack(points, dim=1)
