r"""Closed-form decoder: ridge regression on random Fourier features of the standardised summary.

.. math::
    \mu(s) = h(s) W + b, \qquad h(s) = \sqrt{2/P}\, \cos(\tilde s\, \Omega / \ell + \phi), \qquad
    W = (H^\top H + \lambda I)^{-1} H^\top Z ,

with centred :math:`H` and :math:`Z`. The normal equations are sums over simulations, so the fit is
one pass over them, in blocks. The length-scale :math:`\ell` is chosen on simulations held out of
a subsample, the ridge :math:`\lambda` on simulations held out of the full pass, each from one
eigendecomposition, and the held-out sums are then added back. The same matrices give the
leave-one-out distance of every simulation,

.. math:: \|\bar z_i - \mu_{-i}(s_i)\|^2 = \|\bar z_i - \mu(s_i)\|^2 / (1 - \eta_i)^2 , \qquad
    \eta_i = \tfrac{1}{M} + h_i^\top (H^\top H + \lambda I)^{-1} h_i .

This is the minimiser of the paper's loss (Section 3.2) over a kernel space instead of over a
network; held-out errors against the paper's network are in docs/method.md.

References:
    Rahimi and Recht, Random Features for Large-Scale Kernel Machines, NeurIPS 2007.
    Golub, Heath and Wahba, Generalized Cross-Validation, Technometrics 21 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mindist.decoders.standardise import Standardiser
from mindist.protocols import FeatureMap, State

# Length-scales in units of sqrt(d_s), the typical distance of standardised summaries; a smooth
# task (Gaussian) takes a long one, summaries on a thin surface (SIR) a short one.
LENGTH_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)
# Ridges for each simulation, relative to a kernel with k(s, s) = 1.
RIDGES = tuple(10.0**power for power in range(-11, -1))
SELECTION_ROWS = 5_000  # enough to rank length-scales; the ridge is chosen again on all rows
HELD_OUT = 0.1
BLOCK_ROWS = 4_096


@dataclass
class _Sums:
    """Sums over simulations from which ridge regression and its error follow."""

    count: int
    h: Tensor
    z: Tensor
    hh: Tensor
    hz: Tensor
    zz: Tensor

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(getattr(self, k) + getattr(other, k) for k in self.__dataclass_fields__))

    def centred(self) -> tuple[Tensor, Tensor]:
        """Gram matrix and cross-products about the means."""
        h_bar = self.h / self.count
        return self.hh - torch.outer(self.h, h_bar), self.hz - torch.outer(h_bar, self.z)


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

    def __init__(
        self,
        num_basis: int = 500,
        *,
        length_scales: Sequence[float] = LENGTH_SCALES,
        ridges: Sequence[float] = RIDGES,
    ) -> None:
        self.num_basis = num_basis
        self.length_scales = tuple(length_scales)
        self.ridges = tuple(ridges)

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
        dim, size = s.shape[1], min(self.num_basis, max(1, len(s) // 2))
        self.standardise = Standardiser.of(s)
        normal = torch.randn(dim, size, dtype=torch.float64, generator=generator).to(s.device)
        phase = torch.rand(size, dtype=torch.float64, generator=generator).to(s.device)
        self.phase = 2 * math.pi * phase
        order = torch.randperm(len(s), generator=generator).to(s.device)
        chosen = order[:SELECTION_ROWS]
        errors = {}
        for length_scale in self.length_scales:
            self.frequency = normal / (length_scale * math.sqrt(dim))
            errors[length_scale], _ = self._choose_ridge(s[chosen], z_bar[chosen])
        self.length_scale = min(errors, key=lambda key: errors[key])
        self.frequency = normal / (self.length_scale * math.sqrt(dim))
        self.held_out_error, total = self._choose_ridge(s[order], z_bar[order])
        values, vectors = torch.linalg.eigh(total.centred()[0])
        self.weight, self.bias = _solve(total, values, vectors, self.ridge)
        # For leave-one-out leverages: eta = 1/M + |(h - mean h) whitener|^2.
        self._whitener = vectors / (values.clamp(min=0) + self.ridge * total.count).sqrt()
        self._centre, self._count = total.h / total.count, total.count
        return self

    def _choose_ridge(self, s: Tensor, z_bar: Tensor) -> tuple[float, _Sums]:
        """Choose the ridge on a tenth of the rows; their error, and the sums over all rows."""
        held_out = max(1, round(HELD_OUT * len(s)))
        test = self._sums(s[:held_out], z_bar[:held_out])
        train = self._sums(s[held_out:], z_bar[held_out:])
        errors = _held_out_errors(train, test, self.ridges)
        self.ridge = min(errors, key=lambda key: errors[key])
        return errors[self.ridge], train + test

    def _sums(self, s: Tensor, z_bar: Tensor) -> _Sums:
        size, width = len(self.phase), z_bar.shape[1]
        zeros = partial(torch.zeros, dtype=torch.float64, device=s.device)
        sums = _Sums(
            len(s), zeros(size), zeros(width), zeros(size, size), zeros(size, width), zeros(())
        )
        for rows, targets in zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True):
            h, z = self.basis(rows.double()), targets.double()
            sums.h, sums.z = sums.h + h.sum(0), sums.z + z.sum(0)
            sums.hh.addmm_(h.T, h)
            sums.hz.addmm_(h.T, z)
            sums.zz = sums.zz + z.square().sum()
        return sums

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

    def curvature(self, s: Tensor, force: Tensor) -> Tensor:
        r""":math:`\sum_p v_p\, \partial^2 h_p / \partial s^2`, `(B, d_s, d_s)`, for v `(B, P)`."""
        slope = self.frequency / self.standardise.scale[:, None]
        weighed = -(force * self.basis(s))[:, None] * slope
        return weighed @ slope.T

    def cosines(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""The same decoder as :math:`\mu(s) = \cos(2\pi(s\, \Omega + \phi))\, A + b`.

        Returns:
            Frequencies `(d_s, P)` and phases `(P,)` in turns, and A, `(P, K)`.
        """
        frequency = self.frequency / self.standardise.scale[:, None]
        phase = self.phase - self.standardise.centre @ frequency
        amplitude = math.sqrt(2 / len(self.phase))
        return frequency / (2 * math.pi), phase / (2 * math.pi), amplitude * self.weight

    def __call__(self, s: Tensor) -> Tensor:
        """Decoded mean embeddings `(B, K)`, float64."""
        return self.basis(s.double()) @ self.weight + self.bias

    @torch.no_grad()
    def leave_one_out(self, s: Tensor, z_bar: Tensor) -> Tensor:
        """Squared distances `(M,)` of the fitted simulations, each held out in turn.

        Arguments:
            s: The summaries that `fit` saw, `(M, d_s)`.
            z_bar: The mean embeddings that `fit` saw, `(M, K)`.
        """
        blocks = zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        return torch.cat([self._left_out(*block).square().sum(-1) for block in blocks])

    @torch.no_grad()
    def leave_one_out_residuals(self, s: Tensor, z_bar: Tensor) -> Tensor:
        r"""Residuals :math:`\bar z_i - \mu_{-i}(s_i)`, `(M, K)`, arguments as `leave_one_out`."""
        blocks = zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        return torch.cat([self._left_out(*block) for block in blocks])

    def _left_out(self, s: Tensor, z_bar: Tensor) -> Tensor:
        """Leave-one-out residuals of some of the simulations."""
        h = self.basis(s.double())
        leverage = 1 / self._count + ((h - self._centre) @ self._whitener).square().sum(-1)
        residual: Tensor = (z_bar.double() - h @ self.weight - self.bias) / (1 - leverage)[:, None]
        return residual

    def state(self) -> State:
        """Configuration and tensors from which the fitted decoder can be rebuilt."""
        config: dict[str, Any] = {
            "num_basis": self.num_basis,
            "length_scales": list(self.length_scales),
            "ridges": list(self.ridges),
            "length_scale": self.length_scale,
            "ridge": self.ridge,
            "held_out_error": self.held_out_error,
        }
        tensors = {
            "weight": self.weight,
            "bias": self.bias,
            "frequency": self.frequency,
            "phase": self.phase,
            "centre": self.standardise.centre,
            "scale": self.standardise.scale,
        }
        return config, tensors

    @classmethod
    def from_state(
        cls,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        features: FeatureMap | None = None,
    ) -> RidgeDecoder:
        """Rebuild a fitted decoder; without `leave_one_out`, whose matrices are not stored."""
        del features
        decoder = cls(
            config["num_basis"], length_scales=config["length_scales"], ridges=config["ridges"]
        )
        decoder.length_scale, decoder.ridge = config["length_scale"], config["ridge"]
        decoder.held_out_error = config["held_out_error"]
        decoder.weight, decoder.bias = tensors["weight"], tensors["bias"]
        decoder.frequency, decoder.phase = tensors["frequency"], tensors["phase"]
        decoder.standardise = Standardiser(tensors["centre"], tensors["scale"])
        return decoder

    def to(self, device: torch.device) -> RidgeDecoder:
        """Move the tensors to a device and return the decoder."""
        self.weight, self.bias = self.weight.to(device), self.bias.to(device)
        self.frequency, self.phase = self.frequency.to(device), self.phase.to(device)
        self.standardise = self.standardise.to(device)
        return self


