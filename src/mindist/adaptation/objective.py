r"""The objective of a search for the minimum-distance summary, as least squares.

.. math:: \| \mu(s) - \bar z \|^2 + \lambda\, (s - m)^\top C^{-1} (s - m)

With :math:`\mu(s) = h(s) W + b` and the thin SVD :math:`W = U \Sigma V^\top`,

.. math:: \| \mu(s) - \bar z \|^2 = \| h(s) U \Sigma - (\bar z - b) V \|^2 + \text{const} ,

so that least squares runs in as many residuals as :math:`W` has rank, exactly. The term that keeps
the summary near simulated ones (`mindist.adaptation.starts`) adds :math:`d_s` residuals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mindist.adaptation.starts import Cloud
from mindist.protocols import Decoder
from mindist.solvers import gauss_newton
from mindist.solvers.newton import Model

TOLERANCE = 1e-13  # the largest share of the objective that a last step may be predicted to gain


@dataclass(frozen=True)
class ReducedHead:
    r"""The last layer of a decoder, cut to its rank: :math:`W = (U \Sigma) V^\top`.

    Arguments:
        mixing: :math:`U \Sigma`, `(H, rank)`.
        directions: :math:`V`, `(K, rank)`, orthonormal.
    """

    mixing: Tensor
    directions: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> ReducedHead:
        """By the thin SVD of a weight `(H, K)`."""
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = int((values > values[0] * torch.finfo(values.dtype).eps * len(left)).sum())
        return cls(left[:, :rank] * values[:rank], right[:rank].T)


class EmbeddingDistance:
    """The squared distance of a decoder's embedding from observed ones, as least squares.

    Arguments:
        decoder: The fitted decoder.
        z_bar: Observed mean embeddings `(B, K)`, float64.
        cloud: Summaries to stay near, if any.
        stay: The weight of the term that does so.
        head: The decoder's last layer cut to its rank, if it is at hand.
    """

    def __init__(
        self,
        decoder: Decoder,
        z_bar: Tensor,
        cloud: Cloud | None = None,
        stay: float = 0.0,
        head: ReducedHead | None = None,
    ) -> None:
        self.decoder, self.z_bar = decoder, z_bar
        self.cloud, self.stay = (cloud, stay) if stay else (None, 0.0)
        self._given_head = head

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank."""
        return self._given_head or ReducedHead.of(self.decoder.weight)

    @cached_property
    def target(self) -> Tensor:
        """The embeddings less the bias in the directions of the reduced head, `(B, rank)`."""
        return (self.z_bar - self.decoder.bias) @ self.head.directions

    def __call__(self, s: Tensor, problem: Tensor) -> Tensor:
        """Return the objective `(n,)` at summaries `(n, d_s)`, differentiable by autograd."""
        return self.at(self.decoder(s), s, problem)

    def at(self, mu: Tensor, s: Tensor, problem: Tensor) -> Tensor:
        """Return the same where the decoder's embeddings at the summaries are known, `(n, K)`."""
        distance = (mu - self.z_bar[problem]).square().sum(-1)
        if self.cloud is None:
            return distance
        penalty: Tensor = self.cloud.residual(s, problem).square().sum(-1)
        return distance + self.stay * penalty

    def model(self, owner: Tensor) -> Model:
        """Return the objective with its model of Gauss and Newton, for `damped_newton`.

        Problem i is that of dataset `owner[i]`.
        """
        return lambda s, problem: gauss_newton(*self.residual(s, owner[problem]))

    def residual(self, s: Tensor, problem: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals `(n, r)` and Jacobians `(n, r, d_s)`; r is the rank, plus d_s with a cloud."""
        h, slope = self.decoder.basis_and_jacobian(s)
        mixing = self.head.mixing
        r, J = h @ mixing - self.target[problem], _through(slope.mT, mixing).mT
        if self.cloud is None:
            return r, J
        root = math.sqrt(self.stay)
        offset, slope = self.cloud.residual(s, problem), self.cloud.whitener[problem]
        return torch.cat([r, root * offset], 1), torch.cat([J, root * slope], 1)


def _through(values: Tensor, matrix: Tensor) -> Tensor:
    """Return `(n, d, H)` times one matrix `(H, K)`: one product is faster than n."""
    return (values.flatten(0, 1) @ matrix).view(*values.shape[:2], matrix.shape[1])
