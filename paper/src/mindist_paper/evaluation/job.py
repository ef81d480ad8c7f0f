"""What one process does in one go: train an NPE, or measure the cells that share a training."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

from mindist.threads import one_thread
from mindist_paper.baselines import Method
from mindist_paper.evaluation.cell import Cell, canonical
from mindist_paper.evaluation.measure import measure
from mindist_paper.evaluation.recipe import needs_npe, shared_npe
from mindist_paper.evaluation.store import FullDiskError, Store
from mindist_paper.evaluation.trained import get_method, get_npe, get_reference

# Of one simulation in training, relative to NPE: which jobs to begin with, nothing more.
COSTS = {"npe-rs": 3.0, "mds-dec": 8.0, "mds-kl": 8.0, "rnpe": 2.0, "nnpe": 1.0}
PFN_COST = 1_000.0  # of one test dataset


@dataclass(frozen=True)
class Job:
    """What one process does in one go.

    Arguments:
        kind: "train" or "measure".
        cells: For "train" one cell for each training, for "measure" those that share one.
    """

    kind: str
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """A few words for people."""
        bank, recipe = self.cells[0].bank, self.cells[0].recipe
        what = recipe.method
        if self.kind == "train":
            what = "NPE" if needs_npe(recipe) else "scales"
        size = f", {len(self.cells)} cells" if self.kind == "measure" else ""
        return f"{self.kind} {what} on {bank.task} (seed {bank.seed}{size})"

    @property
    def cost(self) -> float:
        """A rough measure of how long it takes."""
        bank, method = self.cells[0].bank, self.cells[0].recipe.method
        each = PFN_COST if method.startswith("npe-pfn") else 1.0
        tests = sum(each * cell.test.num for cell in self.cells)
        return COSTS.get(method, 0.2) * bank.num + tests


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Arguments:
        job: Which one.
        seconds: How long it took.
        failures: Addresses of cells that failed, with the error.
        notes: Warnings to be passed on.
    """

    job: Job
    seconds: float
    failures: dict[str, str]
    notes: tuple[str, ...]


def work(job: Job, store: Store) -> Outcome:
    """Do a job; whatever fails is reported, but for a full disk, which ends the run."""
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
                if job.kind == "train":
                    _train(cell, store)
                else:
                    _measure(cell, store, methods)
            except FullDiskError:
                raise
            except Exception as error:
                failures[cell.address] = f"{type(error).__name__}: {error}"
    notes = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return Outcome(job, time.perf_counter() - start, failures, notes)


def _train(cell: Cell, store: Store) -> None:
    if needs_npe(cell.recipe):
        get_npe(store, cell.bank, shared_npe(cell.recipe))
    get_reference(store, cell.bank, cell.recipe)


def _measure(cell: Cell, store: Store, methods: dict[str, Method | None]) -> None:
    """Measure one cell; methods that the last ones of the group used are taken again."""
    name, key = cell.recipe.method, canonical(cell.recipe)
    if name == "exact":
        methods[key] = None
    elif name == "npe-rs" or key not in methods:
        methods[key] = get_method(store, cell.bank, cell.recipe, cell.test)
    reference = get_reference(store, cell.bank, cell.recipe, methods[key])
    store.write(cell, measure(cell, methods[key], reference))


__all__ = ["Job", "Outcome", "work"]
