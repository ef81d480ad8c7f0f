"""Compute cells: what is stored is skipped, what is shared is trained once, the rest runs at once.

The first round trains the NPEs on which methods build, the second has a job for each group of cells
that share a training. torch computes on one thread: rows do not depend on the number of workers.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from mindist import checks
from mindist.posteriors.guards import quiet
from mindist.simulation.jobs import bar, outcomes, terminable
from mindist.storage import FullDiskError
from mindist.threads import one_thread
from mindist_paper.baselines.method import Method
from mindist_paper.evaluation.cell import Cell, address, canonical
from mindist_paper.evaluation.measure import measure
from mindist_paper.evaluation.store import KEPT, Store
from mindist_paper.evaluation.trained import get_method, get_npe, get_reference

# Cost of one simulation in training, relative to NPE: which jobs to begin with, nothing more.
COSTS = {"npe-rs": 3.0, "mds-dec": 8.0, "mds-kl": 8.0, "nnpe": 1.0}
PFN_COST = 1_000.0  # of one test dataset


class FailedCellsError(RuntimeError):
    """Some cells could not be computed; all others are stored."""


@dataclass(frozen=True)
class Job:
    """The work of one process: train the NPE of a cell, or measure a group of cells."""

    cells: tuple[Cell, ...]
    train: bool = False

    def __str__(self) -> str:
        bank, method = self.cells[0].bank, self.cells[0].recipe.method
        if self.train:
            return f"train NPE on {bank.task} (seed {bank.seed})"
        return f"measure {method} on {bank.task} (seed {bank.seed}, {len(self.cells)} cells)"

    @property
    def cost(self) -> float:
        """A rough measure of how long it takes."""
        bank, method = self.cells[0].bank, self.cells[0].recipe.method
        each = PFN_COST if method.startswith("npe-pfn") else 1.0
        return COSTS.get(method, 0.2) * bank.num + sum(each * cell.test.num for cell in self.cells)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: seconds, errors by address of the failed cell, warnings to pass on."""

    job: Job
    seconds: float
    failures: dict[str, str]
    notes: tuple[str, ...]


def run(
    cells: Iterable[Cell], store: Store, workers: int = 1, *, progress: bool = True
) -> pd.DataFrame:
    """Compute the cells that are not stored yet, and return the rows of all."""
    checks.positive(workers, "workers")
    cells = distinct(cells)
    found = {cell.address: store.find(cell.address) for cell in cells}
    missing = [cell for cell in cells if found[cell.address] is None]
    failures: dict[str, str] = {}
    # loky's, when it replaces a worker that has kept a large bank in memory: all goes on.
    with one_thread(), terminable(), quiet("A worker stopped while some jobs"):
        for jobs in (_trainings(missing, store), _measurements(missing)):
            jobs.sort(key=lambda job: -job.cost)
            done = outcomes(partial(work, store=store), jobs, workers, wave=len(jobs))
            failures = {}  # where an NPE failed, the cells that need it fail in the second round
            for outcome in _shown(done, len(jobs), progress):
                for note in outcome.notes:
                    checks.warn_user(note)
                failures |= outcome.failures
    if failures:
        raise _failed([cell for cell in cells if cell.address in failures], failures, len(cells))
    found |= {cell.address: store.find(cell.address) for cell in missing}
    frames = [f.drop(columns=KEPT, errors="ignore") for f in found.values() if f is not None]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Return each cell once, in the order of their first appearance."""
    return list({cell.address: cell for cell in cells}.values())


def work(job: Job, store: Store) -> Outcome:
    """Do a job; report what fails, but for a full disk, which ends the run."""
    start, failures = time.perf_counter(), {}
    with one_thread(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        # sbi's, of the paper's own summaries (OUP, SIR): nothing that a reader could change.
        warnings.filterwarnings("ignore", "Data has extreme outliers", UserWarning)
        warnings.filterwarnings("ignore", "Data has constant values", UserWarning)  # OUP's X_0
        methods: dict[str, Method | None] = {}
        for cell in job.cells:
            try:
                if job.train:
                    get_npe(store, cell.bank, cell.recipe)
                else:
                    _measure(cell, store, methods)
            except FullDiskError:
                raise
            except Exception as error:
                failures[cell.address] = f"{type(error).__name__}: {error}"
    notes = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return Outcome(job, time.perf_counter() - start, failures, notes)


def _measure(cell: Cell, store: Store, methods: dict[str, Method | None]) -> None:
    """Measure and store one cell; methods that the last ones of the group used are taken again."""
    name, key = cell.recipe.method, canonical(cell.recipe)
    if name == "npe-rs" or key not in methods:
        methods[key] = get_method(store, cell.bank, cell.recipe, cell.test)
    reference = get_reference(store, cell.bank, cell.recipe, methods[key])
    store.write(cell.address, measure(cell, methods[key], reference))


def _trainings(cells: Sequence[Cell], store: Store) -> list[Job]:
    first = {address(c.bank, c.recipe.npe): c for c in reversed(cells) if c.recipe.needs_npe}
    ready = [key for key in first if (store.trained / key).exists()]
    return [Job((cell,), train=True) for key, cell in first.items() if key not in ready]


def _measurements(cells: Sequence[Cell]) -> list[Job]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.training, []).append(cell)
    return [Job(tuple(group)) for group in groups.values()]


def _failed(cells: Sequence[Cell], failures: dict[str, str], total: int) -> FailedCellsError:
    lines = [f"  {cell}: {failures[cell.address]}" for cell in cells]
    head = f"{len(cells)} of {total} cells failed; the others are stored:"
    return FailedCellsError("\n".join([head, *lines]))


def _shown(done: Iterator[Outcome], total: int, progress: bool) -> Iterator[Outcome]:
    """Pass outcomes on and say what was done: a bar on a terminal, else a line for each job."""
    terminal = sys.stderr.isatty()
    say: Callable[..., Any] = tqdm.write if terminal else print
    with bar(total, 0, "job", bool(progress and terminal and total)) as shown:
        for count, outcome in enumerate(done, 1):
            shown.set_description(str(outcome.job))
            shown.update()
            if progress and (outcome.failures or not terminal):
                end = f", {len(outcome.failures)} failed" if outcome.failures else ""
                line = f"[{count}/{total}] {outcome.job}: {outcome.seconds:.1f} s{end}"
                say(line, file=sys.stderr)
            yield outcome
