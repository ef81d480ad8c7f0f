r"""The distribution of the distance when the model is right, from held-out simulations.

The statistic is the squared distance :math:`D = \|\mu(s) - \bar z\|^2` of a dataset's mean
embedding from the decoder's at its own summary (appendix "Detecting Model Misspecification").
With n null distances, k of which are at least as large as the observed one, the p-value is

.. math:: p = \frac{1 + k}{n + 1} ,

which is never 0 and, for exchangeable simulations and a well-specified model, has
:math:`\Pr(p \le \alpha) \le \alpha` exactly.

**Other sample sizes.** Split a residual into the sampling noise of N observations, which shrinks
as :math:`1/\sqrt N`, and the decoder's own error :math:`\delta(s)`, which does not:

.. math:: \mu(s) - \bar z = \delta(s) - \frac{\nu}{\sqrt N} .

A simulation with :math:`N_0` observations then stands for one with N observations at distance

.. math::
    D(N) = \frac{N_0}{N} A + \sqrt{\frac{N_0}{N}} B + C, \qquad
    A = \frac{\|\nu\|^2}{N_0}, \quad B = -\frac{2 \langle \nu, \delta \rangle}{\sqrt{N_0}}, \quad
    C = \|\delta\|^2 .

At :math:`N = N_0` this is the held-out distance itself. Elsewhere it needs :math:`\delta(s)`: the
difference between the decoder and a better regression of :math:`\bar z` on s (the closed-form one);
for the closed-form decoder itself :math:`B = C = 0` and the null is rescaled by :math:`N_0 / N`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from mindist.detection.mahalanobis import ROUNDED


@dataclass(frozen=True)
class NullDistances:
    """Null distances of n held-out simulations, for any number of observations.

    Arguments:
        noise: A, the squared length of the sampling noise, `(n,)`, float64.
        cross: B, `(n,)`, float64.
        error: C, the squared error of the decoder, `(n,)`, float64.
        num_obs: N0, the number of observations of the simulations.

    Example:
        >>> null = NullDistances.of(torch.arange(1.0, 20.0), num_obs=100)
        >>> null.p_value(torch.tensor([0.0, 10.0, 100.0]), num_obs=100)
        tensor([1.0000, 0.5500, 0.0500], dtype=torch.float64)
        >>> null.threshold(0.05, num_obs=100), null.threshold(0.05, num_obs=50)
        (19.0, 38.0)
    """

    noise: Annotated[Tensor, "n"]
    cross: Annotated[Tensor, "n"]
    error: Annotated[Tensor, "n"]
    num_obs: Annotated[int, range(1, 2**31)]

    @classmethod
    def of(cls, distance: Tensor, num_obs: int) -> NullDistances:
        """From squared distances `(n,)` to a decoder without an error of its own."""
        distance = distance.double()
        return cls(distance, distance.new_zeros(len(distance)), 0 * distance, num_obs)

    @classmethod
    def split(cls, noise: Tensor, error: Tensor, num_obs: int) -> NullDistances:
        """From the two parts of the residuals, sampling noise and decoder error, `(n, K)`."""
        noise, error = noise.double(), error.double()
        cross = 2 * (noise * error).sum(-1)
        return cls(noise.square().sum(-1), cross, error.square().sum(-1), num_obs)

    def distances(self, num_obs: int) -> Tensor:
        """Sorted null distances `(n,)` of datasets with `num_obs` observations.

        None is below what rounding may have made: ranks of that say nothing.
        """
        ratio = self.num_obs / num_obs
        if self._only_noise is not None:
            return (ratio * self._only_noise).clamp(min=ROUNDED)
        distance = ratio * self.noise + math.sqrt(ratio) * self.cross + self.error
        return distance.sort().values.clamp(min=ROUNDED)

    @cached_property
    def _only_noise(self) -> Tensor | None:
        """Sorted noise, where the decoder has no error of its own: it need not be sorted again."""
        exact = not (self.cross.any() or self.error.any())
        return self.noise.sort().values if exact else None

    def mean(self, num_obs: int) -> float:
        """The mean null distance of datasets with `num_obs` observations."""
        return float(self.distances(num_obs).mean())

    def p_value(self, distance: Tensor, num_obs: int) -> Tensor:
        """p-values `(B,)` of squared distances `(B,)` of datasets with `num_obs` observations."""
        null = self.distances(num_obs)
        below = torch.searchsorted(null, distance.double().clamp(min=ROUNDED))
        return (1 + len(null) - below).double() / (len(null) + 1)

    def threshold(self, alpha: float, num_obs: int) -> float:
        """The squared distance above which, and only above which, p is at most alpha."""
        num = len(self.noise)
        allowed = math.floor(alpha * (num + 1) + 1e-9) - 1
        if allowed < 0:
            return math.inf
        if self._only_noise is None:
            return float(self.distances(num_obs)[num - 1 - allowed])
        return max(self.num_obs / num_obs * float(self._only_noise[num - 1 - allowed]), ROUNDED)
