"""The first simulation: what shapes come, and whether a batch of parameters is understood.

Its datasets are thrown away; they come from seeds of their own. A simulator that is given three
parameter vectors `(3, d_theta)` and returns `(3, N, *event)` is vectorised; any other is called for
one dataset at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mindist import checks
from mindist.simulation.calls import Call, Caller, Data
from mindist.simulation.failure import Problem, SimulationError
from mindist.simulation.limited import close_idle
from mindist.simulation.payload import Payload
from mindist.simulation.plan import MAX_CHUNK_BYTES, Schema, Settings, chunk_size
from mindist.simulation.seeds import borrowed_globals, draw_seed
from mindist.simulation.sources import Sources, draw_prior
from mindist.simulation.threads import one_core
from mindist.simulation.work import calling
from mindist.summarise import Summariser

# A chunk's index stands first in its seeds; this one no chunk has.
PROBE = 2**31
# At a rate of one failure in two, all of them fail once in 1,000 times.
ATTEMPTS = 10


def probe(sources: Sources, settings: Settings) -> Schema:
    """Simulate a little and say what the bank will hold."""
    with one_core(), borrowed_globals(), torch.no_grad():
        call = Call(sources.simulator, settings.n_obs)
        try:
            with calling(call, None, settings.time_limit) as caller:
                theta, data, batch = _first(sources, settings, caller)
        finally:
            close_idle("probe")
        x = torch.from_numpy(data.x if batch else data.x[None])
        summarise = Summariser(sources.summary)
        s = summarise(x, prefer_numpy=data.numpy)
    parameters = checks.as_tensor(theta, "prior")[0].numpy()
    rows = {"theta": parameters, "s": s[0].cpu().numpy(), "x": x[0].numpy()}
    size = settings.chunk or chunk_size(settings.num, rows["x"].nbytes)
    if min(size, settings.num) * max(row.nbytes for row in rows.values()) > MAX_CHUNK_BYTES:
        raise ValueError(
            f"chunk: expected chunks of at most {MAX_CHUNK_BYTES:,} bytes, got {size} datasets of "
            f"{rows['x'].nbytes:,} bytes. Choose fewer datasets for a chunk."
        )
    return Schema(
        settings.num,
        min(size, settings.num),
        bool(batch),
        bool(summarise.numpy),
        {name: row.shape for name, row in rows.items()},
        {name: str(row.dtype) for name, row in rows.items()},
    )


def probe_packed(payload: Payload) -> Schema:
    """The same in another process."""
    return probe(*payload.open())


def _first(sources: Sources, settings: Settings, caller: Caller) -> tuple[Any, Data, bool]:
    """The first draws that succeed, as a batch if the simulator takes one."""
    ways = [True, False] if settings.vectorised is None else [settings.vectorised]
    dim = draw_prior(sources.prior, 1, draw_seed(settings.seed, PROBE)).shape[1]
    # Neither N nor d_theta: a function that takes one theta apart must not succeed by chance.
    batch = next(size for size in (3, 2, 4) if size not in (settings.n_obs, dim))
    problems: dict[bool, Problem] = {}
    for attempt in range(ATTEMPTS):
        theta = draw_prior(sources.prior, batch, draw_seed(settings.seed, PROBE, attempt, 0))
        for way in ways:
            seed = draw_seed(settings.seed, PROBE, attempt, 1)
            result = caller(theta if way else theta[0], seed, batch if way else None)
            if isinstance(result, Data) and np.isfinite(result.x).all():
                return theta, result, way
            problems[way] = result if isinstance(result, Problem) else _not_finite()
    raise _no_success(problems)


def _not_finite() -> Problem:
    return Problem("not finite", "the data hold NaN or infinite values")


def _no_success(problems: dict[bool, Problem]) -> SimulationError:
    words: Callable[[bool], str] = lambda way: "a batch" if way else "one theta"  # noqa: E731
    errors: dict[str, list[str]] = {}
    for way, problem in problems.items():
        errors.setdefault(problem.error, []).append(words(way))
    said = "; ".join(f"with {' and with '.join(ways)}: {error}" for error, ways in errors.items())
    return SimulationError(
        f"simulator: expected datasets (N, *event) for one theta (d_theta,) or (B, N, *event) for "
        f"a batch (B, d_theta), got none in {ATTEMPTS} draws ({said}). Try it by hand on a draw of "
        "the prior; say which of the two it takes by vectorised=True or False."
    )


__all__ = ["probe", "probe_packed"]
