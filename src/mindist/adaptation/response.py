r"""How the weights of the observations answer to the summary and to the data.

A search with weights ends where :math:`s = s^\star(\bar z_{w(s, P)})`, P the empirical measure of
the data. Mass :math:`\eta` at an observation :math:`x_m` moves that point directly, through the
densities and the mass in the weights, and, because the weights follow the summary, again by the
factor T:

.. math::
    \bar w\, \mathrm{IF}(x_m) = (I - T)^{-1} \Big[ w_m A_m
        + \tfrac1N \sum_n u_n A_n \Big( 1 - \frac{k(x_n, x_m)}{p(x_n)} + \frac{\dot a_m}{a} \Big)
        \Big], \qquad
    T = \frac{1}{\sum_n w_n} \sum_n A_n \, \frac{\partial w_n}{\partial s}^\top ,

with :math:`\bar w` the mean weight, :math:`A_n = H^{-1} J^\top (z(x_n) - \bar z_w)`,
:math:`w = a\, p_s / p`, and :math:`u_n = w_n` where :math:`0 < w_n < 1`, else 0, because a clipped
weight does not answer. A mass that counts as 1 does not answer either; a fitted one has

.. math:: \frac{\dot a_m}{a} = \frac{p_s(x_m)}{\tfrac1N \sum_n p_s(x_n)} - 1 .

Where T is small, the weights separate two kinds of observations. Where it is near 1, almost any
summary gives weights that confirm it: data that are wider than the model contain many parts that
look like it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.adaptation.linear import solve
from mindist.adaptation.view import View
from mindist.adaptation.weights import Observations


@dataclass(frozen=True)
class Response:
    """What the weights of the observations of a batch of datasets depend on.

    Arguments:
        observations: What the kernels see.
        weight: The weights `(B, N)`.
        free: Those that are not clipped, else 0, `(B, N)`.
        slope: Their derivatives by the summary, `(B, N, d_s)`.
        mass: The relative change of the mass with mass at each observation, `(B, N)`.
    """

    observations: Observations
    weight: Tensor
    free: Tensor
    slope: Tensor
    mass: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, observations: Observations, view: View, s: Tensor, threshold: float) -> Response:
        """At summaries `(B, d_s)`, float64.

        Arguments:
            observations: What the kernels see.
            view: That of the kernel that estimates densities.
            s: The adapted summaries.
            threshold: Above it a mass of the model counts as 1.
        """
        mu, J = view.decode_with_slopes(s, observations.local.dtype)
        fit = observations.fit(mu)
        weight, mass = fit.weight(threshold), fit.used_mass(threshold)
        unclipped = ((weight > 0) & (weight < fit.share)).double() * fit.share
        fitted = ((mass < 1) & (fit.mass == mass)).double()  # neither taken as 1 nor clipped

        by_density = (observations.local @ J.mT).double()
        mu, J = mu.double(), J.double()
        square = mu.square().sum(1, keepdim=True)
        share = fit.share[..., None] / fit.share.sum(1)[:, None, None]
        by_mass = (share * by_density).sum(1) - 2 * fit.mass[:, None] * (J @ mu[..., None]).squeeze(
            -1
        )
        by_mass = fitted[:, None] * by_mass / square / mass[:, None]
        slope = mass[:, None, None] * by_density / fit.own[..., None]
        slope = unclipped[..., None] * (slope + (weight / fit.share)[..., None] * by_mass[:, None])
        mean = (fit.share * fit.density).sum(1, keepdim=True) / fit.share.sum(1, keepdim=True)
        free = torch.where(unclipped > 0, weight, 0.0)
        return cls(observations, weight, free, slope, fitted[:, None] * (fit.density / mean - 1))

    def feedback(self, fixed: Tensor) -> Tensor:
        """T, `(B, d_s, d_s)`, from A, the influences at weights of one, `(B, N, d_s)`."""
        total = self.weight.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return fixed.transpose(1, 2) @ self.slope / total[:, None, None]

    def influence(self, fixed: Tensor) -> Tensor:
        """Influences times the mean weight, `(B, N, d_s)`, from A, those at weights of one."""
        seen, pull = self.observations, self.free[..., None] * fixed
        share = seen.share[..., None]
        num = share.sum(1, keepdim=True)
        lost = share * seen.kernel.through(pull / seen.own[..., None]) / num
        mean = pull.sum(1, keepdim=True) / num
        direct = self.weight[..., None] * fixed - lost + share * (1 + self.mass[..., None]) * mean
        T = self.feedback(fixed)
        identity = torch.eye(fixed.shape[2], dtype=fixed.dtype, device=fixed.device)
        return solve(identity - T, direct.transpose(1, 2)).transpose(1, 2)


__all__ = ["Response"]
