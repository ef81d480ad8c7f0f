r"""The uniform distribution on a right triangle, the prior of the SIR task.

.. math:: p(\beta, \gamma) = 2 / c^2 \quad \text{where} \quad 0 < \gamma < \beta < c .
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, biject_to, constraints
from torch.distributions.transforms import IndependentTransform, Transform
from torch.nn.functional import logsigmoid


class InTriangle(constraints.Constraint):
    """Vectors (beta, gamma) with 0 < gamma < beta < bound."""

    event_dim = 1

    def __init__(self, bound: float) -> None:
        self.bound = bound
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether vectors `(..., 2)` lie in the triangle, `(...)`."""
        beta, gamma = value.unbind(-1)
        return (gamma > 0) & (gamma < beta) & (beta < self.bound)

    def __repr__(self) -> str:
        return f"InTriangle(0 < gamma < beta < {self.bound})"


class NestedSigmoids(Transform):
    r"""The plane onto the triangle, for samplers that want unbounded parameters.

    .. math:: (u, v) \mapsto (\beta, \gamma) = c \, (\varsigma(u), \varsigma(u) \varsigma(v)),
        \qquad \varsigma(u) = 1 / (1 + e^{-u}) .

    The Jacobian is triangular, so its log determinant has a term for each coordinate; these are
    left apart, for torch's `IndependentTransform` to add up.

    Arguments:
        bound: c, the upper limit of beta.
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True

    def __init__(self, bound: float, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.bound = bound

    def _call(self, x: Tensor) -> Tensor:
        outer, inner = x.sigmoid().unbind(-1)
        return self.bound * torch.stack([outer, outer * inner], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        beta, gamma = y.unbind(-1)
        return torch.stack([beta / self.bound, gamma / beta], -1).logit()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithms `(..., 2)` of d beta / du and d gamma / dv."""
        return y.log() + logsigmoid(-x)


def _unbounded(constraint: InTriangle) -> IndependentTransform:
    return IndependentTransform(NestedSigmoids(constraint.bound), 1)


biject_to.register(InTriangle, _unbounded)


class UniformTriangle(Distribution):
    """Uniform on 0 < gamma < beta < bound, for torch and for sbi.

    Unlike most of torch's distributions it gives a log density of minus infinity, not an error,
    to values outside its support.

    Arguments:
        bound: c, the upper limit of beta.

    Example:
        >>> prior = UniformTriangle(0.5)
        >>> prior.log_prob(torch.tensor([[0.3, 0.1], [0.1, 0.3]])).exp()
        tensor([8., 0.])
        >>> prior.support.check(prior.sample((1_000,))).all()
        tensor(True)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  (torch's own name)

    def __init__(self, bound: float) -> None:
        self.bound = bound
        super().__init__(event_shape=Size((2,)), validate_args=False)

    @property
    def support(self) -> InTriangle:
        """The open triangle."""
        return InTriangle(self.bound)

    @property
    def mean(self) -> Tensor:
        """The centre of mass, (2/3, 1/3) of the bound."""
        return torch.tensor([2 / 3, 1 / 3]) * self.bound

    @property
    def variance(self) -> Tensor:
        """Of beta and of gamma: those of the larger and the smaller of two uniform numbers."""
        return torch.full((2,), self.bound**2 / 18)

    def draw(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """Draws `(*shape, 2)` from a generator: two uniform numbers, the larger one first."""
        uniform = torch.rand((*shape, 2), generator=generator)
        theta = self.bound * uniform.sort(-1, descending=True).values
        outside = ~self.support.check(theta)  # an edge, about once in 10 million draws
        if outside.any():
            theta[outside] = self.draw((int(outside.sum()),), generator)
        return theta

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  (torch's own signature)
        """Draws `(*sample_shape, 2)` from the global generator."""
        return self.draw(Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density `(...)` at vectors `(..., 2)`."""
        inside = self.support.check(value)
        return torch.where(inside, math.log(2 / self.bound**2), -math.inf)

    def entropy(self) -> Tensor:
        """The differential entropy, the logarithm of the triangle's area."""
        return torch.tensor(math.log(self.bound**2 / 2))

    def expand(self, batch_shape: Any, _instance: Any = None) -> UniformTriangle:
        """Itself: there are no batches of triangles."""
        if Size(batch_shape):
            raise NotImplementedError(f"batch_shape: expected (), got {tuple(batch_shape)}.")
        return self
