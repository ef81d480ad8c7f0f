r"""The members that every task offers, and the parts that several tasks share.

.. math::
    \theta \sim \pi, \qquad x_n \mid \theta \overset{iid}{\sim} p_\theta \; (n \leq N), \qquad
    s = f(x_{1:N}), \qquad \tilde x_{1:N} \sim C_\epsilon(x_{1:N}),

a prior, a simulator of datasets of N exchangeable observations, the paper's summary statistic, and
the paper's contamination of a fraction :math:`\epsilon` of the observations.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from mindist import checks

CHUNK_BYTES = 2**24  # of data simulated at once, as much as `MinimumDistance.fit` reads at once


@runtime_checkable
class Task(Protocol):
    """A simulator with its prior, summary and contamination.

    A task is a frozen dataclass without state: every draw comes from the generator that is passed,
    so equal seeds give equal data. Inherit from this class to get `simulate_chunks`, or offer the
    same members.

    Example:
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> theta, x = next(task.simulate_chunks(1_000, generator=generator, chunk=300))
        >>> theta.shape, x.shape
        (torch.Size([300, 2]), torch.Size([300, 100, 2]))
    """

    name: ClassVar[str]
    """Key of the task in `mindist.tasks.TASKS`."""
    num_simulations: ClassVar[int]
    """Number of datasets that the paper trains on."""

    @property
    def card(self) -> str:
        """A few lines for people: equations, defaults, contamination, reference."""

    @property
    def dim_theta(self) -> int:
        """Number of parameters, d_theta."""
        return self.prior.event_shape.numel()

    @property
    def dim_summary(self) -> int:
        """Length of a summary, d_s."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""

    @property
    def num_obs(self) -> int:
        """Default number N of observations of a dataset."""

    @property
    def prior(self) -> Distribution:
        """The prior, for sbi and for densities: `sample`, `log_prob`, `support`."""

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw parameters `(num, d_theta)` from the prior."""

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate datasets `(B, N, *event)`, float32, given `(B, d_theta)` in the support."""

    def summary(self, x: Tensor, /) -> Tensor:
        """Return the paper's summaries `(B, d_s)` of datasets `(B, N, *event)`; picklable."""

    def contaminate(self, x: Tensor, epsilon: float, *, generator: torch.Generator) -> Tensor:
        """Return a copy with each observation contaminated with probability epsilon."""

    def summary_network(self, width: int = 64) -> nn.Module:
        """Build the paper's learned summary, untrained: `(B, N, *event)` to `(B, d_s)`."""
        return SetNetwork(torch.Size(self.event_shape).numel(), width, self.dim_summary)

    def simulate_chunks(
        self, num: int, *, generator: torch.Generator, chunk: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Simulate from the prior, a chunk at a time.

        Yields pairs of parameters `(b, d_theta)` and datasets `(b, N, *event)`, `num` in all and
        `chunk` at once, by default about 16 MB of them. `fit` takes such a stream:
        `mds.fit(x for _, x in task.simulate_chunks(10_000, generator=g))`.
        """
        size = 4 * self.num_obs * torch.Size(self.event_shape).numel()
        chunk = max(1, CHUNK_BYTES // size) if chunk is None else checks.positive(chunk, "chunk")
        for first in range(0, num, chunk):
            theta = self.sample_prior(min(chunk, num - first), generator)
            yield theta, self.simulate(theta, generator=generator)


class SetNetwork(nn.Module):
    r"""The network :math:`f(x_{1:N}) = \rho(\frac1N \sum_n \phi(x_n))` of Deep Sets (NeurIPS 2017).

    An `encoder`, if given, takes observations `(..., *event)` to `(..., inputs)` first.
    """

    def __init__(self, inputs: int, width: int, outputs: int, encoder: Any = None) -> None:
        super().__init__()
        layers = [nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()]
        self.phi = nn.Sequential(*([] if encoder is None else [encoder]), *layers)
        self.rho = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.rho(self.phi(x).mean(-2))
        return result


def lag_correlation(before: Tensor, after: Tensor) -> Tensor:
    """Return Pearson's correlation over the last axis; 1 where either is constant."""
    a = before - before.mean(-1, keepdim=True)
    b = after - after.mean(-1, keepdim=True)
    scale = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.where(scale > 0, a.mul_(b).sum(-1) / scale, 1.0)


def long_enough(length: int, name: str, what: str) -> None:
    if length < 3:
        raise checks.wrong(name, f"at least 3 {what}, which a lag-1 correlation needs", length)
