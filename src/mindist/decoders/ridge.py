r"""Closed-form decoder: ridge regression on random Fourier features of the standardised summary.

.. math::
    \mu(s) = h(s) W + b, \qquad h(s) = \sqrt{2/P}\, \cos(\tilde s\, \Omega / \ell + \phi), \qquad
    W = (H^\top H + \lambda I)^{-1} H^\top Z ,

with :math:`H` and :math:`Z` centred by their means. The normal equations are sums over simulations,
which take the same memory for any number, so that more may arrive: `begin` with some, `add` more,
`finish`. The length-scale :math:`\ell` is chosen on simulations held out of a subsample, the ridge
:math:`\lambda` on a tenth of those that `begin` saw, whose sums are then added back. In the
eigenbasis :math:`H^\top H = V \Lambda V^\top` the weights are :math:`V (\Lambda + \lambda I)^{-1}
V^\top H^\top Z`, so that a held-out error costs :math:`O(P^2 + P K)` for each ridge. The same
matrices give the leave-one-out distance of every simulation,

.. math:: \|\bar z_i - \mu_{-i}(s_i)\|^2 = \|\bar z_i - \mu(s_i)\|^2 / (1 - \eta_i)^2 , \qquad
    \eta_i = \tfrac{1}{M} + h_i^\top (H^\top H + \lambda I)^{-1} h_i .

It minimises the paper's loss (Section 3.2) over a kernel space; docs/method.md compares the errors.

References:
    Rahimi and Recht, Random Features for Large-Scale Kernel Machines, NeurIPS 2007.
    Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 21 (1979).
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor

from mindist import checks
from mindist.schema import INLINE

ROUNDING = 1e-7  # of float32: a smaller relative spread is that of a constant


@dataclass(frozen=True)
class Standardiser:
    """Subtract the mean and divide by the standard deviation, element by element."""

    centre: Annotated[Tensor, "d"]
    # Infinite where an element does not vary: mapped to 0, it has no slope for a search to follow.
    scale: Annotated[Tensor, "any d"]

    @classmethod
    def of(cls, values: Tensor) -> "Standardiser":
        """Standardise to the mean and spread of `values`, `(M, D)`."""
        values = values.double()
        centre, scale = values.mean(dim=0), values.std(dim=0, unbiased=False)
        return cls(centre, torch.where(scale > ROUNDING * centre.abs(), scale, torch.inf))

    def __call__(self, values: Tensor) -> Tensor:
        """Return standardised values, in the precision of the input."""
        return (values - self.centre.to(values.dtype)) / self.scale.to(values.dtype)


@dataclass
class Sums:
    """Sums over simulations, float64, of rows of a basis, of targets and of their products."""

    count: int
    h: Tensor  # rows (P,)
    gram: Tensor  # their outer products (P, P)
    z: Tensor  # targets (K,)
    cross: Tensor  # outer products of row and target (P, K)
    squared: Tensor  # squared lengths of the targets

    @classmethod
    def empty(cls, size: int, width: int, device: torch.device) -> "Sums":
        """No simulations yet, of a basis with P = `size` and targets with K = `width`."""
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        return cls(0, zeros(size), zeros(size, size), zeros(width), zeros(size, width), zeros(()))

    def add(self, h: Tensor, z: Tensor) -> "Sums":
        """Add rows `(n, P)` with targets `(n, K)`, both float64; return self."""
        self.count += len(h)
        self.h += h.sum(0)
        self.gram.addmm_(h.T, h)
        self.z += z.sum(0)
        self.cross.addmm_(h.T, z)
        self.squared += z.square().sum()
        return self

    def centred(self) -> tuple[Tensor, Tensor]:
        """Return the products of rows `(P, P)`, and of rows and targets `(P, K)`, about means."""
        mean = self.h / self.count
        return self.gram - torch.outer(self.h, mean), self.cross - torch.outer(mean, self.z)

    def __add__(self, other: "Sums") -> "Sums":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(one + more for one, more in pairs))


def held_out_errors(train: Sums, test: Sums, ridges: Sequence[float]) -> dict[float, float]:
    r"""Return the mean of :math:`\|z - h W - b\|^2` over the test simulations, for every ridge."""
    gram, cross = train.centred()
    values, vectors = torch.linalg.eigh(gram)
    rotated = vectors.T @ cross
    quadratic = (vectors.T @ test.gram @ vectors) * (rotated @ rotated.T)
    linear = (rotated * (vectors.T @ test.cross)).sum(1)
    train_h, test_h, errors = vectors.T @ train.h, vectors.T @ test.h, {}
    for ridge in ridges:
        d = 1 / (values.clamp(min=0) + ridge * train.count)
        bias = (train.z - (train_h * d) @ rotated) / train.count
        square = d @ quadratic @ d + 2 * ((test_h * d) @ rotated) @ bias
        product = d @ linear + test.z @ bias
        mean = (test.squared - 2 * product + square) / test.count
        errors[ridge] = float(mean + bias @ bias)
    return errors


# Length-scales in units of sqrt(d_s), the typical distance of standardised summaries; a smooth
# task (Gaussian) takes a long one, summaries on a thin surface (SIR) a short one.
LENGTH_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)
# Ridges for each simulation, relative to a kernel with k(s, s) = 1. Smaller ones, chosen on a tenth
# of the simulations, fail at rare summaries: down to 1e-11 the mean error over eight fits to the
# OUP is 19% larger in the wide kernel and 73% in the local one; on SIR and Gaussian it is the same.
RIDGES = tuple(10.0**power for power in range(-9, -1))
# Enough to rank length-scales: with 3,000 rows the OUP's local decoder is twice as bad on average
# over eight fits.
SELECTION_ROWS, SELECTION_HELD_OUT = 4_000, 0.25
HELD_OUT = 0.1
BLOCK_ROWS = 1_024


@dataclass(eq=False, repr=False)
class RidgeDecoder:
    r"""Ridge regression on random Fourier features of the summary; the default decoder.

    Arguments:
        num_basis: P, the number of random features of the summary. From 128 on, the held-out error
            on the Gaussian task is flat (docs/method.md, "Decoders").
        length_scales: Candidates for :math:`\ell`, in units of :math:`\sqrt{d_s}`.
        ridges: Candidates for :math:`\lambda / M`.

    Example:
        >>> s = torch.linspace(-2, 2, 200)[:, None]
        >>> decoder = RidgeDecoder(num_basis=50).fit(s, s.sin(), generator=torch.Generator())
        >>> bool((decoder(s.double()) - s.sin()).abs().max() < 1e-3)
        True
    """

    num_points = 0
    num_basis: Annotated[int, range(1, 2**31)] = 500
    _: KW_ONLY
    length_scales: tuple[float, ...] = LENGTH_SCALES
    ridges: tuple[float, ...] = RIDGES
    length_scale: float = field(init=False)
    ridge: float = field(init=False)
    held_out_error: Annotated[float, "any"] = field(init=False)
    weight: Annotated[Tensor, "H K"] = field(init=False)
    bias: Annotated[Tensor, "K"] = field(init=False)
    frequency: Annotated[Tensor, "d H"] = field(init=False)
    phase: Annotated[Tensor, "H"] = field(init=False)
    standardise: Annotated[Standardiser, INLINE] = field(init=False)

    def __post_init__(self) -> None:
        self.length_scales, self.ridges = tuple(self.length_scales), tuple(self.ridges)

    def fit(
        self, s: Tensor, z_bar: Tensor, *, generator: torch.Generator, **_: Any
    ) -> "RidgeDecoder":
        """Fit to summaries `(M, d_s)` and mean embeddings `(M, K)`; `x`, `features` are unused."""
        return self.begin(s, z_bar, generator=generator).finish()

    def begin(self, s: Tensor, z_bar: Tensor, *, generator: torch.Generator) -> "RidgeDecoder":
        """Choose basis and length-scale on some simulations, and begin to sum over them."""
        if len(s) < 2:  # some to learn from, some to judge by
            said = "some hundreds of simulated datasets, 380 to detect at alpha = 0.05"
            got = f"so few that {len(s)} are left to fit a decoder to"
            raise checks.wrong("x", said, got, "Simulate more.")
        dim, size = s.shape[1], min(self.num_basis, max(1, len(s) // 2))
        normal = torch.randn(dim, size, dtype=torch.float64, generator=generator).to(s.device)
        phase = torch.rand(size, dtype=torch.float64, generator=generator).to(s.device)
        order = torch.randperm(len(s), generator=generator).to(s.device)
        self.standardise, self.phase = Standardiser.of(s), 2 * math.pi * phase
        chosen, errors = order[:SELECTION_ROWS], {}
        rows, column = s[chosen].double(), z_bar[chosen].double()
        num = max(1, round(SELECTION_HELD_OUT * len(chosen)))
        empty = partial(Sums.empty, size, device=s.device)
        for length_scale in self.length_scales:
            self.frequency = normal / (length_scale * math.sqrt(dim))
            h = self.basis(rows)
            train, test = (
                empty(column.shape[1]).add(h[part], column[part])
                for part in (slice(num, None), slice(num))
            )
            errors[length_scale] = min(held_out_errors(train, test, self.ridges).values())
        self.length_scale = min(errors, key=lambda key: errors[key])
        self.frequency = normal / (self.length_scale * math.sqrt(dim))
        first = order[:BLOCK_ROWS]
        # Sums about an origin near the means have small rounding errors.
        self._origin = self.basis(s[first].double()).mean(0), z_bar[first].double().mean(0)
        self._train, self._test = empty(z_bar.shape[1]), empty(z_bar.shape[1])
        held_out = max(1, round(HELD_OUT * len(s)))
        self._add(self._test, s[order[:held_out]], z_bar[order[:held_out]])
        self._add(self._train, s[order[held_out:]], z_bar[order[held_out:]])
        return self

    def add(self, s: Tensor, z_bar: Tensor) -> None:
        """Add further simulations, `(n, d_s)` and `(n, K)`, to a fit that has begun."""
        self._add(self._train, s, z_bar)

    def _add(self, sums: Sums, s: Tensor, z_bar: Tensor) -> None:
        h, z = self._origin
        for rows, targets in zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True):
            sums.add(self.basis(rows.double()) - h, targets.double() - z)

    def finish(self) -> "RidgeDecoder":
        """Choose the ridge, and solve for the weights with all simulations that were added."""
        errors = held_out_errors(self._train, self._test, self.ridges)
        self.ridge = min(errors, key=lambda key: errors[key])
        self.held_out_error = errors[self.ridge]
        sums, (h, z) = self._train + self._test, self._origin
        self._centre, self._target_mean = h + sums.h / sums.count, z + sums.z / sums.count
        self._count = sums.count
        # Rounding of the sums is 1e-13 of M, the least ridge 1e-9: the factor exists.
        damped, cross = sums.centred()
        damped.diagonal().add_(self.ridge * sums.count)
        factor = torch.linalg.cholesky(damped)
        # With u = (h - mean h) whitener: eta = 1/M + |u|^2 and mu = mean z + u coefficients.
        unit = torch.eye(len(factor)).to(factor)
        self._whitener = torch.linalg.solve_triangular(factor, unit, upper=False).T.contiguous()
        self._coefficients = self._whitener.T @ cross
        self.weight = self._whitener @ self._coefficients
        self.bias = self._target_mean - self._centre @ self.weight
        del self._train, self._test, self._origin
        return self

    def basis(self, s: Tensor) -> Tensor:
        """h(s), `(B, P)`."""
        return self._phase(s).cos() * math.sqrt(2 / len(self.phase))

    def _phase(self, s: Tensor) -> Tensor:
        return self.standardise(s) @ self.frequency.to(s.dtype) + self.phase.to(s.dtype)

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """h(s), `(B, P)`, and its derivative `(B, P, d_s)`."""
        phase, amplitude = self._phase(s), math.sqrt(2 / len(self.phase))
        slope = (self.frequency / self.standardise.scale[:, None]).T.to(s.dtype)
        return amplitude * phase.cos(), -amplitude * phase.sin()[..., None] * slope

    def __call__(self, s: Tensor) -> Tensor:
        """Return decoded mean embeddings `(B, K)`, float64."""
        return self.basis(s.double()) @ self.weight + self.bias

    @torch.no_grad()
    def leave_one_out_residuals(self, s: Tensor, z_bar: Tensor) -> Tensor:
        r"""Return :math:`\bar z_i - \mu_{-i}(s_i)`, `(n, K)`, of simulations that the fit saw."""
        dtype = z_bar.dtype
        whitener, coefficients = self._whitener.to(dtype), self._coefficients.to(dtype)
        residual = z_bar - self._target_mean.to(dtype)
        for part, rows in zip(residual.split(BLOCK_ROWS), s.split(BLOCK_ROWS), strict=True):
            u = (self.basis(rows.double()) - self._centre).to(dtype) @ whitener
            leverage = 1 / self._count + u.square().sum(-1, keepdim=True)
            part.addmm_(u, coefficients, alpha=-1).div_(1 - leverage)
        return residual
