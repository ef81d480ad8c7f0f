r"""Each entry of a vector given the others, as the nearest simulations have it.

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

Of more than some hundred entries the table is too large. There
:math:`\Sigma = V \Sigma_p V^T + \mathrm{diag}(\psi)`, with principal components V of the
simulations, the local covariance :math:`\Sigma_p` along these, and the variance :math:`\psi` of
what they leave. With :math:`A = \Sigma_p^{-1} + V_K^T \psi_K^{-1} V_K = C^{-1}`,
:math:`f = A^{-1} V_K^T \psi_K^{-1} d_K` and :math:`e = d - V f`, Woodbury's identity gives the same

.. math:: T_{Kd} = \psi_K^{-1} e_K, \quad T_{Od} = e_O, \quad
    T_{KK} = -\psi_K^{-1} + \psi_K^{-1} V_K A^{-1} V_K^T \psi_K^{-1}, \quad
    T_{OO} = \psi_O + V_O A^{-1} V_O^T .
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

LEAST_SPREAD = 1e-3  # of an entry among neighbours, in spreads over all simulations: counts repeat


def shrunk(points: Tensor, correlation: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Return means and covariances of neighbourhoods `(R, k, D)`, shrunk to a correlation."""
    mean = points.mean(1)
    off = points - mean[:, None]
    S = (off.mT @ off).double() / (points.shape[1] - 1)
    s = S.diagonal(dim1=1, dim2=2).sqrt()
    covariance = torch.lerp(S, s[:, :, None] * correlation * s[:, None], shrinkage)
    covariance.diagonal(dim1=1, dim2=2).add_(LEAST_SPREAD**2)
    return mean.double(), covariance


class Swept:
    r"""What sweeping says of rows that believe `kept` entries `(R, D)` and can change their mind.

    A kind of table has `last(rows, members)`: T_id of members `(n or 1, G, m)` of groups in some
    rows `(n,)`, `(n, G, m)`; `block(rows, members)`: T among these, `(n, G, m, m)`;
    `toggle(rows, entries)`, which takes one entry of each row in or out; and `move(delta)`:
    :math:`\Sigma_{\cdot K} P \delta_K` of vectors `(R, n, D)`.
    """

    kept: Tensor
    d: Tensor  # y minus the local mean, (R, D)
    scale: Tensor  # of each group's residual, (R, G)
    last: Callable[[Tensor, Tensor], Tensor]
    block: Callable[[Tensor, Tensor], Tensor]
    toggle: Callable[[Tensor, Tensor], None]
    move: Callable[[Tensor], Tensor]

    def each(self) -> tuple[Tensor, Tensor]:
        """Return T_ii and T_id of all entries, `(R, D)`."""
        rows, members = torch.arange(len(self.d)), torch.arange(self.d.shape[1])[None, :, None]
        return self.block(rows, members)[..., 0, 0], self.last(rows, members)[..., 0]

    @property
    def chi_square(self) -> Tensor:
        """Squared Mahalanobis distance of the believed entries, `(R,)`."""
        return (self.d * self.kept * self.each()[1]).sum(1)

    def conditional(self) -> tuple[Tensor, Tensor]:
        """Return each entry minus its mean given the believed others, and its variance."""
        diagonal, last = self.each()
        variance = torch.where(self.kept, -1 / diagonal.clamp(max=-1e-300), diagonal)
        return torch.where(self.kept, variance, 1.0) * last, variance

    def select(self, rows: Tensor) -> "Swept":
        """Return some rows."""
        part = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(part, name, value if name == "V" else value[rows])
        return part


class Table(Swept):
    """The whole table: of `y`, `(R, D)` in standard units, all must be finite."""

    def __init__(self, mean: Tensor, Sigma: Tensor, y: Tensor, kept: Tensor, noise: Tensor) -> None:
        d, w = y - mean, kept.double()
        self.Sigma, self.d, self.kept = Sigma, d, kept.clone()
        Sigma = Sigma + torch.diag_embed(noise)
        both = w[:, :, None] * w[:, None]
        P = both * torch.linalg.inv(both * Sigma + torch.diag_embed(1 - w))
        G = Sigma @ P  # rows of O: the regression on K; rows of K: the identity on K
        rest = (1 - w)[:, :, None]
        cross = rest * G
        schur = rest * rest.mT * (Sigma - G @ Sigma)
        kd = (P @ d[..., None])[..., 0]
        od = (1 - w) * (d - (G @ d[..., None])[..., 0])
        self.values = torch.cat([schur - P + cross + cross.mT, (kd + od)[..., None]], 2)

    def last(self, rows: Tensor, members: Tensor) -> Tensor:
        """Return T_id."""
        own: Tensor = self.values[rows[:, None, None], members, -1]
        return own

    def block(self, rows: Tensor, members: Tensor) -> Tensor:
        """Return T among members of groups."""
        n = rows[:, None, None, None]
        own: Tensor = self.values[n, members[..., None], members[..., None, :]]
        return own

    def toggle(self, rows: Tensor, entries: Tensor) -> None:
        """Sweep on one entry of each row."""
        T, n = self.values[rows], torch.arange(len(rows))
        sign = torch.where(self.kept[rows, entries], -1.0, 1.0).to(T)[:, None]
        column, pivot = T[n, :, entries], T[n, entries, entries][:, None]
        line = T[n, entries]
        T -= column[:, :, None] * (line / pivot)[:, None]
        T[n, :, entries] = sign * column / pivot
        T[n, entries] = sign * line / pivot
        T[n, entries, entries] = -1 / pivot[:, 0]
        self.values[rows] = T
        self.kept[rows, entries] = ~self.kept[rows, entries]

    def move(self, delta: Tensor) -> Tensor:
        """Regress on the believed entries."""
        both = self.kept[:, :, None] & self.kept[:, None]
        gain = self.Sigma @ torch.where(both, -self.values[:, :, :-1], 0.0)
        return delta @ gain.mT


