r"""Where a search starts, and the simulated summaries that it stays near.

**Staying near.** Summaries of simulations may fill a thin surface; off it, decoder and posterior
extrapolate. With the mean :math:`m` and covariance :math:`C` of the k simulated summaries whose
embeddings have the largest cosine with the data's, the search minimises

.. math:: \| \mu(s) - \bar z \|^2 + \lambda\, (s - m)^\top C^{-1} (s - m), \qquad
    \lambda = c \; \mathbb{E} \| \mu(S) - \bar z \|^2 .

Were the residuals Gaussian with equal variance in each of :math:`1/c` directions, and the summary's
prior that of the cloud, the minimiser would be the posterior mode of the summary given the
embedding. The cosine ignores the mass that contamination takes from an embedding.

**Starts.** `"observed"` is the paper's; it may lie hundreds of standard deviations outside the
simulated summaries, where no decoder can be trusted. `"nearest"` is the summary of the simulated
dataset whose embedding is nearest to the observed one; `"cloud"` is the mean summary of the 50
whose embeddings have the largest cosine with it. `"mean"`, `"perturbed"`, a given vector and
restarts follow the paper's initialisation ablation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist import checks

NUM_NEIGHBOURS = 50
RELATIVE_RIDGE = 1e-3  # of the covariance of the cloud, against directions without spread
LEAST_VARIANCE = 1e-12  # a summary that is equal in the whole cloud may move by 1e-6 of its spread


@dataclass(frozen=True)
class Cloud:
    """Mark where simulations with similar embeddings have their summaries."""

    centre: Tensor  # means `(B, d_s)`
    whitener: Tensor  # matrices `(B, d_s, d_s)` whose squared product with (s - m) is the penalty

    @classmethod
    def of(cls, s: Tensor, scale: Tensor) -> "Cloud":
        """From summaries `(B, k, d_s)` of the nearest simulations; the scale is that of all."""
        scale = torch.where(scale > 0, scale, 1.0)
        centre = s.mean(1)
        offset = (s - centre[:, None]) / scale
        covariance = offset.transpose(1, 2) @ offset / s.shape[1]
        variance = covariance.diagonal(dim1=1, dim2=2)
        added = RELATIVE_RIDGE * variance + LEAST_VARIANCE
        factor = torch.linalg.cholesky(covariance + torch.diag_embed(added))
        unit = torch.eye(s.shape[2], dtype=s.dtype, device=s.device).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, unit, upper=False)
        return cls(centre, inverse / scale)

    def residual(self, s: Tensor, problem: Tensor) -> Tensor:
        """Whitened offsets `(n, d_s)` of summaries from the clouds of the problems `(n,)`."""
        offset = (s - self.centre[problem])[..., None]
        return (self.whitener[problem] @ offset).squeeze(-1)


Start = str | tuple[float, ...]
NAMES = ("observed", "nearest", "cloud", "mean", "perturbed")
MAX_BANK = 10_000  # a start only has to fall into the right basin; 20 MB at K = 512
NEAREST_ELEMENTS = 2**24


@dataclass(frozen=True)
class Bank:
    """A sample of simulated datasets to start from."""

    s: Annotated[Tensor, "M d"]  # their summaries `(m, d_s)`, float64
    z_bar: Annotated[Tensor, "M K"]  # their mean embeddings `(m, K)`, float32
    centre: Annotated[Tensor, "d"]  # the mean of all simulated summaries `(d_s,)`, float64
    # the standard deviation of all simulated summaries `(d_s,)`, float64
    scale: Annotated[Tensor, "d"]

    @classmethod
    def of(cls, s: Tensor, z_bar: Tensor, generator: torch.Generator) -> "Bank":
        """A bank of at most 10,000 of the given simulations, chosen at random."""
        chosen = torch.randperm(len(s), generator=generator)[:MAX_BANK].to(s.device)
        s = s.double()
        return cls(s[chosen], z_bar[chosen].float(), s.mean(0), s.std(0, unbiased=False))

    def nearest(self, z_bar: Tensor) -> Tensor:
        """Return summaries `(B, d_s)` of the datasets nearest to embeddings `(B, K)`."""
        half_norm = self.z_bar.square().sum(1) / 2
        rows = max(1, NEAREST_ELEMENTS // len(self.s))
        index = [(half_norm - z @ self.z_bar.T).argmin(1) for z in z_bar.float().split(rows)]
        return self.s[torch.cat(index)]

    def cloud(self, z_bar: Tensor) -> Cloud:
        """Return where datasets with embeddings similar to `(B, K)` have their summaries."""
        num, seen = min(NUM_NEIGHBOURS, len(self.s)), z_bar.float()
        rows = max(1, NEAREST_ELEMENTS // len(self.s))
        near = [(z @ self._directions.T).topk(num, dim=1).indices for z in seen.split(rows)]
        return Cloud.of(self.s[torch.cat(near)], self.scale)

    @cached_property
    def _directions(self) -> Tensor:
        """Simulated embeddings of norm 1, prepared once."""
        return torch.nn.functional.normalize(self.z_bar, dim=1)


def starting_points(
    starts: Sequence[Start],
    restarts: int,
    s_obs: Tensor,
    z_bar: Tensor,
    bank: Bank,
    generator: torch.Generator,
    cloud: Cloud,
) -> Tensor:
    """Return all starts of all datasets in one batch, `(B, S, d_s)`, float64.

    They are names out of `NAMES`, or vectors `(d_s,)`; `restarts` perturbed copies of the first are
    added, normal with the spread of the simulated summaries.
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
            points.append(cloud.centre)
        elif start == "mean":
            points.append(bank.centre.expand_as(s_obs))
        elif start == "perturbed":
            points.append(perturbed(s_obs))
        else:
            vector = torch.tensor(start, dtype=s_obs.dtype, device=s_obs.device)
            if vector.shape != s_obs.shape[1:]:
                then = "A starting vector is a summary: one number for each summary statistic."
                said = f"vectors of length {s_obs.shape[1]}"
                raise checks.wrong("starts", said, f"length {len(vector)}", then)
            points.append(vector.expand_as(s_obs))
    points += [perturbed(points[0]) for _ in range(restarts)]
    return torch.stack(points, dim=1)
