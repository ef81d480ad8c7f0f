"""What a bank takes, before it is begun: time, memory and disk, from a few simulations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from mindist.simulation.chunk import simulate_chunk
from mindist.simulation.limited import close_idle
from mindist.simulation.plan import Schema, Settings
from mindist.simulation.probe import probe
from mindist.simulation.sources import Sources
from mindist.simulation.work import Embed, Work

SECONDS = 3.0  # to spend on timing, unless one simulation takes longer
MAX_TIMED = 1_000  # datasets
WRITING = 0.05  # seconds for a chunk, on a disk of our own (docs/simulations.md)
PROCESS = 400e6  # bytes of a process that has imported torch and mindist, measured


@dataclass(frozen=True)
class Estimate:
    """What a bank is expected to take.

    Arguments:
        schema: What it holds.
        workers: Processes.
        each: Seconds for one dataset in one process, all in all.
        timed: How many datasets were timed.
        failed: How many of the draws for them failed.
        embedding: K, the length of a mean embedding.
        keep_data: Whether all data are kept.
    """

    schema: Schema
    workers: int
    each: float
    timed: int
    failed: int
    embedding: int
    keep_data: bool

    @property
    def seconds(self) -> float:
        """Until the bank is complete."""
        busy = min(self.workers, self.schema.num_chunks)
        return self.schema.num * self.each / busy + WRITING * self.schema.num_chunks

    @property
    def disk(self) -> float:
        """Bytes, before compression."""
        schema = self.schema
        row = schema.bytes_of("theta") + schema.bytes_of("s") + 4 * self.embedding + 1
        datasets = schema.num if self.keep_data else schema.span(schema.pilot_chunks - 1)[1]
        return float(schema.num * row + datasets * schema.bytes_of("x"))

    @property
    def memory(self) -> float:
        """Bytes at most, of all processes: each holds a chunk or two, this one a few."""
        rows = self.schema.chunk * (2 * self.schema.bytes_of("x") + 8 * self.embedding)
        processes = self.workers + 1 if self.workers > 1 else 1
        return processes * (PROCESS + rows)

    def __str__(self) -> str:
        failed = f"; {self.failed} draws failed" if self.failed else ""
        schema = self.schema
        one_by_one = "in batches" if schema.vectorised else "one by one"
        return "\n".join(
            [
                f"{schema.num:,} datasets of {schema.shapes['x'][0]} observations, simulated "
                f"{one_by_one}, {schema.num_chunks:,} chunks of {schema.chunk:,}, "
                f"{self.workers} worker{'s' if self.workers > 1 else ''}:",
                f"time    {words_of_time(self.seconds)} ({1e3 * self.each:.3g} ms for a dataset, "
                f"timed on {self.timed}{failed})",
                f"memory  {words_of_bytes(self.memory)}",
                f"disk    {words_of_bytes(self.disk)} at most",
            ]
        )


def estimate(sources: Sources, settings: Settings, embed: Embed, workers: int) -> Estimate:
    """Simulate for a few seconds in this process, write nothing, and say what a bank would take.

    Arguments:
        sources: Prior, simulator, summary.
        settings: What the bank shall hold.
        embed: An embedding of the kind that the bank will have.
        workers: Processes.
    """
    schema = probe(sources, settings)
    # Loops are compiled once and for all, for each type of number: here, not while it is timed.
    embed(torch.zeros(1, *schema.shapes["x"], dtype=getattr(torch, schema.dtypes["x"])))
    num = 1
    while True:
        few = replace(schema, num=num, chunk=num)
        work = Work(sources, settings, few, embed, with_data=True)
        try:
            chunk = simulate_chunk(work, 0)
        finally:
            close_idle(work.run)
        if chunk.seconds > SECONDS / 4 or num >= min(MAX_TIMED, settings.num):
            break
        num = min(MAX_TIMED, settings.num, max(4 * num, int(num * SECONDS / 2 / chunk.seconds)))
    dim = chunk.arrays["z_bar"].shape[1]
    each, failed = chunk.seconds / num, len(chunk.failures)
    return Estimate(schema, workers, each, num, failed, dim, settings.keep == "data")


def words_of_time(seconds: float) -> str:
    """A time in two units.

    Example:
        >>> [words_of_time(s) for s in (4.2, 250, 9_000, 200_000)]
        ['4 s', '4 min 10 s', '2 h 30 min', '2 days 8 h']
    """
    units = [("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]
    for (unit, size), (smaller, part) in zip(units, units[1:] + [("s", 1)], strict=True):
        if seconds >= size and size > 1:
            rest = round((seconds % size) / part)
            return f"{math.floor(seconds / size)} {unit} {rest} {smaller}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"


def words_of_bytes(number: float) -> str:
    """A size in MB or GB.

    Example:
        >>> words_of_bytes(4.2e9), words_of_bytes(3e6)
        ('4.2 GB', '3 MB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{math.ceil(number / 1e6)} MB"


__all__ = ["Estimate", "estimate", "words_of_bytes", "words_of_time"]
