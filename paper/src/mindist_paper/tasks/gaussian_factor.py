r"""The Gaussian factor model (appendix "Data Dimension Ablation").

.. math::
    \theta \sim \mathcal{N}_2(0, I), \qquad x_i \mid \theta \sim \mathcal{N}_D(A \theta, I_D),
    \qquad s = A^+ \bar x .

The paper gives no law of A. Here its columns are orthonormal: :math:`A^+ = A^\top`, and the
posterior is :math:`\mathcal{N}_2(N s / (N + 1), I / (N + 1))` for every D.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from mindist import checks
from mindist.tasks.gaussian import GaussianTask
from mindist.tasks.task import Task

_LOCATION = GaussianTask()


@dataclass(frozen=True)
class GaussianFactorTask(Task):
    """Two factors of a Gaussian in `dim` = D dimensions; `seed` draws the matrix A."""

    dim: int = 10
    num_obs: int = 100
    seed: int = 0

    name: ClassVar[str] = "gaussian_factor"
    dim_theta: ClassVar[int] = 2
    dim_summary: ClassVar[int] = 2
    num_simulations: ClassVar[int] = 50_000
    card: ClassVar[str] = """\
Gaussian factor model
  prior          theta ~ N(0, I_2)
  simulator      x_n ~ N(A theta, I_D), n = 1, ..., N; A (D x 2) with random orthonormal columns
  summary        A^+ x_bar, where A^+ is the transpose of A (sufficient)
  contamination  with probability epsilon, x_n becomes z_n delta (1, ..., 1), z_n = +1 or -1
  defaults       D = 10 (paper: 2, 5, 10, 50, 100), N = 100, delta = 5; 50,000 simulations
  reference      the paper, appendix Data Dimension Ablation"""

    def __post_init__(self) -> None:
        checks.positive(self.num_obs, "num_obs")
        if self.dim < 2:
            raise ValueError(f"dim: expected at least 2, one for each factor, got {self.dim}.")

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return (self.dim,)

    @property
    def prior(self) -> MultivariateNormal:
        """The standard normal prior, as a torch distribution."""
        return _LOCATION.prior

    @cached_property
    def projection(self) -> Tensor:
        """Matrix A `(D, 2)` with orthonormal columns, uniformly distributed over the seeds."""
        generator = torch.Generator().manual_seed(self.seed)
        normal = torch.randn(self.dim, 2, generator=generator, dtype=torch.float64)
        Q, R = torch.linalg.qr(normal)
        A: Tensor = Q * R.diagonal().sign()  # without the signs it would not be uniform
        return A.float()

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw parameters `(num, 2)` from the prior."""
        return _LOCATION.sample_prior(num, generator)

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate datasets `(B, N, D)` given parameters `(B, 2)`."""
        theta = checks.parameters(theta, self.prior, "finite numbers")
        N = checks.size(num_observations, self.num_obs)
        mean = theta @ self.projection.to(theta.dtype).T
        return mean[:, None] + torch.randn(len(theta), N, self.dim, generator=generator)

    def summary(self, x: Tensor) -> Tensor:
        """Return the least-squares factors `(B, 2)` of the mean of datasets `(B, N, D)`."""
        return x.mean(1) @ self.projection.to(x.dtype)

    def contaminate(
        self, x: Tensor, epsilon: float, *, delta: float = 5.0, generator: torch.Generator
    ) -> Tensor:
        """Replace observations of `(B, N, D)` by plus or minus `delta`, one sign for all D."""
        outliers = GaussianTask(self.dim)
        return outliers.contaminate(x, epsilon, delta=delta, generator=generator)

    def posterior(self, x: Tensor) -> Independent[Normal]:
        """Return the exact posterior given datasets `(B, N, D)`, a batch of B distributions."""
        return _LOCATION.posterior_given_mean(self.summary(x), x.shape[1])
