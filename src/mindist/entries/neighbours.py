r"""Simulated vectors nearest to an observed one, and each entry given the others as they have it.

.. math:: d_w(x, y)^2 = \textstyle\sum_i w_i (x_i - y_i)^2
    = \sum_i w_i x_i^2 - 2 \sum_i x_i\, w_i y_i + \mathrm{const}

in units of each entry's spread over all simulations, with :math:`w_i` 1 for the entries that are
believed and 0 for the others: two matrix products for a batch of vectors. Which entries to believe
first comes from the trimmed distance, the sum of the smallest 60% of :math:`(x_i - y_i)^2`: four
wrong entries of ten cannot spoil it.

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
from typing import Annotated

import torch
from torch import Tensor

from mindist.schema import UNSTORED

BLOCK = 2**24  # numbers held at once: 64 MB
MARGIN = 0.5  # an entry outside the simulated range counts as if this far outside it, in spreads
ANCHORS, ANCHOR_NUMBERS = 2_000, 2**16  # simulations that starts lie near, numbers of these
LEAST_SPREAD = 1e-3  # of an entry among neighbours, in spreads over all simulations: counts repeat
TRIMMED = 0.6  # share of the entries that a start believes


@dataclass(frozen=True)
class Bank:
    """Simulated vectors in standard units, entry by entry, float32."""

    z: Annotated[Tensor, "M D"]
    centre: Annotated[Tensor, "D"]
    scale: Annotated[Tensor, "D"]  # 1 for an entry that never varies
    squares: Annotated[Tensor | None, UNSTORED] = None

    @classmethod
    def standardise(cls, x: Tensor) -> "Bank":
        """Build from simulated vectors `(M, D)`."""
        x = x.double()
        centre = x.median(0).values
        scale = (x - centre).square().mean(0).sqrt()
        scale = torch.where(scale > 1e-12 * centre.abs(), scale, torch.ones_like(scale))
        return cls(((x - centre) / scale).float(), centre, scale)

    def __post_init__(self) -> None:
        object.__setattr__(self, "squares", self.z.square())
        low, high = self.z.aminmax(dim=0)
        object.__setattr__(self, "_range", (low.double() - MARGIN, high.double() + MARGIN))

    def units(self, x: Tensor) -> Tensor:
        """Return vectors `(B, D)` in standard units, as float64."""
        return (x.double() - self.centre) / self.scale

    def clipped(self, y: Tensor) -> Tensor:
        """Return vectors in standard units, no farther than a margin outside the bank."""
        return y.clamp(*self._range)  # type: ignore[attr-defined]

    def nearest(self, y: Tensor, believed: Tensor, k: int, skip: int = 0) -> Tensor:
        """Return the k nearest simulations `(B, k)`, nearest first, by the entries believed.

        The nearest `skip` are left out: 1 for vectors of the bank itself.
        """
        w = believed.to(self.z)
        wy = w * self.clipped(y).to(self.z)
        found = []
        size = max(1, BLOCK // max(len(self.z), 2 * k * y.shape[1]))
        for rows in torch.arange(len(y)).split(size):
            distance = w[rows] @ self.squares.T - 2 * wy[rows] @ self.z.T  # type: ignore[union-attr]
            near = distance.topk(min(len(self.z), k + skip + k // 4 + 8), 1, largest=False).indices
            # Once more without cancellation, so that a vector's neighbours do not depend on others.
            off = (self.z[near] - self.clipped(y[rows]).to(w)[:, None]) * w[rows, None]
            order = off.square().sum(2).topk(k + skip, 1, largest=False).indices[:, skip:]
            found.append(near.gather(1, order))
        return torch.cat(found)

    def starts(self, y: Tensor, observed: Tensor, num: int) -> Tensor:
        """Return sets of entries to begin with, `(B, num, D)`: those near to one simulation each.

        Some simulations are sorted by trimmed distance; the best is the first start, each further
        one the one whose entries differ most from the earlier starts', of the best.
        """
        z, starts = self.z[: min(ANCHORS, ANCHOR_NUMBERS // y.shape[1])], []
        size = (TRIMMED * observed.sum(1)).ceil().long().clamp(min=1)
        y = self.clipped(y).to(z)
        for rows in torch.arange(len(y)).split(max(1, BLOCK // z.numel() // 4)):
            off = (y[rows, None] - z).square().masked_fill_(~observed[rows, None], torch.inf)
            ordered = off.sort(2).values.cumsum(2)
            last = (size[rows] - 1)[:, None, None].expand(-1, len(z), 1)
            trimmed = ordered.gather(2, last)[..., 0]
            best = trimmed.topk(min(8 * num, len(z)), dim=1, largest=False).indices
            near = off.gather(1, best[..., None].expand(-1, -1, y.shape[1]))
            starts.append(_distinct(near.argsort(2).argsort(2) < size[rows, None, None], num))
        return torch.cat(starts)


def _distinct(sets: Tensor, num: int) -> Tensor:
    """Choose `num` of the sets `(B, C, D)`: the first, then always the one least like them."""
    chosen = [sets[:, 0]]
    overlap = torch.zeros(sets.shape[:2], device=sets.device)
    size = sets[:, 0].sum(1).clamp(min=1)[:, None]
    order = torch.linspace(0, 0.2, sets.shape[1], device=sets.device)  # of equals the nearer one
    for _ in range(num - 1):
        overlap = torch.maximum(overlap, (sets & chosen[-1][:, None]).sum(2) / size)
        chosen.append(sets[torch.arange(len(sets)), (overlap + order).argmin(1)])
    return torch.stack(chosen, 1)


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
