r"""The Ornstein-Uhlenbeck process (appendix "OUP Task").

.. math::
    \theta \sim \mathrm{U}[0, 2] \times \mathrm{U}[-2, 2], \qquad
    dX_t = \theta_1 (e^{\theta_2} - X_t) \, dt + \sigma \, dW_t, \qquad X_0 = 10,

in Euler-Maruyama steps of length :math:`\Delta`. An observation is a trajectory of T values, the
first of which is :math:`X_0`; contamination replaces trajectories by ones that explode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Independent, Uniform

from mindist import checks
from mindist.tasks.task import Task, lag_correlation, long_enough

LOW, HIGH = torch.tensor([0.0, -2.0]), torch.tensor([2.0, 2.0])


@dataclass(frozen=True)
class OrnsteinUhlenbeckTask(Task):
    """Speed and log level of mean reversion, from short noisy trajectories.

    A dataset has by default `num_obs` trajectories of `num_times` values, `step` apart, the first
    of which is `start`; `variance` is sigma^2, of the noise in a unit of time.

    Example:
        >>> task, generator = OrnsteinUhlenbeckTask(), torch.Generator().manual_seed(0)
        >>> x = task.simulate(torch.tensor([[1.0, 0.5]]), generator=generator)
        >>> x.shape, task.summary(x)
        (torch.Size([1, 100, 25]), tensor([[3.3173, 5.0554, 0.9969]]))
        >>> task.contaminate(x, 0.1, generator=generator).max() > 50
        tensor(True)
    """

    num_obs: int = 100
    num_times: int = 25
    step: float = 0.2
    variance: float = 0.1
    start: float = 10.0

    name: ClassVar[str] = "oup"
    dim_summary: ClassVar[int] = 3
    num_simulations: ClassVar[int] = 10_000
    card: ClassVar[str] = """\
Ornstein-Uhlenbeck process
  prior          theta_1 ~ U[0, 2], theta_2 ~ U[-2, 2]
  simulator      dX = theta_1 (exp(theta_2) - X) dt + sigma dW, X_0 = 10, Euler-Maruyama
  summary        mean, variance and lag-1 correlation over all trajectories and times
  contamination  with probability epsilon, a trajectory comes from theta = (-0.5, 1), sigma^2 = 0.5
  defaults       N = 100, T = 25 (X_0 included), dt = 0.2, sigma^2 = 0.1; 10,000 simulations
  reference      Huang et al., Learning robust statistics for simulation-based inference under model
                 misspecification, NeurIPS 2023"""

    def __post_init__(self) -> None:
        checks.positive(self.num_obs, "num_obs")
        long_enough(self.num_times, "num_times", "values of a trajectory")

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.num_times,)

    @property
    def prior(self) -> "Independent[Uniform]":
        return Independent(Uniform(LOW, HIGH), 1)

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw parameters `(num, 2)` from the prior."""
        return LOW + (HIGH - LOW) * torch.rand(num, 2, generator=generator)

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate trajectories `(B, N, T)` given parameters `(B, 2)`."""
        theta = checks.parameters(theta, self.prior, "0 <= theta_1 <= 2 and -2 <= theta_2 <= 2")
        N = checks.size(num_observations, self.num_obs)
        return self._trajectories(theta, N, self.variance, generator)

    def _trajectories(self, theta: Tensor, num: int, variance: float, generator: Any) -> Tensor:
        """Simulate trajectories `(B, num, T)` for any parameters `(B, 2)`."""
        # Time comes first while stepping, so that each step reads and writes memory in order.
        x = torch.randn(self.num_times, len(theta), num, generator=generator)
        x *= (variance * self.step) ** 0.5
        x[0] = self.start
        rate = (theta[:, :1] * self.step).to(x.dtype)
        keep, pull = 1 - rate, rate * theta[:, 1:].exp().to(x.dtype)
        for now, after in pairwise(x):
            after.add_(pull).addcmul_(now, keep)
        return x.permute(1, 2, 0).contiguous()

    @staticmethod
    def summary(x: Tensor) -> Tensor:
        """Return mean, variance and lag-1 correlation `(B, 3)` over all values of `(B, N, T)`."""
        x = checks.datasets(x, x.shape[-1:])
        values = x.flatten(1)
        correlation = lag_correlation(x[..., :-1].flatten(1), x[..., 1:].flatten(1))
        return torch.stack([values.mean(1), values.var(1, correction=0), correlation], 1)

    def contaminate(
        self,
        x: Tensor,
        epsilon: float,
        *,
        theta: Sequence[float] = (-0.5, 1.0),
        variance: float = 0.5,
        generator: torch.Generator,
    ) -> Tensor:
        """Replace trajectories of `(B, N, T)` by ones of other `theta`, in the prior or not."""
        x = checks.datasets(x, self.event_shape)
        replaced = torch.rand(x.shape[:2], generator=generator) < checks.fraction(epsilon)
        other, num = torch.tensor([tuple(theta)]), int(replaced.sum())
        result = x.clone()
        result[replaced] = self._trajectories(other, num, variance, generator)[0].to(x.dtype)
        return result
