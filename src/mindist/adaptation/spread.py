r"""Summaries around an adapted one, that stand for its uncertainty.

.. math:: s_j = s^\star + U^{1/2} q_j , \qquad j = 1, \dots, J ,

with fixed, evenly spread points :math:`q_j` that have the mean 0 and the covariance I of a standard
normal exactly, so that :math:`s_j` have mean :math:`s^\star` and covariance U. The root is the
symmetric one in standard deviations of the simulated summaries: unlike other roots it changes
little where U does.

References:
    Owen, Scrambling Sobol' and Niederreiter-Xing Points, Journal of Complexity 14 (1998).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from mindist.adaptation.noise import SummaryNoise

# A power of two, for which Sobol points are balanced. In one direction neighbours among 32 are
# mostly less than .15 standard deviations apart: less than the posterior's width until U is 40 V.
NUM_POINTS = 32


def standard_points(num: int, dim: int) -> Tensor:
    """Points `(num, dim)`, float64, like a sample of a standard normal, and always the same.

    Their mean is 0 and their covariance (with divisor `num`) the identity, in the first `num - 1`
    dimensions at least.

    Example:
        >>> q = standard_points(32, 2)
        >>> q.mean(0).abs().max() < 1e-12, torch.allclose(q.T @ q / 32, torch.eye(2).double())
        (tensor(True), True)
    """
    uniform = SobolEngine(dim, scramble=True, seed=0).draw(num, dtype=torch.float64)
    edge = 1 / (4 * num)  # a draw may be 0, whose quantile is infinite
    q = torch.special.ndtri(uniform.clamp(edge, 1 - edge))
    q = q - q.mean(0)
    some = min(dim, num - 1)
    orthogonal, triangle = torch.linalg.qr(q[:, :some])
    sign = triangle.diagonal().sign()  # so that each dimension stays close to what it was
    return torch.cat([num**0.5 * sign * orthogonal, q[:, some:]], dim=1)


def spread(s_star: Tensor, excess: Tensor, noise: SummaryNoise, num: int = NUM_POINTS) -> Tensor:
    """Summaries `(B, num, d_s)`, float64, with mean `s_star` and covariance U.

    None lies outside the range of simulated summaries, where the posterior would extrapolate,
    unless `s_star` itself does.

    Arguments:
        s_star: Adapted summaries `(B, d_s)`.
        excess: U, `(B, d_s, d_s)`.
        noise: Knows scale and range of the simulated summaries.
        num: J.
    """
    s_star, scale = s_star.double()[:, None], noise.scale
    value, vector = torch.linalg.eigh(excess.double() / scale[:, None] / scale)
    root = (vector * value.clamp(min=0).sqrt()[:, None, :]) @ vector.transpose(1, 2)
    q = standard_points(num, s_star.shape[2]).to(s_star.device)
    s: Tensor = s_star + scale * (q @ root)
    return s.maximum(s_star.minimum(noise.low)).minimum(s_star.maximum(noise.high))


__all__ = ["NUM_POINTS", "spread", "standard_points"]
