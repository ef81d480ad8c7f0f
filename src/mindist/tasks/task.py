r"""What a task is: everything that an experiment needs to know about one simulator.

.. math::
    \theta \sim \pi, \qquad x_n \mid \theta \overset{iid}{\sim} p_\theta \; (n \leq N), \qquad
    s = f(x_{1:N}), \qquad \tilde x_{1:N} \sim C_\epsilon(x_{1:N}),

a prior, a simulator of datasets of N exchangeable observations, the paper's summary statistic, and
the paper's contamination of a fraction :math:`\epsilon` of the observations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

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
        >>> isinstance(task, Task)
        True
        >>> theta, x = next(task.simulate_chunks(1_000, generator=generator, chunk=300))
        >>> theta.shape, x.shape
        (torch.Size([300, 2]), torch.Size([300, 100, 2]))
    """

    @property
    def name(self) -> str:
        """The task's key in `mindist.tasks.TASKS`."""

    @property
    def card(self) -> str:
        """A few lines for people: equations, defaults, contamination, reference."""

    @property
    def dim_theta(self) -> int:
        """d_theta, the number of parameters."""

    @property
    def dim_summary(self) -> int:
        """d_s, the length of a summary."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""

    @property
    def num_obs(self) -> int:
        """N, the default number of observations of a dataset."""

    @property
    def num_simulations(self) -> int:
        """How many datasets the paper trains on."""

    @property
    def prior(self) -> Distribution:
        """The prior, for sbi and for densities: `sample`, `log_prob`, `support`."""

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Parameters `(num, d_theta)` from the prior."""

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Datasets `(B, N, *event)`, float32, given parameters `(B, d_theta)` in the support."""

    def summary(self, x: Tensor, /) -> Tensor:
        """The paper's summaries `(B, d_s)` of datasets `(B, N, *event)`; finite, and picklable."""

    def contaminate(self, x: Tensor, epsilon: float, *, generator: torch.Generator) -> Tensor:
        """Datasets with each observation contaminated with probability epsilon; `x` is kept."""

    def summary_network(self) -> nn.Module:
        """An untrained, permutation-invariant network `(B, N, *event)` to `(B, d_s)`."""

    def simulate_chunks(
        self, num: int, *, generator: torch.Generator, chunk: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Parameters and datasets from the prior, a chunk at a time.

        All of a paper's training data at once can be gigabytes; summaries and embeddings are all
        that has to be kept: `mds.fit(x for _, x in task.simulate_chunks(10_000, generator=g))`.

        Arguments:
            num: How many datasets in all.
            generator: Where the draws come from; equal seeds and chunks give equal data.
            chunk: How many datasets at once; by default about 16 MB of them.

        Returns:
            Pairs of parameters `(b, d_theta)` and datasets `(b, N, *event)`.
        """
        size = 4 * self.num_obs * torch.Size(self.event_shape).numel()
        chunk = max(1, CHUNK_BYTES // size) if chunk is None else checks.positive(chunk, "chunk")
        for first in range(0, num, chunk):
            theta = self.sample_prior(min(chunk, num - first), generator)
            yield theta, self.simulate(theta, generator=generator)
