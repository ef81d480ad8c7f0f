r"""One chunk: draw theta, simulate, summarise, embed; what fails is drawn again or marked.

.. math:: \theta_j \sim p(\theta), \quad x^{(j)} \sim p_{\theta_j}, \quad s_j = f(x^{(j)}),
    \quad \bar z_j = \tfrac1N \textstyle\sum_n z(x_n^{(j)})

Round r of chunk i draws the parameters of the rows that are still missing from the seed (i, r, 0)
and simulates row j of them from (i, r, 1 + j), a vectorised batch from (i, r, 0, 1). Nothing
depends on another chunk, on a clock or on the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.simulation.calls import Caller, Data
from mindist.simulation.failure import NOT_FINITE, Failure, Problem, SimulationError
from mindist.simulation.orphans import end_with_parent
from mindist.simulation.payload import Payload
from mindist.simulation.seeds import borrowed_globals, draw_seed
from mindist.simulation.sources import draw_prior
from mindist.simulation.threads import one_core
from mindist.simulation.work import Chunk, NumPy, Work
from mindist.summarise import Summariser

# A chunk gives up after so many failures in a row: at a rate of 9 failures in 10 draws that happens
# once in 40,000 times, and where everything fails nobody waits for more.
MAX_IN_A_ROW = 100

NAN = Problem(NOT_FINITE, "the data hold NaN or infinite values")


# Of the process's global generators: a Dask worker may have several threads.
_alone = threading.Lock()


def simulate_chunk(work: Work, index: int) -> Chunk:
    """Simulate one chunk in this process, which does one at a time."""
    start = time.perf_counter()
    with _alone, one_core(), borrowed_globals(), torch.no_grad():
        rows = _Rows(work, index)
        with work.caller() as caller:
            rows.fill(caller)
        arrays = {**rows.arrays, "valid": rows.valid}
        if work.embed is not None:
            arrays["z_bar"] = embed_rows(work, rows.arrays["x"], rows.valid)
        if not work.with_data:
            del arrays["x"]
    return Chunk(index, arrays, tuple(rows.failures), time.perf_counter() - start)


def simulate_packed(payload: Payload, index: int) -> Chunk:
    """Simulate one chunk in another process."""
    end_with_parent()
    return simulate_chunk(payload.open(), index)


def embed_rows(work: Work, x: NumPy, valid: NumPy) -> NumPy:
    """Mean embeddings `(b, K)` in float32 of the valid rows; NaN elsewhere."""
    if work.embed is None:
        raise ValueError("embed: expected an embedding, got None.")
    z_bar = work.embed(torch.from_numpy(x[valid])).float().cpu().numpy()
    result = np.full((len(x), z_bar.shape[1]), np.nan, np.float32)
    result[valid] = z_bar
    return result


class _Rows:
    """The rows of one chunk, as they fill up."""

    def __init__(self, work: Work, index: int) -> None:
        schema = work.schema
        self.work, self.index = work, index
        self.first, last = schema.span(index)
        size = last - self.first
        self.arrays = {
            name: np.full((size, *schema.shapes[name]), np.nan, schema.dtypes[name])
            for name in ("theta", "s", "x")
        }
        self.valid = np.zeros(size, bool)
        self.failures: list[Failure] = []
        self.in_a_row = 0

    def fill(self, caller: Caller) -> None:
        """Draw until every row is there, or once, if failures are only reported."""
        attempt, missing = 0, np.arange(len(self.valid))
        while len(missing):
            seed = draw_seed(self.work.settings.seed, self.index, attempt, 0)
            theta = draw_prior(self.work.sources.prior, len(missing), seed)
            self.arrays["theta"][missing] = checks.as_tensor(theta, "prior").numpy()
            self._simulate(caller, theta, missing, attempt)
            missing = np.flatnonzero(~self.valid)
            attempt += 1
            if self.work.settings.failures == "report":
                return

    def _simulate(self, caller: Caller, theta: Any, rows: NumPy, attempt: int) -> None:
        """Simulate and summarise datasets for these rows."""
        if self.work.schema.vectorised and self._batch(caller, theta, rows, attempt):
            return
        batch = 1 if self.work.schema.vectorised else None
        good: list[tuple[int, int, NumPy]] = []
        for j, row in enumerate(rows):
            seed = draw_seed(self.work.settings.seed, self.index, attempt, 1 + j)
            result = caller(theta[j : j + 1] if batch else theta[j], seed, batch)
            if isinstance(result, Data) and not np.isfinite(result.x).all():
                result = NAN
            if isinstance(result, Problem):
                self._fail(row, attempt, result, seed, alone=True)
            else:
                self.in_a_row = 0
                good.append((row, seed, result.x.reshape(self.arrays["x"].shape[1:])))
        if good:
            done, seeds, x = zip(*good, strict=True)
            self._take(np.stack(x), np.array(done), attempt, seeds, alone=True)

    def _batch(self, caller: Caller, theta: Any, rows: NumPy, attempt: int) -> bool:
        """All rows in one call; if it gives nothing, they are tried one by one."""
        seed = draw_seed(self.work.settings.seed, self.index, attempt, 0, 1)
        result = caller(theta, seed, len(rows))
        if isinstance(result, Problem):
            return False
        self._take(result.x, rows, attempt, [seed] * len(rows), alone=False)
        return True

    def _take(
        self, data: NumPy, rows: NumPy, attempt: int, seeds: Sequence[int], *, alone: bool
    ) -> None:
        """Keep what is finite, with its summaries."""
        x = torch.from_numpy(data.astype(self.arrays["x"].dtype, copy=False))
        finite = torch.isfinite(x.flatten(1)).all(1)
        s, problems = summaries(self.work.summarise, x, finite)
        for j, row in enumerate(rows):
            if j in problems:
                self._fail(row, attempt, problems[j], seeds[j], alone=alone)
            else:
                self.in_a_row = 0
        good = [j for j in range(len(rows)) if j not in problems]
        self.arrays["x"][rows[good]] = x[good].numpy()
        self.arrays["s"][rows[good]] = s[good].numpy()
        self.valid[rows[good]] = True

    def _fail(self, row: int, attempt: int, problem: Problem, seed: int, *, alone: bool) -> None:
        theta = tuple(self.arrays["theta"][row].tolist())
        where = (self.index, int(self.first + row), attempt)
        self.failures.append(Failure(*where, problem.kind, problem.error, theta, seed, alone))
        self.in_a_row += 1
        if self.work.settings.failures == "raise":
            raise SimulationError(
                f"simulator: a draw failed: {self.failures[-1]}. Chunks that were complete are "
                "kept. Mend the simulator, or choose failures='redraw' or 'report'."
            )
        if self.in_a_row >= MAX_IN_A_ROW:
            raise SimulationError(
                f"simulator: {self.in_a_row} draws in a row failed, the last one: "
                f"{self.failures[-1]}. Chunks that were complete are kept. Check the simulator, or "
                "restrict the prior to where it works."
            )


def summaries(
    summarise: Summariser, x: Tensor, finite: Tensor
) -> tuple[Tensor, dict[int, Problem]]:
    """Summaries `(b, d_s)`, and what is wrong with which dataset."""
    problems = dict.fromkeys((~finite).nonzero()[:, 0].tolist(), NAN)
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
            one, more = summaries(summarise, x[j : j + 1], torch.ones(1, dtype=torch.bool))
            s[j] = one[0]
            if more:
                problems[j] = more[0]
    for j in good.tolist():
        if j not in problems and not torch.isfinite(s[j]).all():
            problems[j] = Problem(NOT_FINITE, "the summary holds NaN or infinite values")
    return s, problems


__all__ = ["embed_rows", "simulate_chunk", "simulate_packed", "summaries"]
