r"""One pass over simulated datasets: summaries and mean embeddings, the data itself dropped.

Simulations come as one array `(M, N, *event)` or as an iterator of such chunks; either way memory
grows with the number of datasets only through their summaries and embeddings, not their data.
The bandwidth has to be known before the first embedding, so it is chosen on a random sample of an
array and on the leading datasets of an iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import checks
from mindist.features.embedding import Embedding
from mindist.summarise import Summariser

CHUNK_BYTES = 2**24  # of data summarised and embedded at once from an array
SAMPLE_DATASETS = 1_000  # seen before the bandwidth is chosen
SAMPLE_BYTES = 2**26


@dataclass(frozen=True)
class EmbeddedSimulations:
    """What is kept of M simulated datasets.

    Arguments:
        s: Summaries `(M, d_s)`.
        z_bar: Mean embeddings `(M, K)`, float32, of both kernels.
        points: A few observations of each dataset `(M, n, *event)`, where a decoder wants them.
        embedding: What embedded them.
        num_obs: N, the number of observations of each dataset.
        probe: The first dataset `(1, N, *event)`.
    """

    s: Tensor
    z_bar: Tensor
    points: Tensor | None
    embedding: Embedding
    num_obs: int
    probe: Tensor


def embed_simulations(
    x: Any,
    s: Any,
    *,
    summarise: Summariser,
    make_embedding: Callable[[Tensor, Tensor], Embedding],
    generator: torch.Generator,
    num_points: int,
    device: torch.device,
    progress: bool = False,
) -> EmbeddedSimulations:
    """Summarise and embed simulations in one pass.

    Arguments:
        x: Datasets `(M, N, *event)`, or an iterable of chunks of datasets, or of pairs of a chunk
            of datasets and a chunk of summaries.
        s: Summaries `(M, d_s)` of an array `x`, or None to compute them.
        summarise: Summaries `(m, d_s)` of a chunk of datasets.
        make_embedding: Chooses the embedding, given a sample of datasets and their summaries.
        generator: Chooses the sample of an array.
        num_points: How many observations of each dataset to keep.
        device: Where to compute and keep the result.
        progress: Whether to show a progress bar.
    """
    total = len(x) if hasattr(x, "shape") else None
    chunks = _chunks(x, s, summarise, device)
    if total is not None:
        checks.simulations(checks.as_tensor(x[:1], "x"))
        leading = _random_datasets(x, s, summarise, generator, device)
    else:
        leading = _leading(chunks)
        checks.same_shapes([c[0] for c in leading if len(c[0])])
        chunks = chain(leading, chunks)
    usable = [(data, summary) for data, summary, _ in leading if len(data)]
    if not usable:
        raise checks.no_simulations()
    sample, s_sample = (torch.cat(parts) for parts in zip(*usable, strict=True))
    embedding = make_embedding(sample, s_sample)
    shape = sample.shape[1:]

    kept_s, kept_z, kept_x, dropped, seen = [], [], [], 0, 0
    probe: Tensor | None = None
    with tqdm(total=total, desc="Embedding simulations", disable=not progress) as bar:
        for data, summary, lost in chunks:
            dropped, seen = dropped + lost, seen + len(data) + lost
            bar.update(len(data) + lost)
            if not len(data):
                continue
            checks.same_shapes([sample, data])
            kept_s.append(summary)
            kept_z.append(embedding.mean(data).float())
            if num_points:
                kept_x.append(data[:, :num_points].clone())
            probe = data[:1].clone() if probe is None else probe
    if probe is None:
        raise checks.no_simulations()
    checks.warn_dropped(dropped, seen)
    points = torch.cat(kept_x) if kept_x else None
    return EmbeddedSimulations(
        torch.cat(kept_s), torch.cat(kept_z), points, embedding, shape[0], probe
    )


Chunk = tuple[Tensor, Tensor, int]
"""Finite datasets, their summaries, and how many datasets were not finite."""


def _chunks(x: Any, s: Any, summarise: Summariser, device: torch.device) -> Iterator[Chunk]:
    """Chunks of finite simulations; NaN is dropped before it reaches the summary, and after."""
    checked = False
    for data, summary in _pairs(x, s):
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


def _pairs(x: Any, s: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(x, Tensor | np.ndarray):
        if s is not None:
            s = checks.summaries(s, len(x), name="s")
        size = max(1, CHUNK_BYTES // max(1, checks.as_tensor(x[:1], "x").numel() * 4))
        for first in range(0, len(x), size):
            yield x[first : first + size], None if s is None else s[first : first + size]
        return
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
    x: Any, s: Any, summarise: Summariser, generator: torch.Generator, device: torch.device
) -> list[Chunk]:
    """Datasets of an array, chosen at random, with their summaries."""
    if s is not None:
        s = checks.summaries(s, len(x), name="s")
        next(_chunks(x[:3], s[:3], summarise, device))  # an error is about the first ones
    chosen = torch.randperm(len(x), generator=generator)[:SAMPLE_DATASETS]
    some = x[chosen.numpy() if isinstance(x, np.ndarray) else chosen]
    return list(_chunks(some, None if s is None else s[chosen], summarise, device))
