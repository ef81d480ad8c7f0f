r"""The limit: the multiply and the cosine that random features cannot do without, and nothing else.

.. math:: \cos(X W), \quad W \in \mathbb{R}^{D \times K}, \qquad \text{or} \qquad
    \cos(X W), \sin(X W), \quad W \in \mathbb{R}^{D \times K/2} ,

in chunks of rows into one buffer that is overwritten: no phase, no sum, no mean. Which chunk is
best, and whether torch's or NumPy's cosine is faster (2 times in float32 on some processors),
depends on the machine, so all are tried and the best is the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from mindist_paper.benchmark.timing import seconds_of

CHUNKS = tuple(2**power for power in range(6, 15))  # rows
LIBRARIES = ("torch", "torch and numpy", "numpy")
MOST_ROWS = 2**16  # at once, where all rows are
TRIALS, FINALISTS, FINAL_TRIALS = 2, 4, 6


Waves = list[NDArray[np.floating]]
Run = Callable[[], Waves]


@dataclass(frozen=True)
class Limit:
    """The fastest way found.

    Arguments:
        run: Does it once, and gives the waves of the last chunk: cosines, and sines if paired.
        library: Of the multiply and the cosine.
        chunk: Rows at once.
    """

    run: Run
    library: str
    chunk: int


def best_limit(rows: Tensor, weight: Tensor, threads: int, *, paired: bool = False) -> Limit:
    """The fastest multiply and cosine of rows `(n, D)` with a weight `(D, K)`.

    Arguments:
        rows: Observations.
        weight: Frequencies `(D, K)`; half as many columns where cosine and sine are both taken.
        threads: How many may be used.
        paired: Whether to take the sine as well.
    """
    limits = all_limits(rows, weight, threads, paired=paired)
    return _fastest(_fastest(limits, TRIALS, FINALISTS), FINAL_TRIALS, 1)[0]


def all_limits(rows: Tensor, weight: Tensor, threads: int, *, paired: bool) -> list[Limit]:
    """All ways that are tried; arguments as `best_limit`."""
    chunks = [chunk for chunk in CHUNKS if chunk < len(rows)] + [min(len(rows), MOST_ROWS)]
    names = list(LIBRARIES) + (["numpy in a pool"] if threads > 1 else [])
    return [
        Limit(_limit(rows, weight, chunk, library, threads, paired), library, chunk)
        for library, chunk in product(names, chunks)
    ]


def _fastest(limits: list[Limit], trials: int, keep: int) -> list[Limit]:
    """The fastest of some, by the best of several trials that take turns."""
    seconds = [[seconds_of(limit.run) for limit in limits] for _ in range(trials)]
    best = [min(own) for own in zip(*seconds, strict=True)]
    order = sorted(range(len(limits)), key=lambda index: best[index])
    return [limits[index] for index in order[:keep]]


def _limit(
    rows: Tensor, weight: Tensor, chunk: int, library: str, threads: int, paired: bool
) -> Run:
    if library == "torch":
        return _torch_limit(rows, weight, chunk, paired)
    if library == "numpy in a pool":
        return _pooled_limit(rows, weight, chunk, threads, paired)
    return _numpy_limit(rows, weight, chunk, library, paired)


def _torch_limit(rows: Tensor, weight: Tensor, chunk: int, paired: bool) -> Run:
    buffer, wave = rows.new_empty(2, chunk, weight.shape[1])

    def run() -> Waves:
        for part in rows.split(chunk):
            phase = torch.mm(part, weight, out=buffer[: len(part)])
            if paired:
                torch.sin(phase, out=wave[: len(part)])
            phase.cos_()
        return [both[: len(part)].numpy() for both in (buffer, wave)[: 1 + paired]]

    return run


def _numpy_limit(rows: Tensor, weight: Tensor, chunk: int, library: str, paired: bool) -> Run:
    """Cosine by NumPy, on one thread; the multiply by torch or NumPy."""
    buffer, wave = rows.new_empty(2, chunk, weight.shape[1])
    phases, waves, matrix = buffer.numpy(), wave.numpy(), weight.numpy()

    def run() -> Waves:
        for part in rows.split(chunk):
            phase = phases[: len(part)]
            if library == "numpy":
                np.matmul(part.numpy(), matrix, out=phase)
            else:
                torch.mm(part, weight, out=buffer[: len(part)])
            if paired:
                np.sin(phase, out=waves[: len(part)])
            np.cos(phase, out=phase)
        return [both[: len(part)] for both in (phases, waves)[: 1 + paired]]

    return run


def _pooled_limit(rows: Tensor, weight: Tensor, chunk: int, threads: int, paired: bool) -> Run:
    """NumPy, with the chunks dealt out to as many Python threads, each of which uses one core."""
    data, matrix = rows.numpy(), weight.numpy()
    buffers = np.empty((threads, 2, chunk, weight.shape[1]), data.dtype)
    pool, controller = ThreadPoolExecutor(threads), ThreadpoolController()

    def work(worker: int) -> None:
        for first in _firsts(len(data), chunk, worker, threads):
            part = data[first : first + chunk]
            phase, wave = buffers[worker, :, : len(part)]
            np.matmul(part, matrix, out=phase)
            if paired:
                np.sin(phase, out=wave)
            np.cos(phase, out=phase)

    def run() -> Waves:
        with controller.limit(limits=1, user_api="blas"):
            list(pool.map(work, range(threads)))
        last = (len(data) - 1) // chunk
        return list(buffers[last % threads, : 1 + paired, : len(data) - last * chunk])

    return run


def _firsts(num: int, chunk: int, worker: int, threads: int) -> Iterator[int]:
    return iter(range(worker * chunk, num, threads * chunk))


__all__ = ["Limit", "all_limits", "best_limit"]
