r"""Which observations the model explains: density-ratio weights and the contaminated fraction.

Under Huber contamination the data come from :math:`p = a\, p_s + (1 - a)\, q` with a mass
:math:`a \le 1` of the model at the summary :math:`s` and anything else :math:`q`. An observation is
the model's with probability

.. math:: w(x) = \frac{a\, p_s(x)}{p(x)} , \qquad
    p_s(x) \approx \langle \mu(s), z(x) \rangle, \quad
    p(x) \approx \tfrac1N \textstyle\sum_j k(x, x_j) ,

both smoothed by the same local kernel, the first through its random features, the second exactly.
Clipped to [0, 1] they weigh the observations: :math:`\sum_n w_n z(x_n) / \sum_n w_n` estimates the
embedding of the clean part. The mass is the least-squares fit of :math:`a\, \mu(s)` to
:math:`\bar z`,

.. math:: a = \frac{\langle \mu(s), \bar z \rangle}{\|\mu(s)\|^2}, \qquad
    \mathrm{se}(a) = \frac{\mathrm{sd}_n \langle \mu(s), z(x_n) \rangle}{\sqrt N \, \|\mu(s)\|^2} ,

and :math:`\epsilon = 1 - a` the contaminated fraction. A mass below 1 is used in the weights only
where it is smaller than that of 95% of the simulations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.features.embedding import Embedding

MAX_OWN = 1_000  # observations of a dataset that its own density is averaged over
LEAST_MASS = 0.05  # below it there is no model left to weigh by
LEAST_WEIGHT = 1e-12
BLOCK_ELEMENTS = 2**24
EXACT = "donot_use_mm_for_euclid_dist"  # products cancel far from the origin


@dataclass(frozen=True)
class Observations:
    """What the kernels see of every observation of a batch of datasets.

    Arguments:
        wide: Wide features `(B, N, K)`.
        local: Features that estimate densities `(B, N, L)`; the wide ones, without a local kernel.
        own: The density of the data at each of its own observations `(B, N)`, float64.
    """

    wide: Tensor
    local: Tensor
    own: Tensor

    @classmethod
    def of(cls, embedding: Embedding, x: Tensor) -> Observations:
        """Of datasets `(B, N, *event)`."""
        seen = embedding.represent(x)
        shape = (*seen.shape[:-1], *embedding.features.event_shape)
        wide = embedding.features(seen.reshape(shape))
        local = wide if embedding.local is None else embedding.local(seen.reshape(shape))
        return cls(wide, local, own_density(seen, embedding.density.bandwidth))

    def __getitem__(self, index: Tensor) -> Observations:
        """Those of some datasets."""
        return Observations(self.wide[index], self.local[index], self.own[index])

    def mean(self, weight: Tensor) -> Tensor:
        """Weighted mean of the wide features, `(B, K)`, float64."""
        share = weight / weight.sum(1, keepdim=True).clamp(min=LEAST_WEIGHT)
        return torch.einsum("bn,bnk->bk", share.to(self.wide.dtype), self.wide).double()

    def fit(self, mu: Tensor) -> Fit:
        """How well local embeddings `(B, L)` of the model explain each observation."""
        density = (self.local @ mu.to(self.local.dtype)[..., None]).squeeze(-1).double()
        square = mu.double().square().sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        mass = density.mean(1) / square
        spread = (density - density.mean(1, keepdim=True)).square().mean(1).sqrt()
        error = spread / (square * density.shape[1] ** 0.5)
        return Fit(density, self.own, mass, error)


@dataclass(frozen=True)
class Fit:
    """The model's and the data's density at each observation, and the model's mass.

    Arguments:
        density: Of the model `(B, N)`; an estimate, may be below 0.
        own: Of the data `(B, N)`.
        mass: a `(B,)`, not clipped.
        error: Its standard error `(B,)`.

    Example:
        >>> fit = Fit(torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, 0.5]]),
        ...           torch.tensor([0.5]), torch.tensor([0.1]))
        >>> fit.weight(threshold=0.9), fit.score(threshold=0.9)
        (tensor([[0.5000, 0.0000]]), tensor([[0.6667, 1.0000]]))
    """

    density: Tensor
    own: Tensor
    mass: Tensor
    error: Tensor

    @property
    def epsilon(self) -> Tensor:
        """The contaminated fraction `(B,)`, between 0 and 1."""
        return (1 - self.mass).clamp(0, 1)

    def used_mass(self, threshold: float) -> Tensor:
        """The mass where it is below the threshold, else 1, `(B,)`."""
        return torch.where(self.mass < threshold, self.mass.clamp(LEAST_MASS, 1), 1.0)

    def weight(self, threshold: float) -> Tensor:
        """The weights `(B, N)`, in [0, 1]."""
        return (self.used_mass(threshold)[:, None] * self.density / self.own).clamp(0, 1)

    def score(self, threshold: float) -> Tensor:
        """The data's density in that of data and model, `(B, N)`: 1 where no model explains it."""
        model = self.used_mass(threshold)[:, None] * self.density.clamp(min=0)
        return self.own / (self.own + model)


def own_density(seen: Tensor, bandwidth: float) -> Tensor:
    """The exact kernel density of each dataset at its own observations.

    Arguments:
        seen: Represented observations `(B, N, D)`.
        bandwidth: Of the Gaussian kernel.

    Returns:
        Means `(B, N)` of the kernel, float64, over at most 1,000 observations and the one itself.

    Example:
        >>> own_density(torch.tensor([[[0.0], [0.0], [50.0]]]), 1.0)
        tensor([[0.6667, 0.6667, 0.3333]], dtype=torch.float64)
    """
    points = seen.double()
    num, every = points.shape[1], max(1, -(-points.shape[1] // MAX_OWN))
    # An observation that is not among the few counts itself too.
    alone = (torch.arange(num, device=seen.device) % every > 0).double()
    parts = []
    for block in points.split(max(1, BLOCK_ELEMENTS // (num * min(num, MAX_OWN)))):
        few = block[:, ::every]
        kernel = torch.exp(
            -torch.cdist(block, few, compute_mode=EXACT).square() / (2 * bandwidth**2)
        )
        parts.append((kernel.sum(2) + alone) / (few.shape[1] + alone))
    return torch.cat(parts) if parts else points.new_empty(0, num)


__all__ = ["Fit", "Observations", "own_density"]
