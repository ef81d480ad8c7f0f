r"""What the embedding says of the summary: a regression the other way round.

Where a summary is more sensitive than the embedding, contamination moves it first: in SIR a tenth
of the trajectories hardly changes their distribution, but the means of peak heights a great deal.
The residual of a linear ridge regression of the summary on the mean embeddings of all kernels,

.. math:: r = s - \hat s(\bar z), \qquad
    \hat s(\bar z) = \bar s + B^\top (\bar z - \bar z_0), \qquad
    B = (G + \lambda I)^{-1} \tfrac1M Z^\top S ,

with G the covariance of the embeddings, is then large by the standard of simulations. The strength
:math:`\lambda` has the smallest exact leave-one-out error,

.. math:: r_i^{(-i)} = \frac{r_i}{1 - h_i}, \qquad
    h_i = \tfrac1M + \tfrac1M\, z_i^\top (G + \lambda I)^{-1} z_i .
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.protocols import State

# Of the largest eigenvalue of G; below 1e-10 float32 embeddings are rounding.
STRENGTHS = tuple(10.0**-k for k in range(2, 11))
LEAST = 1e-30


@dataclass(frozen=True)
class SummaryRegression:
    """A linear regression of standardised summaries on mean embeddings.

    Arguments:
        z_centre: Mean of the simulated embeddings `(K,)`, float64.
        s_centre: Mean of the simulated summaries `(d_s,)`, float64.
        s_scale: Their standard deviations `(d_s,)`, float64; 1 where that is 0.
        weight: B, `(K, d_s)`, float64.

    Example:
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
        >>> regression, left_out = SummaryRegression.of(z, z[:, :1] + 1)
        >>> regression(z[:2], z[:2, :1] + 1).abs().max() < 0.05, left_out.abs().max() < 0.05
        (tensor(True), tensor(True))
    """

    z_centre: Tensor
    s_centre: Tensor
    s_scale: Tensor
    weight: Tensor

    @classmethod
    def of(cls, z_bar: Tensor, s: Tensor) -> tuple[SummaryRegression, Tensor]:
        """From embeddings `(M, K)` and summaries `(M, d_s)`; also the left-out residuals."""
        z, s = z_bar.double(), s.double()
        num, z_centre, s_centre = len(z), z.mean(0), s.mean(0)
        s_scale = s.std(0, unbiased=False)
        s_scale = torch.where(s_scale > 0, s_scale, 1.0)
        z, target = z - z_centre, (s - s_centre) / s_scale
        values, vectors = torch.linalg.eigh(z.T @ z / num)
        turned = z @ vectors
        moment = turned.T @ target / num

        def fit(strength: float) -> tuple[Tensor, Tensor]:
            """Coefficients in turned coordinates, and the left-out residuals."""
            damped = values.clamp(min=0) + strength * values[-1].clamp(min=LEAST)
            coefficients = moment / damped[:, None]
            leverage = 1 / num + (turned.square() / damped).sum(1) / num
            return coefficients, (target - turned @ coefficients) / (1 - leverage)[:, None]

        def error(fitted: tuple[Tensor, Tensor]) -> float:
            """Mean over summaries of the log of the mean squared left-out residual."""
            return float(fitted[1].square().mean(0).clamp(min=LEAST).log().mean())

        coefficients, residual = min(map(fit, STRENGTHS), key=error)
        return cls(z_centre, s_centre, s_scale, vectors @ coefficients), residual

    def __call__(self, z_bar: Tensor, s: Tensor) -> Tensor:
        """Residuals `(B, d_s)` of summaries `(B, d_s)` given embeddings `(B, K)`, float64."""
        target = (s.double() - self.s_centre) / self.s_scale
        return target - (z_bar.double() - self.z_centre) @ self.weight

    def to(self, device: torch.device) -> SummaryRegression:
        """The same on another device."""
        return SummaryRegression(*(value.to(device) for value in vars(self).values()))

    def state(self) -> State:
        """Configuration and tensors from which it can be rebuilt."""
        return {}, dict(vars(self))

    @classmethod
    def from_state(cls, config: dict[str, object], tensors: dict[str, Tensor]) -> SummaryRegression:
        """Rebuild from `state`."""
        del config
        return cls(**tensors)


__all__ = ["SummaryRegression"]
