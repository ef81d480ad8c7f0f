r"""The Gaussian location task (appendix "Gaussian Task").

.. math::
    \theta \sim \mathcal{N}_d(0, I), \qquad x_i \mid \theta \sim \mathcal{N}_d(\theta, I), \qquad
    \theta \mid x_{1:N} \sim \mathcal{N}_d\left(\frac{N}{N+1} \bar x, \frac{1}{N+1} I\right) .

Contamination replaces each observation, with probability :math:`\epsilon`, by the point
:math:`z_i \delta (1, \ldots, 1)` with a random sign :math:`z_i`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal


@dataclass(frozen=True)
class GaussianTask:
    """Location of a Gaussian with known unit covariance, under outlier contamination.

    Arguments:
        dim: d, the number of parameters and of coordinates of an observation.
        num_obs: N, the default number of observations of a dataset.

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

    @property
    def prior(self) -> MultivariateNormal:
        """The standard normal prior, as a torch distribution."""
        return MultivariateNormal(torch.zeros(self.dim), torch.eye(self.dim))

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return (self.dim,)

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Parameters `(num, d)` from the prior."""
        return torch.randn(num, self.dim, generator=generator)

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Datasets `(B, N, d)` given parameters `(B, d)`."""
        num_observations = self.num_obs if num_observations is None else num_observations
        noise = torch.randn(len(theta), num_observations, self.dim, generator=generator)
        return theta[:, None] + noise

    @staticmethod
    def summary(x: Tensor) -> Tensor:
        """The sample mean `(B, d)` of datasets `(B, N, d)`, sufficient here."""
        return x.mean(1)

    def contaminate(
        self, x: Tensor, epsilon: float, *, delta: float = 3.0, generator: torch.Generator
    ) -> Tensor:
        """Datasets `(B, N, d)` with each observation replaced with probability epsilon.

        Arguments:
            x: Clean datasets `(B, N, d)`.
            epsilon: Contaminated fraction.
            delta: Size of an outlier's coordinates; its sign is drawn, the same in all coordinates.
            generator: Chooses observations and signs.
        """
        replaced = torch.rand(x.shape[:2], generator=generator) < epsilon
        sign = 2.0 * torch.randint(2, (*x.shape[:2], 1), generator=generator) - 1
        return torch.where(replaced[..., None], (delta * sign).to(x.dtype), x)

    def posterior(self, x: Tensor) -> Independent[Normal]:
        """The exact posterior given datasets `(B, N, d)`, a batch of B distributions over theta."""
        return self.posterior_given_mean(x.mean(1), x.shape[1])

    def posterior_given_mean(
        self, s: Tensor, num_observations: int | None = None
    ) -> Independent[Normal]:
        """The exact posterior given sample means `(B, d)` of N observations."""
        n = self.num_obs if num_observations is None else num_observations
        scale = torch.full_like(s, (n + 1) ** -0.5)
        return Independent(Normal(s * n / (n + 1), scale), 1)

    def summary_network(self, width: int = 64) -> nn.Module:
        """A fully connected network on a set of observations, to be trained jointly with an NPE.

        The paper's "trained neural summary statistic" of this task. Observations share their
        layers and are averaged, so that it is invariant to their order and takes any N.
        """
        return SetNetwork(self.dim, width, self.dim)


class SetNetwork(nn.Module):
    r"""A permutation-invariant network :math:`f(x_{1:N}) = \rho(\frac1N \sum_n \phi(x_n))`.

    Reference: Zaheer et al., Deep Sets, NeurIPS 2017.

    Arguments:
        inputs: Length of an observation.
        width: Units of the hidden layers.
        outputs: Length of the summary.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(
            nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.rho = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Summaries `(B, outputs)` of datasets `(B, N, inputs)`."""
        result: Tensor = self.rho(self.phi(x).mean(-2))
        return result
