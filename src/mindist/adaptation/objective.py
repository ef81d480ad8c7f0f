r"""The objective of a search for the minimum-distance summary, as least squares.

.. math:: \| \mu(s) - \bar z \|^2 + \lambda\, (s - m)^\top C^{-1} (s - m)

With :math:`\mu(s) = h(s) W + b` and the thin SVD :math:`W = U \Sigma V^\top`,

.. math:: \| \mu(s) - \bar z \|^2 = \| h(s) U \Sigma - (\bar z - b) V \|^2 + \text{const} ,

so that least squares runs in as many residuals as :math:`W` has rank, exactly. A decoder in a
basis of cosines has second derivatives for free, and takes Newton's steps (`Cosines`): 5.5 on
average on contaminated OUP data, where those of Gauss and Newton are 20. The term that keeps the
summary near simulated ones (`mindist.adaptation.starts`) adds :math:`d_s` residuals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mindist.adaptation.starts import Cloud
from mindist.protocols import CosineDecoder, Decoder
from mindist.solvers import gauss_newton
from mindist.solvers.newton import Model, Quadratic

# The largest share of the objective that a last step may be predicted to gain, by Newton's Hessian
# and by that of Gauss and Newton.
NEWTON, GAUSS = 1e-11, 1e-13


@dataclass(frozen=True)
class ReducedHead:
    r"""The last layer of a decoder, cut to its rank: :math:`W = (U \Sigma) V^\top`.

    Arguments:
        mixing: :math:`U \Sigma`, `(H, rank)`.
        directions: :math:`V`, `(K, rank)`, orthonormal.

    Example:
        >>> W = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]]).double()
        >>> head = ReducedHead.of(W)
        >>> head.mixing.shape, torch.allclose(head.mixing @ head.directions.T, W)
        (torch.Size([2, 1]), True)
    """

    mixing: Tensor
    directions: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> ReducedHead:
        """By the thin SVD of a weight `(H, K)`."""
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = int((values > values[0] * torch.finfo(values.dtype).eps * len(left)).sum())
        return cls(left[:, :rank] * values[:rank], right[:rank].T)


@dataclass(frozen=True)
class Cosines:
    r"""A decoder as :math:`\mu(s) = \cos(s\, \Omega + \phi)\, A + b`, with its derivatives.

    With :math:`c` and :math:`\sigma` the cosines and sines at s, :math:`r = c A - t` and the force
    :math:`v = A r`,

    .. math:: J_j = -(\sigma \circ \Omega_j) A, \qquad
        g_j = -\Omega_j \cdot (\sigma \circ v), \qquad
        H_{jk} = J_j \cdot J_k - (\Omega_j \circ \Omega_k) \cdot (c \circ v) .

    Residual and gradient are exact. The product of Jacobians is taken in given directions of the
    embeddings: with 64 of them as many steps lead to the minimum (OUP), each in half the time.

    Arguments:
        frequency: :math:`\Omega`, `(d_s, P)`.
        phase: :math:`\phi`, `(P,)`.
        mixing: A, `(P, K)`.
        slopes: :math:`\Omega_j \circ A` for every j, in the directions, `(P, d_s q)`.
        products: :math:`\Omega_j \circ \Omega_k` for every pair, `(P, d_s d_s)`.
    """

    frequency: Tensor
    phase: Tensor
    mixing: Tensor
    slopes: Tensor
    products: Tensor

    @classmethod
    def of(cls, decoder: CosineDecoder, directions: Tensor | None = None) -> Cosines:
        """Prepare a decoder; Jacobians are multiplied in directions `(K, q)`, by default in all."""
        frequency, phase, mixing = decoder.cosines()
        frequency, phase = 2 * math.pi * frequency, 2 * math.pi * phase
        seen = mixing if directions is None else mixing @ directions.to(mixing)
        slopes = (frequency.T[..., None] * seen[:, None]).flatten(1)
        products = (frequency.T[..., None] * frequency.T[:, None]).flatten(1)
        return cls(frequency, phase, mixing, slopes, products)

    def quadratic(self, s: Tensor, pull: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return :math:`|r|^2 - |t|^2`, products of Jacobians, g, and what is left of H.

        At summaries `(n, d_s)` with targets t known by their products :math:`A t`, `(n, P)`.
        """
        angle = torch.addmm(self.phase, s, self.frequency)
        c, sine = angle.cos(), angle.sin_()
        force = torch.addmm(pull, c, self.gram, beta=-1)
        F = torch.linalg.vecdot(c, force - pull)
        J = (sine @ self.slopes).view(*s.shape, -1)
        g = (sine.mul_(force) @ self.frequency.T).neg_()
        rest = (c.mul_(force) @ self.products).neg_().view(*s.shape, s.shape[1])
        return F, J @ J.mT, g, rest

    @cached_property
    def gram(self) -> Tensor:
        """:math:`A A^T`, `(P, P)`: the force in one product, without the residual."""
        return self.mixing @ self.mixing.T

    def __call__(self, s: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the embeddings less the bias at `(n, d_s)`, `(n, K)`, by a product in `dtype`."""
        c = torch.addmm(self.phase, s, self.frequency).cos_()
        return c.to(dtype) @ (self.single if dtype == torch.float32 else self.mixing)

    @cached_property
    def single(self) -> Tensor:
        """A in float32."""
        return self.mixing.float()

    def jacobian(self, s: Tensor) -> Tensor:
        """Return the derivatives of the embedding at `(n, d_s)`, `(n, d_s, K)`."""
        sine = torch.addmm(self.phase, s, self.frequency).sin_()
        slopes = sine[:, None] * self.frequency
        return _through(slopes, self.mixing).neg_()

    def curvature(self, s: Tensor, residual: Tensor) -> Tensor:
        """Return what is left of H beyond products of Jacobians, `(n, d_s, d_s)`."""
        c = torch.addmm(self.phase, s, self.frequency).cos_()
        return (c.mul_(residual @ self.mixing.T) @ self.products).neg_().view(*s.shape, s.shape[1])


class EmbeddingDistance:
    """The squared distance of a decoder's embedding from observed ones, as least squares.

    Arguments:
        decoder: The fitted decoder.
        z_bar: Observed mean embeddings `(B, K)`, float64.
        cloud: Summaries to stay near, if any.
        stay: The weight of the term that does so.
        head: The decoder's last layer cut to its rank, or its cosines, if they are at hand.

    Example:
        >>> from mindist import MinimumDistance
        >>> x = torch.randn(500, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> z_bar = mds.fitted_.embedding.mean(x[:3]).double()[:, :16]
        >>> distance = EmbeddingDistance(mds.fitted_.wide.decoder, z_bar)
        >>> distance(x[:3].mean(1).double(), torch.arange(3)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        decoder: Decoder,
        z_bar: Tensor,
        cloud: Cloud | None = None,
        stay: float = 0.0,
        head: ReducedHead | Cosines | None = None,
    ) -> None:
        self.decoder, self.z_bar = decoder, z_bar
        self.cloud, self.stay = (cloud, stay) if stay else (None, 0.0)
        self._given_head = head

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank."""
        given = self._given_head
        return given if isinstance(given, ReducedHead) else ReducedHead.of(self.decoder.weight)

    @cached_property
    def cosines(self) -> Cosines | None:
        """The decoder's cosines, if it has such a basis."""
        if isinstance(self._given_head, Cosines):
            return self._given_head
        return Cosines.of(self.decoder) if isinstance(self.decoder, CosineDecoder) else None

    @cached_property
    def offset(self) -> Tensor:
        """The embeddings less the bias of the decoder, `(B, K)`."""
        return self.z_bar - self.decoder.bias

    @cached_property
    def parts(self) -> tuple[Tensor, ...]:
        """Each dataset's share of the model: offset times mixing, its square, and the cloud's."""
        assert self.cosines is not None
        offset = self.offset
        parts = (offset @ self.cosines.mixing.T, torch.linalg.vecdot(offset, offset))
        if self.cloud is None:
            return parts
        whitener = self.cloud.whitener
        return *parts, self.cloud.centre, self.stay * (whitener.mT @ whitener)

    @cached_property
    def target(self) -> Tensor:
        """The embeddings less the bias in the directions of the reduced head, `(B, rank)`."""
        return self.offset @ self.head.directions

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

    @property
    def tolerance(self) -> float:
        """Share of the objective below which `damped_newton` takes a last step."""
        return GAUSS if self.cosines is None else NEWTON

    def model(self, owner: Tensor) -> Model:
        """Return the objective with a quadratic model of it, for `damped_newton`.

        Problem i is that of dataset `owner[i]`. For a basis of cosines the Hessian is exact where
        it is positive definite, up to directions; otherwise it is that of Gauss and Newton.
        """
        last: tuple[Tensor, ...] = ()

        def quadratic(s: Tensor, problem: Tensor) -> Quadratic:
            nonlocal last
            if self.cosines is None:
                return gauss_newton(*self.residual(s, owner[problem]))
            if not last or last[0] is not problem:  # gather only when problems have left
                last = (problem, *(part[owner[problem]] for part in self.parts))
            F, A, g, rest = self.cosines.quadratic(s, last[1])
            F = F + last[2]
            if self.cloud is not None:
                offset, P = s - last[3], last[4]
                pull = (P @ offset[..., None]).squeeze(-1)
                F, A, g = F + torch.linalg.vecdot(offset, pull), A + P, g + pull
            exact = A + rest
            failed = torch.linalg.cholesky_ex(exact).info
            if failed.any():
                exact = torch.where((failed == 0)[:, None, None], exact, A)
            return F, exact, g

        return quadratic

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
