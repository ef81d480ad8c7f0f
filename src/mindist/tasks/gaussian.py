r"""The Gaussian location task (appendix "Gaussian Task").

.. math::
    \theta \sim \mathcal{N}_d(0, I), \qquad x_i \mid \theta \sim \mathcal{N}_d(\theta, I), \qquad
    \theta \mid x_{1:N} \sim \mathcal{N}_d\left(\frac{N}{N+1} \bar x, \frac{1}{N+1} I\right) .
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from mindist import checks
from mindist.tasks.task import Task


@dataclass(frozen=True)
class GaussianTask(Task):
    """Location of a Gaussian in `dim` = d dimensions, with outliers at plus or minus delta.

    Example:
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> theta = task.sample_prior(3, generator)
        >>> x = task.simulate(theta, generator=generator)
        >>> x.shape, task.summary(x).shape
        (torch.Size([3, 100, 2]), torch.Size([3, 2]))
        >>> task.contaminate(x, epsilon=1.0, generator=generator).abs().unique()
        tensor([3.])
    """

    dim: int = 2
    num_obs: int = 100

    name: ClassVar[str] = "gaussian"
    num_simulations: ClassVar[int] = 50_000
    card: ClassVar[str] = """\
Gaussian location
  prior          theta ~ N(0, I_d)
  simulator      x_n ~ N(theta, I_d), n = 1, ..., N
  summary        the sample mean (sufficient); the paper learns one, see summary_network
  contamination  with probability epsilon, x_n becomes z_n delta (1, ..., 1), z_n = +1 or -1
  defaults       d = 2, N = 100, delta = 3; 50,000 simulations
  reference      Elsemueller et al., Does unsupervised domain adaptation improve the robustness of
                 amortized Bayesian inference?, 2025, Experiment 2"""

    def __post_init__(self) -> None:
        checks.positive(self.dim, "dim")
        checks.positive(self.num_obs, "num_obs")

    @property
    def dim_summary(self) -> int:
        return self.dim

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def prior(self) -> MultivariateNormal:
        return MultivariateNormal(torch.zeros(self.dim), torch.eye(self.dim))

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw parameters `(num, d)` from the prior."""
        return torch.randn(num, self.dim, generator=generator)

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate datasets `(B, N, d)` given parameters `(B, d)`."""
        theta = checks.parameters(theta, self.prior, "finite numbers")
        N = checks.size(num_observations, self.num_obs)
        return theta[:, None] + torch.randn(len(theta), N, self.dim, generator=generator)

    @staticmethod
    def summary(x: Tensor) -> Tensor:
        """Return the sample mean `(B, d)` of datasets `(B, N, d)`, sufficient here."""
        return x.mean(1)

    def contaminate(
        self, x: Tensor, epsilon: float, *, delta: float = 3.0, generator: torch.Generator
    ) -> Tensor:
        """Replace observations of `(B, N, d)` by plus or minus `delta`, one sign for all d."""
        x = checks.datasets(x, self.event_shape)
        replaced = torch.rand(x.shape[:2], generator=generator) < checks.fraction(epsilon)
        sign = 2.0 * torch.randint(2, (*x.shape[:2], 1), generator=generator) - 1
        return torch.where(replaced[..., None], (delta * sign).to(x.dtype), x)

    def posterior(self, x: Tensor) -> "Independent[Normal]":
        """Return the exact posterior given datasets `(B, N, d)`, a batch of B distributions."""
        return self.posterior_given_mean(x.mean(1), x.shape[1])

    def posterior_given_mean(
        self, s: Tensor, num_observations: int | None = None
    ) -> "Independent[Normal]":
        """Return the exact posterior given sample means `(B, d)` of N observations."""
        n = self.num_obs if num_observations is None else num_observations
        return Independent(Normal(s * n / (n + 1), torch.full_like(s, (n + 1) ** -0.5)), 1)