def _solve(sums: _Sums, values: Tensor, vectors: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of ridge regression, given the eigenvectors of the centred Gram matrix."""
    _, cross = sums.centred()
    damped = values.clamp(min=0) + ridge * sums.count
    weight = vectors @ ((vectors.T @ cross) / damped[:, None])
    return weight, (sums.z - sums.h @ weight) / sums.count


def _held_out_errors(train: _Sums, test: _Sums, ridges: Sequence[float]) -> dict[float, float]:
    r"""Mean of :math:`\|z - h W - b\|^2` over the test simulations, for every ridge.

    In the eigenbasis :math:`W = V D R` with a diagonal D, so that after one eigendecomposition a
    ridge costs :math:`O(P^2 + P K)`.
    """
    gram, cross = train.centred()
    values, vectors = torch.linalg.eigh(gram)
    rotated = vectors.T @ cross
    quadratic = (vectors.T @ test.hh @ vectors) * (rotated @ rotated.T)
    linear = (rotated * (vectors.T @ test.hz)).sum(1)
    train_h, test_h = vectors.T @ train.h, vectors.T @ test.h
    errors = {}
    for ridge in ridges:
        d = 1 / (values.clamp(min=0) + ridge * train.count)
        bias = (train.z - (train_h * d) @ rotated) / train.count
        square = d @ quadratic @ d + 2 * ((test_h * d) @ rotated) @ bias
        product = d @ linear + test.z @ bias
        errors[ridge] = float((test.zz - 2 * product + square) / test.count + bias @ bias)
    return errors
