r"""Calibrate what comes out, by indirect inference: run the same procedure on clean simulations.

An adapted summary t is not the summary s of clean data: trimming has a bias, projection is drawn to
the mean, both have noise. On clean simulations t and s are known, and

.. math:: \hat s(t) = \mathbb{E}[s \mid t], \qquad S(t) = \operatorname{Cov}[s \mid t]

are regressed. The posterior is asked over :math:`N(\hat s(t), U)`,

.. math:: U = \tfrac{N_0}{N} S(t) + \big( \tfrac{N_0}{n} - 1 \big)_+ V ,

the second term for the :math:`N - n` observations that were left out: V is the sampling covariance
of a summary of the simulations' :math:`N_0` observations (`mindist.adaptation.noise`).

**Has the summary moved?** The observed summary is one of clean data only if it lies within
:math:`N(\hat s(t), U)`. The length

.. math:: H = (f(x) - \hat s)^\top (U + 0.05\, V)^{-1} (f(x) - \hat s)

is ranked among clean simulations: two estimates of one summary, one of them robust, are compared,
as in the test of Hausman. A change of a fifth of the sampling error is no harm, hence the 0.05.

References:
    Gouriéroux, Monfort and Renault, Indirect inference, Journal of Applied Econometrics 8 (1993).
    Hausman, Specification tests in econometrics, Econometrica 46 (1978).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mindist.features.residuals import Regression, scale_of

NEIGHBOURS = 60  # clean simulations whose residuals give the covariance at a summary
HARMLESS = 0.05  # share of the sampling variance that a summary may move unnoticed
FEATURES = 100
COLLINEAR = 1e-3  # added to the diagonal of a correlation matrix


@dataclass(frozen=True)
class Calibration:
    """The law of the summary of clean data given an adapted one.

    Arguments:
        back: The expected difference of the summary from the adapted one.
        adapted: Adapted summaries of clean simulations `(C, d_s)`.
        residual: What is left of their summaries `(C, d_s)`, each left out of the regression.
        scale: Standard deviations of simulated summaries `(d_s,)`.
    """

    back: Regression
    adapted: Annotated[Tensor, "C d"]
    residual: Annotated[Tensor, "C d"]
    scale: Annotated[Tensor, "d"]

    @classmethod
    def of(cls, adapted: Tensor, s: Tensor) -> tuple[Calibration, Tensor, Tensor]:
        """Regress summaries `(C, d_s)` of clean simulations on the adapted ones.

        Returns:
            The calibration, and of each simulation, left out in turn, the expected summary
            `(C, d_s)` and the covariance `(C, d_s, d_s)`.
        """
        s = s.double()
        # Differences: where nothing was left out there is none, whatever the size of the summary.
        back, left_out = Regression.of(adapted, s - adapted, FEATURES)
        left_out = adapted + left_out
        made = cls(back, adapted, s - left_out, scale_of(s))
        return made, left_out, made._covariance(adapted, alone=False)

    def __call__(self, adapted: Tensor) -> tuple[Tensor, Tensor]:
        """Return expected summaries `(B, d_s)` and covariances, given adapted ones `(B, d_s)`."""
        return adapted + self.back(adapted), self._covariance(adapted)

    def _covariance(self, adapted: Tensor, *, alone: bool = True) -> Tensor:
        parts, num = [], min(NEIGHBOURS, len(self.adapted) - 1)
        for rows in adapted.split(256):
            distance = torch.cdist(rows / self.scale, self.adapted / self.scale)
            near = distance.topk(num + (not alone), largest=False).indices[:, int(not alone) :]
            residual = self.residual[near]
            parts.append(residual.mT @ residual / num)
        return torch.cat(parts)


def spread_of(
    covariance: Tensor, noise: Tensor, kept: Tensor, num_obs: int, trained: int
) -> Tensor:
    """Return U, `(B, d_s, d_s)`: of the calibration, and of observations that are missing.

    Arguments:
        covariance: S, `(B, d_s, d_s)`.
        noise: V, `(B, d_s, d_s)`, of the simulations' number of observations.
        kept: n, the mass of what is left `(B,)`.
        num_obs: N.
        trained: N0.
    """
    missing = (trained / kept.double().clamp(min=1) - 1).clamp(min=0)
    return trained / num_obs * covariance + missing[:, None, None] * noise


def moved_by(s_obs: Tensor, centre: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
    """Return log(1 + H), `(B,)`: how far the observed summary is from where it should be."""
    A = spread + HARMLESS * noise
    size = A.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    size = torch.where(size > 0, size, 1.0)
    A = A / size[:, :, None] / size[:, None]
    A = A + COLLINEAR * torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
    r = ((s_obs - centre) / size)[..., None]
    length: Tensor = (r * torch.linalg.solve(A, r)).sum((1, 2))
    return length.clamp(min=0).log1p()
