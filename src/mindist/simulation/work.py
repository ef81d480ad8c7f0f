"""What a worker gets, once, and what it gives back for each chunk."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from mindist.simulation.calls import Call, Caller
from mindist.simulation.failure import Failure
from mindist.simulation.limited import limited
from mindist.simulation.plan import Schema, Settings
from mindist.simulation.sources import Sources
from mindist.summarise import Summariser

Embed = Callable[[Tensor], Tensor]
"""Datasets `(B, N, *event)` to mean embeddings `(B, K)`."""

NumPy = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Work:
    """How every chunk of a bank is simulated.

    Arguments:
        sources: Prior, simulator and summary.
        settings: What the caller asked for.
        schema: Shapes and types.
        embed: Gives the mean embeddings; None before it is chosen.
        with_data: Whether the data are given back as well.
        run: A name for this run.
    """

    sources: Sources
    settings: Settings
    schema: Schema
    embed: Embed | None
    with_data: bool
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def summarise(self) -> Summariser:
        """The summary, as the first simulation showed it to be."""
        schema = self.schema
        return Summariser(self.sources.summary, schema.summary_numpy, schema.shapes["s"][0])

    @contextmanager
    def caller(self) -> Iterator[Caller]:
        """The simulator, in this process or in one that can be ended."""
        event = self.schema.shapes["x"][1:]
        with calling(Call(self.sources.simulator, self.settings.n_obs, event), self) as caller:
            yield caller


@contextmanager
def calling(call: Call, work: Work | None, limit: float | None = None) -> Iterator[Caller]:
    """A simulator behind the time limit, if there is one."""
    limit = limit if work is None else work.settings.time_limit
    if limit is None:
        yield call
        return
    with limited(call, limit, "probe" if work is None else work.run) as caller:
        yield caller


@dataclass(frozen=True)
class Chunk:
    """The datasets of one chunk.

    Arguments:
        index: Which chunk.
        arrays: "theta" `(b, d_theta)`, "s" `(b, d_s)`, "valid" `(b,)` and, where they are made,
            "z_bar" `(b, K)` and "x" `(b, N, *event)`. Rows that are not valid are NaN but for
            theta.
        failures: Draws that failed.
        seconds: How long it took.
    """

    index: int
    arrays: dict[str, NumPy]
    failures: tuple[Failure, ...]
    seconds: float


__all__ = ["Chunk", "Embed", "NumPy", "Work", "calling"]
