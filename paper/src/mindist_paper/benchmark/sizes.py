"""How much each profile measures: the one table of sizes.

`smoke` runs every line and shows the direction of a ratio in minutes; `full` has the sizes that the
claims are made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.experiments.profiles import SIZES as EXPERIMENTS


@dataclass(frozen=True)
class Sizes:
    """Sizes of one profile.

    Arguments:
        simulations: M, simulated datasets to fit to.
        held_out: Simulated datasets on which decoders are compared.
        observed: B, observed datasets.
        one_by_one: Of these, how many a contender gets that takes them one at a time.
        alone: Datasets over which the time of one dataset alone is averaged.
        rounds: Timings of each contender.
        slow_rounds: The same where a run takes seconds or minutes.
        embedding: Datasets, observations and dimension of each embedding.
        memory: Numbers of datasets whose embedding is watched for memory.
        max_epochs: Passes of the paper's network at most.
        num_shuffles: Of sbi's test; 1,000 is its default.
        npe: Training that differs from the paper's (`mindist.posteriors.sbi_training.train_npe`).
        samples: Posterior samples for a dataset.
        options: Of each task.
        tasks: Whose decoders are fitted.
        posterior_tasks: Whose posteriors are trained.
        growth: Quantity: the sizes it grows through.
    """

    simulations: int
    held_out: int
    observed: int
    one_by_one: int
    alone: int
    rounds: int
    slow_rounds: int
    embedding: tuple[tuple[int, int, int], ...]
    memory: tuple[int, ...]
    max_epochs: int
    num_shuffles: int
    npe: Mapping[str, Any]
    samples: int
    growth: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: tuple[str, ...] = ("gaussian", "oup", "sir", "cryo_em")
    posterior_tasks: tuple[str, ...] = ("gaussian", "oup", "sir")


PROFILES: dict[str, Sizes] = {
    "smoke": Sizes(
        simulations=600,
        held_out=200,
        observed=60,
        one_by_one=3,
        alone=2,
        rounds=3,
        slow_rounds=1,
        embedding=((200, 100, 2), (20, 100, 1_024)),
        memory=(1_000, 10_000),
        max_epochs=100,
        num_shuffles=50,
        npe=EXPERIMENTS["smoke"]["gaussian"].training,
        samples=100,
        growth={
            "simulations": (400, 1_600),
            "observations": (10, 300),
            "dimension": (2, 16),
            "features": (64, 128),
            "datasets": (10, 100),
        },
        options={name: size.options for name, size in EXPERIMENTS["smoke"].items()},
        tasks=("gaussian", "oup"),
        posterior_tasks=("oup",),
    ),
    "full": Sizes(
        simulations=10_000,
        held_out=2_000,
        observed=1_000,
        one_by_one=30,
        alone=5,
        rounds=15,
        slow_rounds=3,
        embedding=((2_000, 100, 2), (200, 100, 1_024)),
        memory=(1_000, 10_000, 100_000),
        max_epochs=200,
        num_shuffles=1_000,
        npe=EXPERIMENTS["paper"]["oup"].training,
        samples=1_000,
        growth={
            "simulations": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
            "observations": (10, 100, 1_000, 10_000, 100_000),
            "dimension": (2, 8, 32, 128, 512, 1_024, 2_048, 4_096),
            "features": (64, 128, 256, 512, 1_024, 2_048, 4_096),
            "datasets": (1, 10, 100, 1_000, 10_000, 100_000),
        },
    ),
}

__all__ = ["PROFILES", "Sizes"]
