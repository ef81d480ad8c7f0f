r"""The simulated summaries nearest in embedding space, and the term that keeps a search near them.

Summaries of simulations may fill a thin surface; off it, decoder and posterior extrapolate. With
the mean :math:`m` and covariance :math:`C` of the k simulated summaries whose embeddings have the
largest cosine with the data's, the search minimises

.. math:: \| \mu(s) - \bar z \|^2 + \lambda\, (s - m)^\top C^{-1} (s - m), \qquad
    \lambda = c \; \mathbb{E} \| \mu(S) - \bar z \|^2 .

Were the residuals Gaussian with equal variance in each of :math:`1/c` directions, and the summary's
prior that of the cloud, the minimiser would be the posterior mode of the summary given the
embedding. The cosine ignores the mass that contamination takes from an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_NEIGHBOURS = 50
RELATIVE_RIDGE = 1e-3  # of the covariance of the cloud, against directions without spread
BLOCK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Cloud:
    """Where simulations with similar embeddings have their summaries.

    Arguments:
        centre: Means `(B, d_s)`.
        whitener: Matrices `(B, d_s, d_s)` whose squared product with (s - m) is the penalty.

    Example:
        >>> s = torch.tensor([[[0.0], [2.0]]]).double()
        >>> cloud = Cloud.of(s, torch.ones(1).double())
        >>> cloud.centre, (cloud.whitener * (2 - cloud.centre)).square().round(decimals=2)
        (tensor([[1.]], dtype=torch.float64), tensor([[[1.]]], dtype=torch.float64))
    """

    centre: Tensor
    whitener: Tensor

    @classmethod
    def of(cls, s: Tensor, scale: Tensor) -> Cloud:
        """From the summaries `(B, k, d_s)` of the nearest simulations, float64.

        Arguments:
            s: The summaries.
            scale: Standard deviations `(d_s,)` of all simulated summaries.
        """
        scale = torch.where(scale > 0, scale, 1.0)
        centre = s.mean(1)
        offset = (s - centre[:, None]) / scale
        covariance = offset.transpose(1, 2) @ offset / s.shape[1]
        variance = covariance.diagonal(dim1=1, dim2=2)
        # A summary that is equal in the whole cloud may move by a millionth of its spread.
        ridge = RELATIVE_RIDGE * variance + 1e-12
        factor = torch.linalg.cholesky(covariance + torch.diag_embed(ridge))
        unit = torch.eye(s.shape[2], dtype=s.dtype, device=s.device).expand_as(factor)
        inverse = torch.linalg.solve_triangular(factor, unit, upper=False)
        return cls(centre, inverse / scale)

    def residual(self, s: Tensor, problem: Tensor) -> Tensor:
        """Whitened offsets `(n, d_s)` of summaries from the clouds of the problems `(n,)`."""
        offset = (s - self.centre[problem])[..., None]
        return (self.whitener[problem] @ offset).squeeze(-1)


def most_alike(z_bar: Tensor, simulated: Tensor, num: int = NUM_NEIGHBOURS) -> Tensor:
    """Indices `(B, k)` of the simulated embeddings `(m, K)` with the largest cosine to `(B, K)`."""
    unit = torch.nn.functional.normalize(simulated.float(), dim=1)
    rows = max(1, BLOCK_ELEMENTS // len(unit))
    num = min(num, len(unit))
    index = [(z @ unit.T).topk(num, dim=1).indices for z in z_bar.float().split(rows)]
    return torch.cat(index) if index else torch.empty(0, num, dtype=torch.long)


__all__ = ["NUM_NEIGHBOURS", "Cloud", "most_alike"]
