r"""Closed-form decoder: ridge regression on random Fourier features of the standardised summary.

.. math::
    \mu(s) = h(s) W + b, \qquad h(s) = \sqrt{2/P}\, \cos(\tilde s\, \Omega / \ell + \phi), \qquad
    W = (H^\top H + \lambda I)^{-1} H^\top Z ,

with centred :math:`H` and :math:`Z`. The normal equations are sums over simulations,
so the fit is one pass over them, in blocks, and simulations
may go on arriving: `begin` with some, `add` more, `finish`. The length-scale :math:`\ell` is chosen
on simulations held out of a subsample, the ridge :math:`\lambda` on a tenth of those that `begin`
saw, each from one eigendecomposition, and the held-out sums are then added back. The same
matrices give the leave-one-out distance of every simulation,

.. math:: \|\bar z_i - \mu_{-i}(s_i)\|^2 = \|\bar z_i - \mu(s_i)\|^2 / (1 - \eta_i)^2 , \qquad
    \eta_i = \tfrac{1}{M} + h_i^\top (H^\top H + \lambda I)^{-1} h_i .

It minimises the paper's loss (Section 3.2) over a kernel space; docs/method.md compares the errors.

**Sums.** With rows :math:`h_i` of a basis and targets :math:`z_i`, centred by their means,

.. math:: W = (H^\top H + \lambda I)^{-1} H^\top Z , \qquad
    H^\top H = \textstyle\sum_i h_i h_i^\top - M \bar h \bar h^\top , \quad
    H^\top Z = \textstyle\sum_i h_i z_i^\top - M \bar h \bar z^\top .

The sums grow by any number of simulations at a time and take the same memory for all. In the
eigenbasis :math:`H^\top H = V \Lambda V^\top` the weights are :math:`V (\Lambda + \lambda I)^{-1}
V^\top H^\top Z`, so that the error on simulations that were held out, whose sums are known as well,
costs :math:`O(P^2 + P K)` for each ridge.

References:
    Rahimi and Recht, Random Features for Large-Scale Kernel Machines, NeurIPS 2007.
    Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 21 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist import checks
from mindist.protocols import FeatureMap
from mindist.schema import INLINE, UNSTORED

ROUNDING = 1e-7  # of float32: a smaller relative spread is that of a constant


@dataclass(frozen=True)
class Standardiser:
    """Subtract the mean and divide by the standard deviation, element by element.

    Arguments:
        centre: Means `(D,)`, float64.
        scale: Standard deviations `(D,)`, float64; infinite where an element does not vary, so that
            it is mapped to 0 whatever its value and has no slope for a search to follow.
    """

    centre: Annotated[Tensor, "d"]
    scale: Annotated[Tensor, "any d"]

    @classmethod
    def of(cls, values: Tensor, *, constant: float = float("inf")) -> Standardiser:
        """Standardise to the mean and spread of `values`, `(M, D)`."""
        values = values.double()
        centre, scale = values.mean(dim=0), values.std(dim=0, unbiased=False)
        varies = scale > ROUNDING * centre.abs()
        return cls(centre, torch.where(varies, scale, constant))

    def __call__(self, values: Tensor) -> Tensor:
        """Return standardised values, in the precision of the input."""
        return (values - self.centre.to(values.dtype)) / self.scale.to(values.dtype)


# Rows whose products are summed in the precision of the targets, before float64 takes over: at 512
# held-out errors on Gaussian, OUP, SIR and cryo-EM agree with those of float64 to 1e-4, relative.
SINGLE_ROWS = 512


@dataclass
class Gram:
    """Sums of the basis alone.

    Arguments:
        count: M, how many rows.
        total: Sum of the rows `(P,)`, float64.
        upper: Sum of their outer products `(P, P)`, float64, of which the diagonal and what is
            above it is kept: half of the off-diagonal part is never computed.
    """

    count: int
    total: Tensor
    upper: Tensor

    @classmethod
    def empty(cls, size: int, device: torch.device) -> Gram:
        """No rows yet, of a basis with P = `size`."""
        total = torch.zeros(size, dtype=torch.float64, device=device)
        return cls(0, total, total.new_zeros(size, size))

    def add(self, h: Tensor) -> None:
        """Add rows `(n, P)`, float64."""
        half = h.shape[1] // 2
        left, right = h[:, :half], h[:, half:]
        self.count += len(h)
        self.total += h.sum(0)
        self.upper[:half, :half].addmm_(left.T, left)
        self.upper[:half, half:].addmm_(left.T, right)
        self.upper[half:, half:].addmm_(right.T, right)

    def full(self) -> Tensor:
        """Return the sum of outer products `(P, P)`, both triangles."""
        return self.upper.triu() + self.upper.triu(1).T

    def centred(self) -> Tensor:
        """Return the same about the mean row."""
        return self.full() - torch.outer(self.total, self.total / self.count)

    def __add__(self, other: Gram) -> Gram:
        return Gram(self.count + other.count, self.total + other.total, self.upper + other.upper)


@dataclass
class Moments:
    """Sums that involve the targets.

    Arguments:
        total: Sum of the targets `(K,)`, float64.
        cross: Sum of the outer products of basis and target `(P, K)`, float64.
        squared: Sum of the squared lengths of the targets, float64.
    """

    total: Tensor
    cross: Tensor
    squared: Tensor

    @classmethod
    def empty(cls, size: int, width: int, device: torch.device) -> Moments:
        """No rows yet, of a basis with P = `size` and targets with K = `width`."""
        total = torch.zeros(width, dtype=torch.float64, device=device)
        return cls(total, total.new_zeros(size, width), total.new_zeros(()))

    def add(self, h: Tensor, z: Tensor) -> None:
        """Add rows of the basis `(n, P)`, float64, with targets `(n, K)` of any precision."""
        size = len(z) if z.dtype == torch.float64 else SINGLE_ROWS
        for rows, targets in zip(h.to(z.dtype).split(size), z.split(size), strict=True):
            self.total += targets.sum(0)
            self.cross += rows.T @ targets
            self.squared += targets.square().sum()

    def centred(self, gram: Gram) -> Tensor:
        """Return cross-products `(P, K)` about the means."""
        return self.cross - torch.outer(gram.total / gram.count, self.total)

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.total + other.total, self.cross + other.cross, self.squared + other.squared
        )


@dataclass(frozen=True)
class RidgePath:
    """Held-out errors of all ridges from one eigendecomposition, for any targets.

    Arguments:
        train: Sums of the simulations to learn from.
        test: Sums of those to judge by.
    """

    train: Gram
    test: Gram

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the training rows, and the test rows' products there."""
        values, vectors = torch.linalg.eigh(self.train.centred())
        return values.clamp(min=0), vectors, vectors.T @ self.test.full() @ vectors

    def errors(self, train: Moments, test: Moments, ridges: Sequence[float]) -> dict[float, float]:
        r"""Return mean of :math:`\|z - h W - b\|^2` over the test simulations, for every ridge."""
        values, vectors, products = self._spectrum
        rotated = vectors.T @ train.centred(self.train)
        quadratic = products * (rotated @ rotated.T)
        linear = (rotated * (vectors.T @ test.cross)).sum(1)
        train_h, test_h = vectors.T @ self.train.total, vectors.T @ self.test.total
        errors = {}
        for ridge in ridges:
            d = 1 / (values + ridge * self.train.count)
            bias = (train.total - (train_h * d) @ rotated) / self.train.count
            square = d @ quadratic @ d + 2 * ((test_h * d) @ rotated) @ bias
            product = d @ linear + test.total @ bias
            mean = (test.squared - 2 * product + square) / self.test.count
            errors[ridge] = float(mean + bias @ bias)
        return errors


