r"""One pass over simulated datasets: summaries and mean embeddings, the data itself dropped.

Simulations come as one array `(M, N, *event)` or as an iterator of such chunks. A learner that
needs each of them once sees the leading 20,000 together and the others chunk by chunk; of all of
them a uniform sample of 20,000 is kept, so that memory does not grow with their number. For a
learner that needs them several times the summaries and embeddings of all are kept.

What has to be known before the first embedding (the bandwidth) or the first sum (the length-scale
of a decoder) is chosen on simulations that come first: of an array on a random sample, which is
read first where there are more than 20,000, so that the order of an array does not matter; of an
iterator on the leading ones, so that an iterator has to come in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import checks
from mindist.features.embedding import Embedding
from mindist.features.reservoir import Reservoir
from mindist.summarise import Summariser

CHUNK_BYTES = 2**24  # of data summarised and embedded at once from an array
SAMPLE_DATASETS = 1_000  # seen before the bandwidth is chosen
SAMPLE_BYTES = 2**26
# 80 MB of embeddings in two kernels of 512 features. The level of a test that is calibrated on as
# many has a standard deviation of .0015 at .05.
MAX_KEPT = 20_000


@dataclass(frozen=True)
class EmbeddedSimulations:
    """What is kept of simulated datasets: all of them, or a uniform sample.

    Arguments:
        s: Summaries `(m, d_s)`.
        z_bar: Mean embeddings `(m, K)`, float32, of both kernels.
        points: A few observations of each dataset `(m, n, *event)`, where a decoder wants them.
        index: Which of all datasets these are, in the order in which they were read, `(m,)`.
        embedding: What embedded them.
        num_obs: N, the number of observations of each dataset.
        probe: The first dataset `(1, N, *event)`.
    """

    s: Tensor
    z_bar: Tensor
    points: Tensor | None
    index: Tensor
    embedding: Embedding
    num_obs: int
    probe: Tensor


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


def embed_simulations(
    x: Any,
    s: Any,
    *,
    summarise: Summariser,
    make_embedding: Callable[[Tensor, Tensor], Embedding],
    learner: Learner,
    generator: torch.Generator,
    device: torch.device,
    progress: bool = False,
) -> EmbeddedSimulations:
    """Summarise and embed simulations in one pass, and hand them to a learner.

    Arguments:
        x: Datasets `(M, N, *event)`, or an iterable of chunks of datasets, or of pairs of a chunk
            of datasets and a chunk of summaries.
        s: Summaries `(M, d_s)` of an array `x`, or None to compute them.
        summarise: Summaries `(m, d_s)` of a chunk of datasets.
        make_embedding: Chooses the embedding, given a sample of datasets and their summaries.
        learner: Learns from summaries and embeddings.
        generator: Chooses the sample of an array.
        device: Where to compute and keep the result.
        progress: Whether to show a progress bar.
    """
    total = len(x) if hasattr(x, "shape") else None
    if total is not None:
        checks.simulations(checks.as_tensor(x[:1], "x"))
        order = torch.randperm(total, generator=generator)
        leading = _random_datasets(x, s, order, summarise, device)
        chunks = _chunks(_array(x, s, order), summarise, device)
    else:
        chunks = _chunks(_pairs(x, s), summarise, device)
        leading = _leading(chunks)
        checks.same_shapes([c[0] for c in leading if len(c[0])])
        chunks = chain(leading, chunks)
    usable = [(data, summary) for data, summary, _ in leading if len(data)]
    if not usable:
        raise checks.no_simulations()
    sample, s_sample = (torch.cat(parts) for parts in zip(*usable, strict=True))
    embedding = make_embedding(sample, s_sample)

    # An array is read in random order, so that the leading ones are a uniform sample already.
    draws = torch.Generator().manual_seed(generator.initial_seed()) if total is None else None
    reservoir = Reservoir(MAX_KEPT if learner.one_pass else None, draws)
    dropped, seen, begun = 0, 0, False
    probe: Tensor | None = None

    def begin() -> None:
        s_kept, z_kept, *points = reservoir.rows()
        learner.begin(s_kept, z_kept, points[0] if points else None, embedding)

    with tqdm(total=total, desc="Embedding simulations", disable=not progress) as bar:
        for data, summary, lost in chunks:
            dropped, seen = dropped + lost, seen + len(data) + lost
            bar.update(len(data) + lost)
            if not len(data):
                continue
            checks.same_shapes([sample, data])
            probe = data[:1].clone() if probe is None else probe
            rows = [summary, embedding.mean(data).float()]
            if learner.num_points:
                rows.append(data[:, : learner.num_points].clone())
            rest = reservoir.fill(*rows)
            if not len(rest[0]):
                continue
            if not begun:
                begin()
                begun = True
            learner.add(*rest[:2])
            reservoir.replace(*rest)
    if probe is None:
        raise checks.no_simulations()
    checks.warn_dropped(dropped, seen)
    if not begun:
        begin()
    s_kept, z_kept, *points = reservoir.rows()
    return EmbeddedSimulations(
        s_kept,
        z_kept,
        points[0] if points else None,
        reservoir.index.to(device),
        embedding,
        sample.shape[1],
        probe,
    )


Chunk = tuple[Tensor, Tensor, int]
"""Finite datasets, their summaries, and how many datasets were not finite."""


def _chunks(
    pairs: Iterable[tuple[Any, Any]], summarise: Summariser, device: torch.device
) -> Iterator[Chunk]:
    """Chunks of finite simulations; NaN is dropped before it reaches the summary, and after."""
    checked = False
    for data, summary in pairs:
        tensor = checks.simulations(checks.as_tensor(data, "x")).to(device)
        finite = torch.isfinite(tensor.flatten(1)).all(1)
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
