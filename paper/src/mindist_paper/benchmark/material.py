"""How much each profile measures, and what the contenders work on: parts are made once and kept."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mindist.decoders import MLPDecoder
from mindist.features import FourierFeatures
from mindist.features.kernel import median_distance
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.sbi_bridge import train_npe
from mindist.tasks import Task
from mindist_paper.benchmark.literal import NUM_FEATURES, LiteralPipeline
from mindist_paper.tasks import get_task

EPSILON = 0.2
T = TypeVar("T")
GROWTH = {
    "simulations": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "observations": (10, 100, 1_000, 10_000, 100_000),
    "dimension": (2, 8, 32, 128, 512, 1_024, 2_048, 4_096),
    "features": (64, 128, 256, 512, 1_024, 2_048, 4_096),
    "datasets": (1, 10, 100, 1_000, 10_000, 100_000),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of one profile; the defaults are those of `full`."""

    simulations: int = 10_000  # M, simulated datasets to fit to
    held_out: int = 2_000  # simulated datasets on which decoders are compared
    observed: int = 1_000  # B, observed datasets
    one_by_one: int = 30  # of these, how many a contender gets that takes them one at a time
    alone: int = 5  # datasets over which the time of one dataset alone is averaged
    rounds: int = 15  # timings of each contender
    slow_rounds: int = 3  # the same where a run takes seconds or minutes
    # datasets, observations, dimension
    embedding: tuple[tuple[int, int, int], ...] = ((2_000, 100, 2), (200, 100, 1_024))
    memory: tuple[int, ...] = (1_000, 10_000, 100_000)  # datasets embedded, watched for memory
    epochs: int = 200  # passes of the paper's network at most
    num_shuffles: int = 1_000  # of sbi's test; this is its default
    # training that differs from the paper's
    npe: Mapping[str, Any] = field(default_factory=lambda: {"max_num_epochs": 100})
    samples: int = 1_000  # posterior samples for a dataset
    # the sizes that each quantity grows through
    growth: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: GROWTH)
    tasks: tuple[str, ...] = ("gaussian", "oup", "sir")  # decoders fitted, posteriors trained
    options: Mapping[str, Any] = field(default_factory=dict)  # of every task


SMOKE = {"simulations": (400, 1_600), "observations": (10, 300), "dimension": (2, 16)}
PROFILES = {
    "smoke": Sizes(
        *(600, 200, 60, 3, 2, 3, 1),
        embedding=((200, 100, 2), (20, 100, 1_024)),
        memory=(1_000, 10_000),
        epochs=100,
        num_shuffles=50,
        npe={"density_estimator": "mdn", "max_num_epochs": 2},
        samples=100,
        growth={**SMOKE, "features": (64, 128), "datasets": (10, 100)},
        tasks=("oup",),
        options={"num_obs": 20},
    ),
    "full": Sizes(),
}


class Simulated(NamedTuple):
    """Parameters `(M, d_theta)`, datasets `(M, N, *event)` and summaries `(M, d_s)`."""

    theta: Tensor
    x: Tensor
    s: Tensor


class Embedded(NamedTuple):
    """Summaries and mean embeddings to fit a decoder to, and others to test it on."""

    s: Tensor
    z_bar: Tensor
    s_test: Tensor
    z_test: Tensor


class Material:
    """Parts by task, each made once."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._parts: dict[tuple[str, str], Any] = {}

    def task(self, name: str) -> Task:
        """Return the paper's task."""
        return get_task(name, **self.sizes.options)

    def simulated(self, name: str) -> Simulated:
        """Return the simulations of a task; only the last one's are kept, 1.5 GB for SIR."""

        def make() -> Simulated:
            for other in [key for key in self._parts if key[0] == "simulated"]:
                del self._parts[other]
            task, generator = self.task(name), torch.Generator().manual_seed(0)
            chunks = task.simulate_chunks(self.sizes.simulations, generator=generator)
            theta, x = (torch.cat(part) for part in zip(*chunks, strict=True))
            return Simulated(theta, x, torch.cat([task.summary(part) for part in x.split(1_000)]))

        return self._once("simulated", name, make)

    def observed(self, name: str) -> tuple[Tensor, Tensor]:
        """Return datasets before and after a fifth of their observations was contaminated."""

        def make() -> tuple[Tensor, Tensor]:
            task, generator = self.task(name), torch.Generator().manual_seed(1)
            theta = task.sample_prior(self.sizes.observed, generator)
            x = task.simulate(theta, generator=generator)
            return x, task.contaminate(x, EPSILON, generator=generator)

        return self._once("observed", name, make)

    def default(self, name: str) -> MinimumDistance:
        """Return our default, fitted."""
        mds = MinimumDistance(self.task(name).summary)
        return self._once("default", name, lambda: mds.fit(self.simulated(name).x))

    def paper(self, name: str) -> MinimumDistance:
        """Return our paper preset, fitted."""
        mds = MinimumDistance.paper(self.task(name).summary)
        mds.decoder = MLPDecoder(max_epochs=self.sizes.epochs)
        return self._once("paper", name, lambda: mds.fit(self.simulated(name).x))

    def literal(self, name: str) -> LiteralPipeline:
        """Return the paper's pipeline from stock parts, fitted."""
        summary, epochs = self.task(name).summary, self.sizes.epochs
        fit = LiteralPipeline.fit
        return self._once("literal", name, lambda: fit(summary, self.simulated(name).x, epochs))

    def npe(self, name: str) -> Any:
        """Return a neural posterior trained as in the paper on the same simulations."""
        return self._once("npe", name, lambda: self.train_npe(name))

    def train_npe(self, name: str) -> Any:
        """Train a neural posterior, whether or not one is at hand."""
        data = self.simulated(name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Data has extreme outliers")  # simulated, and meant
            return train_npe(self.task(name).prior, data.theta, data.s, seed=0, **self.sizes.npe)

    def embedded(self, name: str) -> Embedded:
        """Return summaries and mean embeddings in the paper's features, for the decoders."""
        x, s, held_out = self.simulated(name).x, self.simulated(name).s, self.sizes.held_out
        generator = torch.Generator().manual_seed(0)
        bandwidth = median_distance(x[:100], generator)
        features = FourierFeatures.draw(
            tuple(x.shape[2:]), NUM_FEATURES, bandwidth=bandwidth, generator=generator
        )
        z_bar = torch.cat([features.mean(part) for part in x.split(1_000)])
        return Embedded(s[held_out:], z_bar[held_out:], s[:held_out], z_bar[:held_out])

    def _once(self, kind: str, name: str, make: Callable[[], T]) -> T:
        if (kind, name) not in self._parts:
            self._parts[kind, name] = make()
        part: T = self._parts[kind, name]
        return part
