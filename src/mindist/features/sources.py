"""Where simulated datasets come from: one array, or an iterator of chunks; a bank is in `banks`.

A source gives a sample of datasets, on which what has to be known before the first embedding is
chosen, and then all datasets, chunk by chunk, those with NaN left out. The sample of an array is
random; an array of more than `MAX_KEPT` datasets is read in random order, so that its order does
not matter. The sample of an iterator are its leading datasets: it has to come in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.features.embedding import Embedding
from mindist.summarise import Summariser

CHUNK_BYTES = 2**24  # of data summarised and embedded at once from an array
SAMPLE_DATASETS = 1_000  # seen before the bandwidth is chosen
SAMPLE_BYTES = 2**26
# 80 MB of embeddings in two kernels of 512 features. The level of a test that is calibrated on as
# many has a standard deviation of .0015 at .05.
MAX_KEPT = 20_000


@dataclass(frozen=True)
class Embedded:
    """Simulations of a chunk, embedded.

    Arguments:
        s: Summaries `(m, d_s)`.
        z_bar: Mean embeddings `(m, K)`, float32.
        points: The first few observations of each dataset `(m, n, *event)`, where asked for.
        lost: How many more there were, with NaN or infinite values.
    """

    s: Tensor
    z_bar: Tensor
    points: Tensor | None
    lost: int


Choose = Callable[[Tensor, Tensor], Embedding]
"""Chooses an embedding on datasets `(m, N, *event)` and their summaries `(m, d_s)`."""


class Source(Protocol):
    """Simulations that are read once."""

    @property
    def sample(self) -> tuple[Tensor, Tensor]:
        """Some datasets `(m, N, *event)` and their summaries `(m, d_s)`."""

    @property
    def total(self) -> int | None:
        """How many datasets there are, if that is known."""

    @property
    def shuffled(self) -> bool:
        """Whether they are read in an order drawn for it: the leading ones are a uniform sample."""

    def embedding(self, choose: Choose) -> Embedding:
        """What to embed with: what `choose` chooses on the sample, or what is stored."""

    def embed(self, embedding: Embedding, num_points: int) -> Iterator[Embedded]:
        """All datasets, embedded, with the first `num_points` observations of each."""


Chunk = tuple[Tensor, Tensor, int]
"""Finite datasets, their summaries, and how many datasets were not finite."""


@dataclass(frozen=True)
class DataSource:
    """Datasets in memory, or from an iterator.

    Arguments:
        sample: As of any `Source`.
        chunks: All datasets.
        total: As of any `Source`.
        shuffled: As of any `Source`.
    """

    sample: tuple[Tensor, Tensor]
    chunks: Iterator[Chunk]
    total: int | None
    shuffled: bool

    def embedding(self, choose: Choose) -> Embedding:
        """What `choose` chooses on the sample."""
        return choose(*self.sample)

    def embed(self, embedding: Embedding, num_points: int) -> Iterator[Embedded]:
        """All datasets, embedded."""
        for data, summary, lost in self.chunks:
            if not len(data):
                yield Embedded(summary, data.new_empty(0, embedding.total), None, lost)
                continue
            checks.same_shapes([self.sample[0], data])
            points = data[:, :num_points].clone() if num_points else None
            yield Embedded(summary, embedding.mean(data).float(), points, lost)


def read_data(
    x: Any, s: Any, summarise: Summariser, generator: torch.Generator, device: torch.device
) -> DataSource:
    """The source for what `MinimumDistance.fit` was given.

    Arguments:
        x: Datasets `(M, N, *event)`, or an iterable of chunks of datasets, or of pairs of a chunk
            of datasets and a chunk of summaries.
        s: Summaries `(M, d_s)` of an array `x`, or None to compute them.
        summarise: Summaries `(m, d_s)` of a chunk of datasets.
        generator: Chooses the sample of an array.
        device: Where to compute.
    """
    if not hasattr(x, "shape"):
        chunks = _chunks(_pairs(x, s), summarise, device)
        leading = _leading(chunks)
        checks.same_shapes([data for data, _, _ in leading if len(data)])
        return DataSource(_joined(leading), chain(leading, chunks), None, False)
    checks.simulations(checks.as_tensor(x[:1], "x"))
    order = torch.randperm(len(x), generator=generator)
    sample = _joined(_random_datasets(x, s, order, summarise, device))
    return DataSource(sample, _chunks(_array(x, s, order), summarise, device), len(x), True)


def _joined(leading: list[Chunk]) -> tuple[Tensor, Tensor]:
    """The first finite datasets and their summaries, as many as a sample needs."""
    usable = [(data, summary) for data, summary, _ in leading if len(data)]
    if not usable:
        raise checks.no_simulations()
    x, s = (torch.cat(parts)[:SAMPLE_DATASETS] for parts in zip(*usable, strict=True))
    return x, s


def _chunks(
    pairs: Iterable[tuple[Any, Any]], summarise: Summariser, device: torch.device
) -> Iterator[Chunk]:
    """Chunks of finite simulations; NaN is dropped before it reaches the summary, and after."""
    checked = False
    for data, summary in pairs:
        tensor = checks.simulations(checks.as_tensor(data, "x")).to(device)
        finite = checks.finite_rows(tensor.flatten(1))
        if summary is not None:
            summary = checks.summaries(summary, len(tensor), name="s").to(device)
            if not checked and bool(finite.any()):
                few, kind = finite.nonzero()[:3, 0], isinstance(data, np.ndarray)
                checks.given_summaries(summary[few], summarise(tensor[few], prefer_numpy=kind))
                checked = True
            finite = finite & torch.isfinite(summary).all(1)
        lost = int((~finite).sum())
        tensor = tensor[finite] if lost else tensor
        if not len(tensor):
            yield tensor, tensor.new_empty(0, 0), lost
            continue
        if summary is None:
            summary = summarise(tensor, prefer_numpy=isinstance(data, np.ndarray))
            usable = torch.isfinite(summary).all(1)
            yield tensor[usable], summary[usable], lost + int((~usable).sum())
        else:
            yield tensor, summary[finite], lost


def _array(x: Any, s: Any, order: Tensor) -> Iterator[tuple[Any, Any]]:
    """Chunks of an array and its summaries; where it is large, first a random sample of it."""
    if s is not None:
        s = checks.summaries(s, len(x), name="s")
    size = max(1, CHUNK_BYTES // max(1, checks.as_tensor(x[:1], "x").numel() * 4))
    if len(x) <= MAX_KEPT:
        for first in range(0, len(x), size):
            yield x[first : first + size], None if s is None else s[first : first + size]
        return
    for part in order.tensor_split([MAX_KEPT]):
        for rows in part.sort().values.split(size):
            yield _pick(x, rows), None if s is None else s[rows]


def _pick(x: Any, rows: Tensor) -> Any:
    """Some datasets of a tensor or a NumPy array."""
    return x[rows.to(x.device)] if isinstance(x, Tensor) else x[rows.numpy()]


def _pairs(x: Any, s: Any) -> Iterator[tuple[Any, Any]]:
    """Chunks of an iterator, each with its summaries or None."""
    if not isinstance(x, Iterable):
        checks.as_tensor(x, "x")
    if s is not None:
        raise ValueError(
            "s: expected None when x is an iterator of chunks. Let the iterator yield "
            "pairs (x_chunk, s_chunk) instead."
        )
    for chunk in x:
        yield chunk if isinstance(chunk, tuple) else (chunk, None)


def _leading(chunks: Iterator[Chunk]) -> list[Chunk]:
    """The first chunks, until they hold enough datasets to choose a bandwidth."""
    leading: list[Chunk] = []
    count = size = 0
    for chunk in chunks:
        leading.append(chunk)
        count, size = count + len(chunk[0]), size + chunk[0].nbytes
        if count and (count >= SAMPLE_DATASETS or size >= SAMPLE_BYTES):
            break
    return leading


def _random_datasets(
    x: Any, s: Any, order: Tensor, summarise: Summariser, device: torch.device
) -> list[Chunk]:
    """The first datasets of an array in a random order, with their summaries."""
    if s is not None:
        s = checks.summaries(s, len(x), name="s")
        next(_chunks([(x[:3], s[:3])], summarise, device))  # an error is about the first ones
    chosen = order[:SAMPLE_DATASETS]
    some = (_pick(x, chosen), None if s is None else s[chosen])
    return list(_chunks([some], summarise, device))


__all__ = ["Choose", "DataSource", "Embedded", "Source", "read_data"]
