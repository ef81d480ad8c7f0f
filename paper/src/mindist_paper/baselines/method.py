"""A method is trained on simulations and queried with raw datasets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import find_backend
from mindist.posteriors.queries import Conditions, Queries
from mindist.posteriors.robust import MAX_DRAWS_PER_SAMPLE
from mindist.protocols import Array, Summary
from mindist.summarise import Summariser
from mindist.tasks import Task

if TYPE_CHECKING:
    from mindist_paper.baselines.npe import NeuralPosterior

BLOCK_DATASETS = 1_000  # summarised at once


@runtime_checkable
class Method(Protocol):
    """A posterior over parameters given raw datasets."""

    def sample(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, d_theta)` given one dataset `(N, *event)`."""

    def sample_batched(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, B, d_theta)` given datasets `(B, N, *event)`."""

    def used_summary(self, x: Array) -> Tensor:
        """Return the summaries `(B, d_s)` at which the posterior is queried."""


@dataclass(frozen=True)
class SpikeAndSlab:
    """The error model between a latent summary x and an observed one y, in every coordinate."""

    rho: float = 0.5  # Probability of the slab; the paper prints 1
    sigma: float = 0.01  # Standard deviation of the spike
    tau: float = 0.2  # Half-width of the slab

    def __post_init__(self) -> None:
        if not 0 <= self.rho <= 1:
            raise ValueError(f"rho: expected a probability between 0 and 1, got {self.rho}.")
        for name, value in (("sigma", self.sigma), ("tau", self.tau)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number, got {value}.")

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw independent errors y - x, float64, of any shape."""
        which, where = torch.rand((2, *shape), generator=generator, dtype=torch.float64)
        spike = self.sigma * torch.randn(shape, generator=generator, dtype=torch.float64)
        slab = self.tau * torch.tan(math.pi * (where - 0.5))
        return torch.where(which < self.rho, slab, spike)

    def log_prob(self, y: Tensor, x: Tensor) -> Tensor:
        """Return log p(y given x) for each coordinate of summaries, `(*, d_s)`."""
        error = y - x
        spike = -0.5 * (error / self.sigma).square() - math.log(self.sigma * math.sqrt(2 * math.pi))
        slab = -torch.log1p((error / self.tau).square()) - math.log(self.tau * math.pi)
        if self.rho in (0.0, 1.0):
            return slab if self.rho else spike
        return torch.logaddexp(spike + math.log1p(-self.rho), slab + math.log(self.rho))


@dataclass(frozen=True)
class Training:
    """How a density estimator is trained; the defaults are the paper's and, below it, sbi's."""

    density_estimator: str = "nsf"  # one of sbi's; the paper's is a neural spline flow
    learning_rate: float = 5e-4  # step size of Adam, the paper's
    batch_size: int = 200  # simulations in a gradient step
    max_num_epochs: int = 2**31 - 1  # "until convergence": the paper
    stop_after_epochs: int = 20  # passes without a lower held-out loss before stopping


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen about a method; each method reads what concerns it."""

    training: Training = field(default_factory=Training)  # How density estimators are trained
    learned_summary: bool = False  # train the task's summary network with the NPE; NPE-RS does
    npe: NeuralPosterior | None = None  # to build on, instead of training another
    error_model: SpikeAndSlab = field(default_factory=SpikeAndSlab)  # of NNPE
    penalty: float = 10.0  # lambda of NPE-RS; the paper's best on the Gaussian task
    x_obs: Tensor | None = None  # The observed datasets `(B, N, *event)` that NPE-RS is trained for
    bandwidth: float | str = "median"
    search: Mapping[str, Any] = field(default_factory=dict)  # fields of `Search` that differ
    estimator: Mapping[str, Any] = field(default_factory=dict)  # arguments of `mds` that differ
    checkpoint: str | os.PathLike[str] | None = None  # TabPFN's weights; else of `make tabpfn`
    seed: int = 0  # Seed of everything random in training


@dataclass(frozen=True)
class Simulations:
    """The training data of a method."""

    theta: Tensor  # Parameters `(M, d_theta)`
    x: Tensor | Iterable[Tensor]  # `(M, N, *event)`, or chunks to iterate more than once
    s: Tensor | None = None  # The task's summaries `(M, d_s)`, if they are known already

    def __post_init__(self) -> None:
        for name, value in {"x": self.x, "s": self.s}.items():
            if isinstance(value, Tensor) and len(value) != len(self.theta):
                what = f"one entry for each of the {len(self.theta)} parameters"
                raise ValueError(f"{name}: expected {what}, got {len(value)}.")

    def datasets(self) -> Tensor:
        """Return all datasets `(M, N, *event)` in memory, which a summary network needs."""
        return self.x if isinstance(self.x, Tensor) else torch.cat(list(self.x))

    def chunks(self) -> Iterable[Tensor]:
        """Return the datasets, some at a time."""
        return self.x.split(BLOCK_DATASETS) if isinstance(self.x, Tensor) else self.x

    def summaries(self, summary: Summary, *, task_summary: bool = False) -> Tensor:
        """Return summaries `(M, d_s)`; the stored ones if they are those of the task."""
        if task_summary and self.s is not None:
            return self.s
        summarise = Summariser(summary)
        return torch.cat([summarise(chunk) for chunk in self.chunks()])

    def pooled_observations(self, size: int, generator: torch.Generator) -> Tensor:
        """Return a subsample `(size, D)` of the observations of all datasets, flattened."""
        each = -(-size // len(self.theta))
        parts = []
        for chunk in self.chunks():
            flat = chunk.flatten(2) if chunk.dim() > 2 else chunk[..., None]
            order = torch.rand(flat.shape[:2], generator=generator).argsort(1)[:, :each]
            parts.append(flat.gather(1, order[..., None].expand(-1, -1, flat.shape[2])))
        pooled = torch.cat(parts).flatten(0, 1)
        return pooled[torch.randperm(len(pooled), generator=generator)[:size]]


Builder = Callable[[Task, Simulations, Options], Method]


class SummaryQueries:
    """A method that asks a posterior over summaries at a summary of the data."""

    def __init__(self, posterior: Any, summary: Summary, event_shape: Sequence[int]) -> None:
        self.posterior, self.summary = posterior, summary
        self.event_shape = tuple(event_shape)
        self._summarise = Summariser(summary)
        self._queries = Queries(find_backend(posterior), MAX_DRAWS_PER_SAMPLE)

    def used_summary(self, x: Array) -> Tensor:
        """Return the summaries `(B, d_s)` at which the posterior is queried."""
        return self._summaries(checks.observed(x, self.event_shape)[0])

    def sample(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, d_theta)` given one dataset `(N, *event)`."""
        batch = one_dataset(x, self.event_shape)
        return self.sample_batched(shape, batch, seed=seed)[..., 0, :]

    def sample_batched(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, B, d_theta)` given datasets `(B, N, *event)`."""
        at = Conditions.certain(self._queries.checked(self.used_summary(x)))
        return self._queries.sample(shape, at, seed=seed)

    def _summaries(self, x: Tensor) -> Tensor:
        """Return the summaries `(B, d_s)` to use for checked datasets `(B, N, *event)`."""
        return checks.finite_summaries(self._summarise(x))


def one_dataset(x: Array, event_shape: Sequence[int]) -> Tensor:
    """Return one checked dataset as a batch `(1, N, *event)`."""
    batch, _ = checks.observed(x, event_shape)
    if len(batch) != 1:
        got = f"got a batch of {len(batch)}. Use sample_batched."
        raise ValueError(f"x: expected one dataset (N, *event) or (1, N, *event), {got}")
    return batch
