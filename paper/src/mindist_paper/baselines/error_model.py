r"""The spike-and-slab error model between a latent summary x and an observed one y.

.. math::
    p(y \mid x) = \prod_j \left[(1-\rho)\, \mathcal{N}(y_j; x_j, \sigma^2)
        + \rho\, \mathrm{Cauchy}(y_j; x_j, \tau)\right] ,

in units of the standard deviations of simulated summaries: most summaries are hit by the spike,
a share :math:`\rho` may be anywhere.

Reference: Ward et al., Robust Neural Posterior Estimation, NeurIPS 2022, equation 8; the paper's
appendix "Further Experimental Details".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpikeAndSlab:
    r"""An error model, the same in every coordinate.

    The defaults are the paper's :math:`\sigma` and :math:`\tau` with spike and slab equally
    probable, as in Ward et al.: they give the accuracy that the paper's figures show.
    `SpikeAndSlab.printed()` has the paper's :math:`\rho = 1`, which leaves no spike and cannot
    give it (docs/baselines.md).

    Arguments:
        rho: Probability of the slab.
        sigma: Standard deviation of the spike.
        tau: Half-width of the slab.

    Example:
        >>> model = SpikeAndSlab(rho=1.0, tau=0.5)
        >>> model.log_prob(torch.zeros(1, 2), torch.zeros(1, 2)).exp()  # (1 / (0.5 pi))^2
        tensor([0.4053])
    """

    rho: float = 0.5
    sigma: float = 0.01
    tau: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise ValueError(f"rho: expected a probability between 0 and 1, got {self.rho}.")
        for name, value in (("sigma", self.sigma), ("tau", self.tau)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {value}.")

    @classmethod
    def printed(cls) -> SpikeAndSlab:
        """The values that the paper's appendix prints: the slab alone."""
        return cls(rho=1.0, sigma=0.01, tau=0.2)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Errors y - x, float64, of any shape, independent."""
        which, where = torch.rand((2, *shape), generator=generator, dtype=torch.float64)
        spike = self.sigma * torch.randn(shape, generator=generator, dtype=torch.float64)
        slab = self.tau * torch.tan(math.pi * (where - 0.5))
        return torch.where(which < self.rho, slab, spike)

    def log_prob(self, y: Tensor, x: Tensor) -> Tensor:
        """log p(y given x), `(*,)`, of observed and latent summaries `(*, d_s)`."""
        return self.log_prob_each(y, x).sum(-1)

    def log_prob_each(self, y: Tensor, x: Tensor) -> Tensor:
        """The same for each coordinate, `(*, d_s)`."""
        error = y - x
        spike = -0.5 * (error / self.sigma).square() - math.log(self.sigma * math.sqrt(2 * math.pi))
        slab = -torch.log1p((error / self.tau).square()) - math.log(self.tau * math.pi)
        if self.rho in (0.0, 1.0):
            return slab if self.rho else spike
        return torch.logaddexp(spike + math.log1p(-self.rho), slab + math.log(self.rho))


__all__ = ["SpikeAndSlab"]