# Length-scales in units of sqrt(d_s), the typical distance of standardised summaries; a smooth
# task (Gaussian) takes a long one, summaries on a thin surface (SIR) a short one.
LENGTH_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)
# Ridges for each simulation, relative to a kernel with k(s, s) = 1. Smaller ones, chosen on a tenth
# of the simulations, fail at rare summaries: down to 1e-11 the mean error over eight fits to the
# OUP is 19% larger in the wide kernel and 73% in the local one; on SIR and Gaussian it is the same.
RIDGES = tuple(10.0**power for power in range(-9, -1))
# Enough to rank length-scales: on two kernels of Gaussian, OUP and SIR, four fits each, the choice
# costs at most 2% of the error that it has on 5,000 rows with all targets (once, on the OUP); with
# 3,000 rows the OUP's local decoder is twice as bad on average over eight fits.
SELECTION_ROWS, SELECTION_TARGETS, SELECTION_HELD_OUT = 4_000, 64, 0.25
HELD_OUT = 0.1
BLOCK_ROWS = 1_024


@dataclass
class _Pass:
    """Sums of a pass over simulations: to learn from, and held out for the ridge.

    They are taken about an origin near the means: what is rounded is then small.
    """

    h_origin: Tensor
    z_origin: Tensor
    gram: Gram
    moments: Moments
    test_gram: Gram
    test_moments: Moments


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
    _pass: Annotated[_Pass, UNSTORED] = field(init=False)

    def __post_init__(self) -> None:
        self.length_scales, self.ridges = tuple(self.length_scales), tuple(self.ridges)

    def fit(
        self,
        s: Tensor,
        z_bar: Tensor,
        *,
        generator: torch.Generator,
        x: Tensor | None = None,
        features: FeatureMap | None = None,
    ) -> RidgeDecoder:
        """Fit to summaries `(M, d_s)` and mean embeddings `(M, K)`; `x`, `features` are unused."""
        del x, features
        return self.begin(s, z_bar, generator=generator).finish()

    def begin(self, s: Tensor, z_bar: Tensor, *, generator: torch.Generator) -> RidgeDecoder:
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
        rows, column = s[chosen].double(), _projected(z_bar[chosen]).double()
        for length_scale in self.length_scales:
            self.frequency = normal / (length_scale * math.sqrt(dim))
            errors[length_scale] = _least_error(self.basis(rows), column, self.ridges)
        self.length_scale = min(errors, key=lambda key: errors[key])
        self.frequency = normal / (self.length_scale * math.sqrt(dim))
        self._begin(s, z_bar, order)
        return self

    def add(self, s: Tensor, z_bar: Tensor) -> None:
        """Add further simulations, `(n, d_s)` and `(n, K)`, to a fit that has begun."""
        for rows, targets in zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True):
            h = self.basis(rows.double()) - self._pass.h_origin
            self._pass.gram.add(h)
            self._pass.moments.add(h, targets - self._pass.z_origin.to(targets.dtype))

    def finish(self) -> RidgeDecoder:
        """Choose the ridge, and solve for the weights with all simulations that were added."""
        sums = self._pass
        path = RidgePath(sums.gram, sums.test_gram)
        errors = path.errors(sums.moments, sums.test_moments, self.ridges)
        self.ridge = min(errors, key=lambda key: errors[key])
        self.held_out_error = errors[self.ridge]
        gram, moments = sums.gram + sums.test_gram, sums.moments + sums.test_moments
        self._centre, self._count = sums.h_origin + gram.total / gram.count, gram.count
        # Rounding of the sums is 1e-13 of M, the least ridge 1e-9: the factor exists.
        damped = gram.centred()
        damped.diagonal().add_(self.ridge * gram.count)
        factor = torch.linalg.cholesky(damped)
        # With u = (h - mean h) whitener: eta = 1/M + |u|^2 and mu = mean z + u coefficients.
        self._whitener = torch.linalg.solve_triangular(
            factor, torch.eye(len(factor)).to(factor), upper=False
        ).T.contiguous()
        self._coefficients = self._whitener.T @ moments.centred(gram)
        self._target_mean = sums.z_origin + moments.total / gram.count
        self.weight = self._whitener @ self._coefficients
        self.bias = self._target_mean - self._centre @ self.weight
        del self._pass
        return self

    def _begin(self, s: Tensor, z_bar: Tensor, order: Tensor) -> None:
        """Start the sums with simulations in a random order, the first tenth of it held out."""
        size, width = len(self.phase), z_bar.shape[1]
        empty = (Gram.empty(size, s.device), Moments.empty(size, width, s.device))
        more = (Gram.empty(size, s.device), Moments.empty(size, width, s.device))
        first = order[:BLOCK_ROWS]
        h, z = self.basis(s[first].double()), z_bar[first]
        # Rounded, so that it is subtracted alike in every precision.
        origin = z.mean(0, dtype=torch.float64).to(z.dtype).double()
        self._pass = _Pass(h.mean(0), origin, *empty, *more)
        held_out = max(1, round(HELD_OUT * len(s)))
        for index in order[:held_out].split(BLOCK_ROWS):
            h = self.basis(s[index].double()) - self._pass.h_origin
            self._pass.test_gram.add(h)
            self._pass.test_moments.add(h, z_bar[index].double() - origin)
        for index in order[held_out:].split(BLOCK_ROWS):
            self.add(s[index], z_bar[index])

    def basis(self, s: Tensor) -> Tensor:
        """h(s), `(B, P)`."""
        phase = self.standardise(s) @ self.frequency.to(s.dtype) + self.phase.to(s.dtype)
        return phase.cos() * math.sqrt(2 / len(self.phase))

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """h(s), `(B, P)`, and its derivative `(B, P, d_s)`."""
        phase = self.standardise(s) @ self.frequency.to(s.dtype) + self.phase.to(s.dtype)
        amplitude = math.sqrt(2 / len(self.phase))
        slope = (self.frequency / self.standardise.scale[:, None]).T.to(s.dtype)
        return amplitude * phase.cos(), -amplitude * phase.sin()[..., None] * slope

    def __call__(self, s: Tensor) -> Tensor:
        """Return decoded mean embeddings `(B, K)`, float64."""
        return self.basis(s.double()) @ self.weight + self.bias

    @torch.no_grad()
    def leave_one_out_residuals(self, s: Tensor, z_bar: Tensor) -> Tensor:
        r"""Residuals :math:`\bar z_i - \mu_{-i}(s_i)`, `(n, K)`, in the precision of `z_bar`.

        Arguments:
            s: Summaries of simulations that the fit saw, `(n, d_s)`.
            z_bar: Their mean embeddings `(n, K)`.
        """
        dtype = z_bar.dtype
        whitener, coefficients = self._whitener.to(dtype), self._coefficients.to(dtype)
        residual = z_bar - self._target_mean.to(dtype)
        for part, rows in zip(residual.split(BLOCK_ROWS), s.split(BLOCK_ROWS), strict=True):
            u = (self.basis(rows.double()) - self._centre).to(dtype) @ whitener
            leverage = 1 / self._count + u.square().sum(-1, keepdim=True)
            part.addmm_(u, coefficients, alpha=-1).div_(1 - leverage)
        return residual


def _least_error(h: Tensor, z: Tensor, ridges: Sequence[float]) -> float:
    """Return the held-out error of the best ridge, from the first quarter."""
    held_out, sums = max(1, round(SELECTION_HELD_OUT * len(h))), []
    for part in (slice(held_out, None), slice(held_out)):
        gram = Gram.empty(h.shape[1], h.device)
        gram.add(h[part])
        moments = Moments.empty(h.shape[1], z.shape[1], h.device)
        moments.add(h[part], z[part])
        sums.append((gram, moments))
    (train, learn), (test, judge) = sums
    return min(RidgePath(train, test).errors(learn, judge, ridges).values())


def _projected(z_bar: Tensor) -> Tensor:
    """A random projection `(M, 64)` of targets `(M, K)`, which keeps squared lengths on average."""
    width = z_bar.shape[1]
    if width <= SELECTION_TARGETS:
        return z_bar
    fixed = torch.Generator().manual_seed(0)
    normal = torch.randn(width, SELECTION_TARGETS, generator=fixed, dtype=torch.float64)
    return z_bar @ (normal / math.sqrt(SELECTION_TARGETS)).to(z_bar)
