"""One chunk: draw theta, simulate, summarise, embed; what fails is drawn again or marked.

Round r of chunk i draws the parameters of the rows that are still missing from the seed (i, r, 0)
and simulates row j of them from (i, r, 1 + j), a vectorised batch from (i, r, 0, 1). Nothing
depends on another chunk, on a clock or on the process.
"""

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.simulation import calls
from mindist.simulation.calls import Call, Caller, Data, NumPy, Problem, Sources, draw_prior
from mindist.simulation.jobs import end_with_parent
from mindist.simulation.schema import Failure, Schema, Settings, SimulationError
from mindist.summarise import Summariser

Embed = Callable[[Tensor], Tensor]  # datasets (B, N, *event) to mean embeddings (B, K)
MAX_IN_A_ROW = 100  # failures: at a rate of 9 in 10 draws that happens once in 40,000 times
PROBE = 2**31  # stands first in the seeds of the first simulation; no chunk has this index
ATTEMPTS = 10  # at a rate of one failure in two, all of them fail once in 1,000 times

_alone = threading.Lock()  # of the global generators: a Dask worker may have several threads


@dataclass(frozen=True)
class Work:  # how every chunk of a bank is simulated: what a worker gets, once
    sources: Sources
    settings: Settings
    schema: Schema
    embed: Embed | None  # None before it is chosen
    with_data: bool  # give data back as well
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def summarise(self) -> Summariser:
        schema = self.schema
        return Summariser(self.sources.summary, schema.summary_numpy, schema.shapes["s"][0])

    def embed_rows(self, x: NumPy, valid: NumPy) -> NumPy:
        """Return mean embeddings `(b, K)` in float32 of the valid rows; NaN elsewhere."""
        assert self.embed is not None
        z_bar = self.embed(torch.from_numpy(x[valid])).float().cpu().numpy()
        result = np.full((len(x), z_bar.shape[1]), np.nan, np.float32)
        result[valid] = z_bar
        return result


@dataclass(frozen=True)
class Chunk:
    index: int
    # theta (b, d_theta), s (b, d_s), valid (b,) and, where they are made, z_bar (b, K) and
    # x (b, N, *event); rows that are not valid are NaN but for theta.
    arrays: dict[str, NumPy]
    failures: tuple[Failure, ...]
    seconds: float


def simulate_chunk(work: Work, index: int) -> Chunk:
    start, settings = time.perf_counter(), work.settings
    call = Call(work.sources.simulator, settings.n_obs, work.schema.shapes["x"][1:])
    with _alone, calls.one_core(), calls.borrowed_globals(), torch.no_grad():
        rows = _Rows(work, index)
        with calls.calling(call, settings.time_limit, work.run) as caller:
            rows.fill(caller)
        arrays = {**rows.arrays, "valid": rows.valid}
        if work.embed is not None:
            arrays["z_bar"] = work.embed_rows(rows.arrays["x"], rows.valid)
        if not work.with_data:
            del arrays["x"]
    return Chunk(index, arrays, tuple(rows.failures), time.perf_counter() - start)


def packed(function: Callable[[Any, Any], Any], content: bytes, job: Any) -> Any:
    """Call a function with what was packed for another process, here, and a job."""
    end_with_parent()
    return function(calls.unpack_once(content), job)


class _Rows:
    def __init__(self, work: Work, index: int) -> None:
        self.work, self.index, schema = work, index, work.schema
        self.first, last = schema.span(index)
        size, types = last - self.first, schema.dtypes
        self.arrays = {k: np.full((size, *v), np.nan, types[k]) for k, v in schema.shapes.items()}
        self.valid = np.zeros(size, bool)
        self.failures: list[Failure] = []
        self.in_a_row = 0

    def _seed(self, *key: int) -> int:
        return calls.draw_seed(self.work.settings.seed, self.index, *key)

    def fill(self, caller: Caller) -> None:
        """Draw until every row is there, or once, if failures are only reported."""
        attempt, missing = 0, np.arange(len(self.valid))
        while len(missing) and (attempt == 0 or self.work.settings.failures != "report"):
            theta = draw_prior(self.work.sources.prior, len(missing), self._seed(attempt, 0))
            self.arrays["theta"][missing] = checks.as_tensor(theta, "prior").numpy()
            seed, count = self._seed(attempt, 0, 1), len(missing)
            batch = caller(theta, seed, count) if self.work.schema.vectorised else None
            if isinstance(batch, Data):
                self._take(batch.x, missing, attempt, [seed] * count, alone=False)
            else:
                self._one_by_one(caller, theta, missing, attempt)
            missing = np.flatnonzero(~self.valid)
            attempt += 1

    def _one_by_one(self, caller: Caller, theta: Any, rows: NumPy, attempt: int) -> None:
        batch = 1 if self.work.schema.vectorised else None
        good: list[tuple[int, int, NumPy]] = []
        for j, row in enumerate(rows):
            seed = self._seed(attempt, 1 + j)
            result = caller(theta[j : j + 1] if batch else theta[j], seed, batch)
            if isinstance(result, Data) and not np.isfinite(result.x).all():
                result = calls.NAN
            if isinstance(result, Problem):
                self._fail(row, attempt, result, seed, alone=True)
            else:
                self.in_a_row = 0
                good.append((row, seed, result.x.reshape(self.arrays["x"].shape[1:])))
        if good:
            done, seeds, x = zip(*good, strict=True)
            self._take(np.stack(x), np.array(done), attempt, seeds, alone=True)

    def _take(self, data: NumPy, rows: NumPy, attempt: int, seeds: Any, *, alone: bool) -> None:
        x = torch.from_numpy(data.astype(self.arrays["x"].dtype, copy=False))
        s, problems = _summaries(self.work.summarise, x)
        good = []
        for j, row in enumerate(rows):
            if j in problems:
                self._fail(row, attempt, problems[j], seeds[j], alone=alone)
            else:
                self.in_a_row = 0
                good.append(j)
        kept = rows[good]
        self.arrays["x"][kept], self.arrays["s"][kept] = x[good].numpy(), s[good].numpy()
        self.valid[kept] = True

    def _fail(self, row: int, attempt: int, problem: Problem, seed: int, *, alone: bool) -> None:
        theta = tuple(self.arrays["theta"][row].tolist())
        where = (self.index, int(self.first + row), attempt)
        self.failures.append(Failure(*where, problem.kind, problem.error, theta, seed, alone))
        self.in_a_row += 1
        what, then = "", "Mend the simulator, or choose failures='redraw' or 'report'."
        if self.work.settings.failures == "raise":
            what = "a draw failed"
        elif self.in_a_row >= MAX_IN_A_ROW:
            what = f"{self.in_a_row} draws in a row failed, the last one"
            then = "Check the simulator, or restrict the prior to where it works."
        if what:
            kept = "Chunks that were complete are kept."
            raise SimulationError(f"simulator: {what}: {self.failures[-1]}. {kept} {then}")


