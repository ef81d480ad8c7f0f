"""Decoders and simulations with a closed form, for tests that compare with known values."""

import math

import torch
from torch import Tensor

from mindist.features import FourierFeatures
from mindist.solvers import Solution, damped_newton, gauss_newton


class LocationDecoder:
    """The exact mean embedding of N(s, I) under Fourier features with frequencies W.

    E cos(x W) = exp(-|W|^2 / 2) cos(s W), and so for the sine.
    """

    num_points = 0

    def __init__(self, features: FourierFeatures) -> None:
        self.frequency = features.weight
        damping = torch.exp(-self.frequency.square().sum(0) / 2).repeat(2)
        self.weight = torch.diag(damping * math.sqrt(2 / features.num_features))
        self.bias = torch.zeros(features.num_features, dtype=torch.float64)

    def basis(self, s: Tensor) -> Tensor:
        phase = s @ self.frequency
        return torch.cat([phase.cos(), phase.sin()], dim=1)

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        phase = s @ self.frequency
        slope = torch.cat([-phase.sin(), phase.cos()], dim=1)
        return self.basis(s), slope[..., None] * self.frequency.repeat(1, 2).T

    def __call__(self, s: Tensor) -> Tensor:
        return self.basis(s) @ self.weight + self.bias


class LinearDecoder:
    """mu(s) = s W + b, whose minimisers solve linear equations."""

    num_points = 0

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def basis(self, s: Tensor) -> Tensor:
        return s

    def basis_and_jacobian(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return s, torch.eye(s.shape[1], dtype=s.dtype).expand(len(s), -1, -1)

    def __call__(self, s: Tensor) -> Tensor:
        return s @ self.weight + self.bias


def features(event_shape: tuple[int, ...], num: int, bandwidth: float, seed: int = 0):
    """Evenly spread frequencies, whose kernel is close to the exact one."""
    generator = torch.Generator().manual_seed(seed)
    return FourierFeatures.draw(
        event_shape, num, bandwidth=bandwidth, generator=generator, frequencies="sobol"
    )


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def levenberg_marquardt(residual, start: Tensor, **options: float) -> Solution:
    """The search with the model of Gauss and Newton, of residuals `(n, m)` and Jacobians."""
    return damped_newton(lambda s, problem: gauss_newton(*residual(s, problem)), start, **options)


NUM_OBS = 50  # of each dataset of `locations`


def locations(num: int, seed: int = 0) -> torch.Tensor:
    """N(theta, 1), theta ~ N(0, 9)."""
    generator = torch.Generator().manual_seed(seed)
    theta = 3 * torch.randn(num, 1, 1, generator=generator)
    return theta + torch.randn(num, NUM_OBS, 1, generator=generator)


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(1)
