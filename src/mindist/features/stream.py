r"""One pass over simulated datasets: summaries and mean embeddings, the data itself dropped.

A learner that needs each of them once sees the leading 20,000 together and the others chunk by
chunk; of all of them a uniform sample of 20,000 is kept, so that memory does not grow with their
number. For a learner that needs them several times the summaries and embeddings of all are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import checks
from mindist.features import sources
from mindist.features.embedding import Embedding
from mindist.features.reservoir import Reservoir
from mindist.features.sources import SAMPLE_BYTES, SAMPLE_DATASETS, Choose, Embedded, Source


@dataclass(frozen=True)
class EmbeddedSimulations:
    """What is kept of simulated datasets: all of them, or a uniform sample.

    Arguments:
        s: Summaries `(m, d_s)`.
        z_bar: Mean embeddings `(m, K)`, float32, of both kernels.
        points: A few observations of each dataset `(m, n, *event)`, where a decoder wants them.
        index: Which of all datasets these are, in the order in which they were read, `(m,)`.
        embedding: What embedded them.
        sample: Some datasets `(m, N, *event)` and their summaries `(m, d_s)`.
    """

    s: Tensor
    z_bar: Tensor
    points: Tensor | None
    index: Tensor
    embedding: Embedding
    sample: tuple[Tensor, Tensor]

    @property
    def num_obs(self) -> int:
        """N, the number of observations of each dataset."""
        return self.sample[0].shape[1]

    @property
    def probe(self) -> Tensor:
        """One dataset `(1, N, *event)`."""
        return self.sample[0][:1].clone()


class Learner(Protocol):
    """What learns from simulations while they are read."""

    num_points: int
    """How many observations of each dataset to keep."""
    one_pass: bool
    """Whether each simulation is needed once; otherwise all are kept."""

    def begin(self, s: Tensor, z_bar: Tensor, points: Tensor | None, embedding: Embedding) -> None:
        """Learn from the leading simulations."""

    def add(self, s: Tensor, z_bar: Tensor) -> None:
        """Learn from further ones."""


class Keeper:
    """A reservoir that hands simulations to a learner: those that fill it together, then the rest.

    Arguments:
        learner: Learns from summaries and embeddings.
        embedding: What embedded them.
        draws: Decides which simulations give way to later ones; None to keep the first.
    """

    def __init__(
        self, learner: Learner, embedding: Embedding, draws: torch.Generator | None
    ) -> None:
        self._learner, self._embedding = learner, embedding
        self._reservoir = Reservoir(sources.MAX_KEPT if learner.one_pass else None, draws)
        self._begun = False

    def take(self, chunk: Embedded) -> None:
        """Learn from the simulations of a chunk, and keep some."""
        points = () if chunk.points is None else (chunk.points,)
        rest = self._reservoir.fill(chunk.s, chunk.z_bar, *points)
        if len(rest[0]):
            self._begin()
            self._learner.add(*rest[:2])
            self._reservoir.replace(*rest)

    def finish(self, sample: tuple[Tensor, Tensor]) -> EmbeddedSimulations:
        """What was kept."""
        self._begin()
        s, z_bar, *points = self._reservoir.rows()
        index = self._reservoir.index.to(s.device)
        kept_points = points[0] if points else None
        return EmbeddedSimulations(s, z_bar, kept_points, index, self._embedding, sample)

    def _begin(self) -> None:
        if not self._begun:
            s, z_bar, *points = self._reservoir.rows()
            self._learner.begin(s, z_bar, points[0] if points else None, self._embedding)
            self._begun = True


def embed_simulations(
    source: Source, choose: Choose, learner: Learner, *, seed: int, progress: bool = False
) -> EmbeddedSimulations:
    """Embed simulations in one pass, and hand them to a learner.

    Arguments:
        source: The simulations.
        choose: Chooses the embedding on a sample of them, unless the source has one.
        learner: Learns from summaries and embeddings.
        seed: Of the choice of those that are kept.
        progress: Whether to show a progress bar.
    """
    embedding = source.embedding(choose)
    draws = None if source.shuffled else torch.Generator().manual_seed(seed)
    keeper, dropped, seen = Keeper(learner, embedding, draws), 0, 0
    with tqdm(total=source.total, desc="Embedding simulations", disable=not progress) as bar:
        for chunk in source.embed(embedding, learner.num_points):
            count = len(chunk.s) + chunk.lost
            dropped, seen = dropped + chunk.lost, seen + count
            bar.update(count)
            if len(chunk.s):
                keeper.take(chunk)
    checks.warn_dropped(dropped, seen)
    return keeper.finish(source.sample)


__all__ = ["SAMPLE_BYTES", "SAMPLE_DATASETS", "EmbeddedSimulations", "Keeper", "embed_simulations"]
