"""Compute cells: what is stored is skipped, what is shared is trained once, the rest runs at once.

Work comes in two rounds. The first trains the NPEs on which methods build, one job for each; the
second has a job for each group of cells that share a training. A cell is stored as soon as it is
measured, so that a run can be stopped at any moment and goes on where it was. torch computes on one
thread whatever the number of workers: rows do not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from mindist import checks
from mindist.posteriors.guards import quiet, warn_user
from mindist.simulation.jobs import bar, outcomes, terminable
from mindist.threads import one_thread
from mindist_paper.evaluation.cell import Cell, address
from mindist_paper.evaluation.job import Job, Outcome, work
from mindist_paper.evaluation.recipe import needs_npe, shared_npe, training_of
from mindist_paper.evaluation.store import Store, describe

MAX_LISTED = 20


class FailedCellsError(RuntimeError):
    """Some cells could not be computed; all others are stored."""


def run(
    cells: Iterable[Cell], store: Store, workers: int = 1, *, progress: bool = True
) -> pd.DataFrame:
    """Compute the cells that are not stored yet, and return the rows of all.

    Arguments:
        cells: What to compute; equal cells are computed once.
        store: Where finished cells and trained parts are kept.
        workers: Processes. The rows are the same for any number.
        progress: Whether to show a bar on a terminal, or else to print a line for each job.

    Returns:
        One row for each test dataset of each cell, in the order of the cells.
    """
    checks.positive(workers, "workers")
    cells = distinct(cells)
    missing = [cell for cell in cells if cell not in store]
    failures: dict[str, str] = {}
    # loky's, when it replaces a worker that has kept a large bank in memory: all goes on.
    with one_thread(), terminable(), quiet("A worker stopped while some jobs"):
        for plan in (_trainings, _measurements):
            jobs = sorted(plan(missing, store), key=lambda job: -job.cost)
            done = outcomes(partial(work, store=store), jobs, workers, wave=len(jobs))
            for outcome in _shown(done, len(jobs), progress):
                for note in outcome.notes:
                    warn_user(note)
                failures |= _blame(outcome, missing)
            missing = [cell for cell in missing if cell.address not in failures]
    if failures:
        raise _failed([cell for cell in cells if cell.address in failures], failures, len(cells))
    return rows(cells, store)


def rows(cells: Iterable[Cell], store: Store) -> pd.DataFrame:
    """The stored rows of cells, in their order, equal cells once."""
    frames = [store.read(cell) for cell in distinct(cells)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, in the order of their first appearance."""
    return list({cell.address: cell for cell in cells}.values())


def _npe_key(cell: Cell) -> str:
    """What the cells have in common that a job of the first round trains for."""
    shared = shared_npe(cell.recipe) if needs_npe(cell.recipe) else None
    return address(cell.bank, shared) if shared is not None else address(cell.bank)


def _trainings(cells: Sequence[Cell], store: Store) -> list[Job]:
    """A job for each NPE that is missing."""
    first = {_npe_key(cell): cell for cell in reversed(cells)}
    return [Job("train", (cell,)) for cell in first.values() if not _ready(cell, store)]


def _ready(cell: Cell, store: Store) -> bool:
    """Whether a cell's NPE is there already; a bank's scales take no job of their own."""
    return needs_npe(cell.recipe) and (store.trained / _npe_key(cell)).exists()


def _measurements(cells: Sequence[Cell], store: Store) -> list[Job]:
    """A job for each group of cells that share their training."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(training_of(cell), []).append(cell)
    return [Job("measure", tuple(group)) for group in groups.values()]


def _blame(outcome: Outcome, missing: Sequence[Cell]) -> dict[str, str]:
    """Errors by cell; where an NPE failed, of every cell that needs it."""
    if outcome.job.kind == "measure" or not outcome.failures:
        return outcome.failures
    key, (error,) = _npe_key(outcome.job.cells[0]), outcome.failures.values()
    return {cell.address: error for cell in missing if _npe_key(cell) == key}


def _failed(cells: Sequence[Cell], failures: dict[str, str], total: int) -> FailedCellsError:
    lines = [f"  {describe(cell)}: {failures[cell.address]}" for cell in cells[:MAX_LISTED]]
    if len(cells) > MAX_LISTED:
        lines.append(f"  and {len(cells) - MAX_LISTED} more")
    head = f"{len(cells)} of {total} cells failed; the others are stored:"
    return FailedCellsError("\n".join([head, *lines]))


def _shown(done: Iterator[Outcome], total: int, progress: bool) -> Iterator[Outcome]:
    """Pass outcomes on and say what was done: a bar on a terminal, else a line for each job."""
    terminal = sys.stderr.isatty()
    say: Callable[..., Any] = tqdm.write if terminal else print
    with bar(total, 0, "job", bool(progress and terminal and total)) as shown:
        for count, outcome in enumerate(done, 1):
            shown.set_description(outcome.job.label)
            shown.update()
            if progress and (outcome.failures or not terminal):
                end = f", {len(outcome.failures)} failed" if outcome.failures else ""
                line = f"[{count}/{total}] {outcome.job.label}: {outcome.seconds:.1f} s{end}"
                say(line, file=sys.stderr)
            yield outcome


__all__ = ["FailedCellsError", "distinct", "rows", "run"]