def _summaries(summarise: Summariser, x: Tensor) -> tuple[Tensor, dict[int, Problem]]:
    """Return summaries `(b, d_s)` of datasets, and what is wrong with which of them."""
    finite = torch.isfinite(x.flatten(1)).all(1)
    problems = dict.fromkeys((~finite).nonzero()[:, 0].tolist(), calls.NAN)
    s = torch.full((len(x), summarise.dim or 0), torch.nan, dtype=torch.float64)
    good = finite.nonzero()[:, 0]
    if not len(good):
        return s, problems
    try:
        s = s.index_put((good,), summarise(x[good]).double().cpu())
    except Exception as error:
        if len(x) == 1:
            return s, {0: Problem.of(error, "summary: ")}
        for j in good.tolist():
            one, more = _summaries(summarise, x[j : j + 1])
            s[j] = one[0]
            problems |= {j: more[0]} if more else {}
    for j in good.tolist():
        if j not in problems and not torch.isfinite(s[j]).all():
            problems[j] = Problem(calls.NOT_FINITE, "the summary holds NaN or infinite values")
    return s, problems


def probe(sources: Sources, settings: Settings) -> Schema:
    """Simulate a little, thrown away, and return what the bank will hold."""
    with calls.one_core(), calls.borrowed_globals(), torch.no_grad():
        try:
            call = Call(sources.simulator, settings.n_obs)
            with calls.calling(call, settings.time_limit, "probe") as caller:
                theta, data, batch = _first(sources, settings, caller)
        finally:
            calls.close_idle("probe")
        x = torch.from_numpy(data.x if batch else data.x[None])
        summarise = Summariser(sources.summary)
        s = summarise(x, prefer_numpy=data.numpy)
    parameters = checks.as_tensor(theta, "prior")[0].numpy()
    rows = {"theta": parameters, "s": s[0].cpu().numpy(), "x": x[0].numpy()}
    return Schema.of_rows(settings, rows, vectorised=batch, summary_numpy=bool(summarise.numpy))


def _first(sources: Sources, settings: Settings, caller: Caller) -> tuple[Any, Data, bool]:
    ways = [True, False] if settings.vectorised is None else [settings.vectorised]
    seeded = partial(calls.draw_seed, settings.seed, PROBE)
    dim = draw_prior(sources.prior, 1, seeded()).shape[1]
    # Neither N nor d_theta: a function that takes one theta apart must not succeed by chance.
    batch = next(size for size in (3, 2, 4) if size not in (settings.n_obs, dim))
    said: dict[bool, str] = {}
    for attempt in range(ATTEMPTS):
        theta = draw_prior(sources.prior, batch, seeded(attempt, 0))
        for way in ways:
            given, size = (theta, batch) if way else (theta[0], None)
            result = caller(given, seeded(attempt, 1), size)
            if isinstance(result, Data) and np.isfinite(result.x).all():
                return theta, result, way
            said[way] = (result if isinstance(result, Problem) else calls.NAN).error
    words = ("with one theta", "with a batch")
    listed = "; ".join(f"{words[way]}: {error}" for way, error in said.items())
    raise SimulationError(
        f"simulator: expected datasets (N, *event) for one theta (d_theta,) or (B, N, *event) for "
        f"a batch (B, d_theta), got none in {ATTEMPTS} draws ({listed}). Try it by hand on a draw "
        "of the prior; say which of the two it takes by vectorised=True or False."
    )
