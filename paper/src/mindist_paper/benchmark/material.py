"""What the contenders work on: simulations, observed datasets, and everything fitted to them.

Each part is made when it is first asked for and then kept, so that one thread and all threads, and
groups that share a part, see the same one. Embedded simulations of the decoders' rows are kept on
disk as well, because 1.2 million images take minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mindist import storage
from mindist.decoders import MLPDecoder
from mindist.features import FourierFeatures
from mindist.features.bandwidth import median_distance
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.guards import quiet
from mindist.posteriors.sbi_training import train_npe
from mindist.tasks import Task
from mindist_paper.benchmark.literal import LiteralPipeline
from mindist_paper.benchmark.sizes import Sizes
from mindist_paper.tasks import get_task
from mindist_paper.tasks.molecule import HSP90_VARIABLE, hsp90

EPSILON = 0.2
NUM_FEATURES = 512
T = TypeVar("T")


@dataclass(frozen=True)
class Simulated:
    """Parameters `(M, d_theta)`, datasets `(M, N, *event)` and summaries `(M, d_s)`."""

    theta: Tensor
    x: Tensor
    s: Tensor


@dataclass(frozen=True)
class Observed:
    """Datasets before and after a fifth of their observations was contaminated."""

    x_clean: Tensor
    x_obs: Tensor


@dataclass(frozen=True)
class Embedded:
    """Summaries and mean embeddings to fit a decoder to, and others to test it on."""

    s: Tensor
    z_bar: Tensor
    s_test: Tensor
    z_test: Tensor


class Material:
    """Parts by task, each made once.

    Arguments:
        sizes: Of the profile.
        cache: The folder for embedded simulations.
    """

    def __init__(self, sizes: Sizes, cache: Path) -> None:
        self.sizes, self.cache = sizes, cache
        self._parts: dict[tuple[str, str], Any] = {}

    def task(self, name: str) -> Task:
        """The paper's task; cryo-EM images the paper's molecule where its file is at hand."""
        options = dict(self.sizes.options.get(name, {}))
        if name == "cryo_em" and self.molecule == "hsp90":
            options["molecule"] = hsp90()
        return self._once("task", name, lambda: get_task(name, **options))

    @property
    def molecule(self) -> str:
        """Of the cryo-EM task."""
        return "hsp90" if os.environ.get(HSP90_VARIABLE) else "synthetic chain"

    def simulated(self, name: str) -> Simulated:
        """The simulations of a task; only the last one's are kept, 1.5 GB for SIR."""

        def make() -> Simulated:
            for other in [key for key in self._parts if key[0] == "simulated"]:
                del self._parts[other]
            task, generator = self.task(name), torch.Generator().manual_seed(0)
            parts = zip(
                *task.simulate_chunks(self.sizes.simulations, generator=generator), strict=True
            )
            theta, x = (torch.cat(part) for part in parts)
            s = torch.cat([task.summary(chunk) for chunk in x.split(1_000)])
            return Simulated(theta, x, s)

        return self._once("simulated", name, make)

    def observed(self, name: str) -> Observed:
        """Observed datasets of a task."""

        def make() -> Observed:
            task, generator = self.task(name), torch.Generator().manual_seed(1)
            theta = task.sample_prior(self.sizes.observed, generator)
            x = task.simulate(theta, generator=generator)
            return Observed(x, task.contaminate(x, EPSILON, generator=generator))

        return self._once("observed", name, make)

    def default(self, name: str) -> MinimumDistance:
        """Our default, fitted."""
        return self._once(
            "default",
            name,
            lambda: MinimumDistance(self.task(name).summary).fit(self.simulated(name).x),
        )

    def paper(self, name: str) -> MinimumDistance:
        """Our paper preset, fitted."""

        def make() -> MinimumDistance:
            mds = MinimumDistance.paper(self.task(name).summary)
            mds.decoder = MLPDecoder(max_epochs=self.sizes.max_epochs)
            return mds.fit(self.simulated(name).x)

        return self._once("paper", name, make)

    def literal(self, name: str) -> LiteralPipeline:
        """The paper's pipeline from stock parts, fitted."""

        def make() -> LiteralPipeline:
            x, summary = self.simulated(name).x, self.task(name).summary
            return LiteralPipeline.fit(summary, x, max_epochs=self.sizes.max_epochs)

        return self._once("literal", name, make)

    def npe(self, name: str) -> Any:
        """A neural posterior trained as in the paper on the same simulations."""
        return self._once("npe", name, lambda: self.train_npe(name))

    def train_npe(self, name: str) -> Any:
        """Train it, whether or not it is at hand."""
        data = self.simulated(name)
        with quiet("Data has extreme outliers"):  # simulated, and meant
            return train_npe(self.task(name).prior, data.theta, data.s, seed=0, **self.sizes.npe)

    def embedded(self, name: str) -> Embedded:
        """Summaries and mean embeddings in the paper's features, for the decoders."""
        sizes, task = self.sizes, self.task(name)
        config = {
            "task": name,
            "molecule": self.molecule if name == "cryo_em" else "",
            "num_obs": task.num_obs,
            "simulations": sizes.simulations,
            "held_out": sizes.held_out,
        }

        def make() -> Embedded:
            folder = self.cache / "-".join(str(value) for value in config.values() if value)
            folder = folder.with_name(folder.name.replace(" ", "-"))
            try:
                return Embedded(**storage.read_artefact(folder, "Embedded")[1])
            except (FileNotFoundError, ValueError, TypeError):
                made = _embed(task, sizes.simulations, sizes.held_out)
                storage.write_artefact(folder, "Embedded", config, vars(made))
                return made

        return self._once("embedded", name, make)

    def _once(self, kind: str, name: str, make: Callable[[], T]) -> T:
        if (kind, name) not in self._parts:
            self._parts[kind, name] = make()
        part: T = self._parts[kind, name]
        return part


def _embed(task: Task, simulations: int, held_out: int) -> Embedded:
    """Simulate, summarise, embed, drop."""
    generator, features, s, z_bar = torch.Generator().manual_seed(0), None, [], []
    for _, x in task.simulate_chunks(simulations + held_out, generator=generator):
        if features is None:
            features = FourierFeatures.draw(
                tuple(task.event_shape),
                NUM_FEATURES,
                bandwidth=median_distance(x, torch.Generator().manual_seed(0)),
                generator=torch.Generator().manual_seed(0),
            )
        s.append(task.summary(x))
        z_bar.append(features.mean(x))
    split = [simulations, held_out]
    (s_fit, s_test), (z_fit, z_test) = torch.cat(s).split(split), torch.cat(z_bar).split(split)
    return Embedded(s_fit, z_fit, s_test, z_test)


__all__ = ["EPSILON", "Embedded", "Material", "Observed", "Simulated"]