class Factors(Swept):
    """The same from principal components `V`, `(D, r)`; see the module."""

    def __init__(
        self, points: Tensor, shape: "Shape", y: Tensor, kept: Tensor, noise: Tensor
    ) -> None:
        self.V, self.kept = shape.basis.double(), kept.clone()
        along = points @ shape.basis
        Sigma = shrunk(along, shape.correlation, shape.shrinkage)[1]
        mean = points.mean(1, keepdim=True)
        left = points - mean - (along - along.mean(1, keepdim=True)) @ shape.basis.T
        self.psi0 = left.square().mean(1).double() + LEAST_SPREAD**2
        self.psi, self.d = self.psi0 + noise, y - mean[:, 0].double()
        weights = kept / self.psi
        self.C = torch.linalg.inv(torch.linalg.inv(Sigma) + (self.V.T * weights[:, None]) @ self.V)
        self.b = (weights * self.d) @ self.V

    def last(self, rows: Tensor, members: Tensor) -> Tensor:
        """Return T_id."""
        n = rows[:, None, None]
        f = self.C[rows] @ self.b[rows][..., None]
        e = self.d[n, members] - (self.V[members] @ f[:, None])[..., 0]
        own: Tensor = torch.where(self.kept[n, members], e / self.psi[n, members], e)
        return own

    def block(self, rows: Tensor, members: Tensor) -> Tensor:
        """Return T among members of groups."""
        n, (G, m) = rows[:, None, None], members.shape[1:]
        kept, psi = self.kept[n, members], self.psi[n, members]
        V = self.V[members]
        VC = (V.flatten(1, 2) @ self.C[rows]).view(-1, G, m, V.shape[3])
        own = VC @ V.mT if m > 1 else (VC * V).sum(3)[..., None]
        w = torch.where(kept, psi, 1.0)
        own = own / (w[..., None] * w[..., None, :])
        T: Tensor = own + torch.diag_embed(torch.where(kept, -1 / psi, psi))
        return T

    def toggle(self, rows: Tensor, entries: Tensor) -> None:
        """Add what one entry of each row says of the components, or take it away."""
        v = self.V[entries]
        sign = torch.where(self.kept[rows, entries], -1.0, 1.0)
        Cv = (self.C[rows] @ v[..., None])[..., 0]
        share = sign / (self.psi[rows, entries] + sign * (v * Cv).sum(1))
        self.C[rows] -= share[:, None, None] * Cv[:, :, None] * Cv[:, None]
        self.b[rows] += (sign * self.d[rows, entries] / self.psi[rows, entries])[:, None] * v
        self.kept[rows, entries] = ~self.kept[rows, entries]

    def move(self, delta: Tensor) -> Tensor:
        """Regress on the believed entries."""
        weights = (self.kept / self.psi)[:, None]
        along: Tensor = (weights * delta) @ self.V @ self.C @ self.V.T
        return along + weights * self.psi0[:, None] * (delta - along)


@dataclass(frozen=True)
class Shape:
    """What neighbourhoods have in common: see the module."""

    correlation: Annotated[Tensor, "r r"]
    basis: Annotated[Tensor, "D r"]  # V, float32; the identity where each entry is a component
    shrinkage: float

    def sweep(self, points: Tensor, y: Tensor, kept: Tensor, noise: Tensor) -> Swept:
        """Return what neighbours `(R, k, D)` say of vectors `(R, D)` with further `noise`."""
        if self.basis.shape[0] > self.basis.shape[1]:
            return Factors(points, self, y, kept, noise)
        return Table(*shrunk(points, self.correlation, self.shrinkage), y, kept, noise)
