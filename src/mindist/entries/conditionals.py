r"""Each entry given the others, as the nearest simulations have it.

The neighbours' mean :math:`\mu` and covariance :math:`S` are a local Gaussian. k neighbours know
D(D+1)/2 covariances badly, so S is shrunk towards the correlations C that neighbourhoods have on
average, in the local spreads s:

.. math:: \Sigma = (1 - \lambda) S + \lambda\, \mathrm{diag}(s)\, C\, \mathrm{diag}(s) .

Sweeping (Beaton 1964) the symmetric table with rows :math:`(\Sigma, d)`, :math:`(d^T, 0)`, where
:math:`d = y - \mu`, on the entries K that are believed gives all that is needed of K and of the
other entries O at once, with :math:`P = \Sigma_{KK}^{-1}`:

.. math:: T_{KK} = -P, \quad T_{OK} = \Sigma_{OK} P, \quad
    T_{OO} = \Sigma_{OO} - \Sigma_{OK} P \Sigma_{KO}, \quad
    T_{Kd} = P d_K, \quad T_{Od} = d_O - \Sigma_{OK} P d_K .

:math:`T_{id} / \sqrt{|T_{ii}|}` is then the standardised residual of entry i given all believed
entries but itself, whether i is believed or not, and :math:`-T_{dd} = d_K^T P d_K`. Sweeping once
more on i takes it in or out, at the price of one outer product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_SPREAD = 1e-3  # of an entry among neighbours, in spreads over all simulations: counts repeat


@dataclass(frozen=True)
class LocalGaussian:
    """Means `(B, D)` and covariances `(B, D, D)` of neighbourhoods, in standard units."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, points: Tensor, correlation: Tensor, shrinkage: float) -> "LocalGaussian":
        """Estimate from neighbours `(B, k, D)`; shrink towards a correlation matrix `(D, D)`."""
        points = points.double()
        mean = points.mean(1)
        off = points - mean[:, None]
        S = off.mT @ off / (points.shape[1] - 1)
        s = S.diagonal(dim1=1, dim2=2).sqrt()
        covariance = torch.lerp(S, s[:, :, None] * correlation * s[:, None], shrinkage)
        covariance.diagonal(dim1=1, dim2=2).add_(LEAST_SPREAD**2)
        return cls(mean, covariance)


class Table:
    """The swept table of a batch, which believes `kept` entries `(B, D)` and can change its mind.

    All of `y`, `(B, D)` in standard units, must be finite; `noise` is variance beyond simulations'.
    """

    def __init__(self, local: LocalGaussian, y: Tensor, kept: Tensor, noise: Tensor) -> None:
        d, w = y - local.mean, kept.double()
        Sigma = local.covariance + torch.diag_embed(noise)
        both = w[:, :, None] * w[:, None]
        P = both * torch.linalg.inv(both * Sigma + torch.diag_embed(1 - w))
        G = Sigma @ P  # rows of O: the regression on K; rows of K: the identity on K
        rest = (1 - w)[:, :, None]
        cross = rest * G
        schur = rest * rest.mT * (Sigma - G @ Sigma)
        kd = (P @ d[..., None])[..., 0]
        od = (1 - w) * (d - (G @ d[..., None])[..., 0])
        last = torch.cat([kd + od, -(d * kd).sum(1, keepdim=True)], 1)
        top = torch.cat([schur - P + cross + cross.mT, last[:, :-1, None]], 2)
        self.values = torch.cat([top, last[:, None]], 1)
        self.kept = kept.clone()

    @property
    def chi_square(self) -> Tensor:
        """Squared Mahalanobis distance of the believed entries, `(B,)`."""
        return -self.values[:, -1, -1]

    @property
    def variance(self) -> Tensor:
        """Variance `(B, D)` of each entry given the believed others."""
        diagonal = self.values.diagonal(dim1=1, dim2=2)[:, :-1]
        return torch.where(self.kept, -1 / diagonal.clamp(max=-1e-300), diagonal)

    @property
    def residual(self) -> Tensor:
        """Each entry minus its mean given the believed others, `(B, D)`."""
        return torch.where(self.kept, self.variance, 1.0) * self.values[:, :-1, -1]

    def toggle(self, rows: Tensor, entries: Tensor) -> None:
        """Take one entry in or out in each of some rows, both `(n,)`."""
        T, n = self.values[rows], torch.arange(len(rows))
        sign = torch.where(self.kept[rows, entries], -1.0, 1.0).to(T)[:, None]
        column, pivot = T[n, :, entries], T[n, entries, entries][:, None]
        T -= column[:, :, None] * (column / pivot)[:, None]
        T[n, :, entries] = T[n, entries] = sign * column / pivot
        T[n, entries, entries] = -1 / pivot[:, 0]
        self.values[rows] = T
        self.kept[rows, entries] = ~self.kept[rows, entries]

    def select(self, rows: Tensor) -> "Table":
        """Return the table of some rows."""
        part = object.__new__(Table)
        part.values, part.kept = self.values[rows], self.kept[rows]
        return part
