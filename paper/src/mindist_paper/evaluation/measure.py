"""The rows of one cell: what a method did on each test dataset, and how good it was; else NaN.

Where rejection finds next to nothing inside the prior's support, the density estimator's own draws
are used as they are: this is where NPE fails, and a table without these datasets would flatter it.
"""

import json
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mindist.features.kernel import parse_bandwidth
from mindist.posteriors.backend import find_backend
from mindist.posteriors.guards import seeded
from mindist.posteriors.queries import Conditions, Queries
from mindist.posteriors.truncation import Budget
from mindist.tasks import Task
from mindist_paper.baselines.mds import MinimumDistanceMethod
from mindist_paper.baselines.method import Method
from mindist_paper.evaluation import bank as banks
from mindist_paper.evaluation import metrics
from mindist_paper.evaluation.bank import Datasets, derived_seed, make_task, seeded_by
from mindist_paper.evaluation.cell import VARIANTS, Cell, canonical
from mindist_paper.evaluation.trained import Reference

Columns = dict[str, Any]
LEVELS = (0.5, 0.8, 0.9, 0.95)
MAX_DRAWS = 100  # for each sample; a posterior with less than a hundredth inside is not one
REFERENCE_DRAWS = 2_000  # at most, of the exact posterior given the clean data
KEPT_DATASETS = 4
TIMES = ("seconds", "fit_seconds")  # Columns that are not determined by the configuration


def measure(cell: Cell, method: Method | None, reference: Reference) -> pd.DataFrame:
    """Return one row for each test dataset of a cell."""
    task, data = make_task(cell.bank), banks.make_datasets(cell.bank, cell.test)
    query = data.x_clean if cell.recipe.method == "oracle" else data.x_obs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        start = time.perf_counter()
        found = method.adapt(query) if isinstance(method, MinimumDistanceMethod) else None
        draws = None
        if cell.test.num_samples:
            seed = derived_seed("posterior", **seeded_by(cell.bank))
            draws = draw(task, method, query, cell.test.num_samples, seed)
        seconds = (time.perf_counter() - start) / len(query)
        columns: Columns = {
            **_summaries(task, method, query, data, reference),
            **_detection(found),
            "fit_seconds": getattr(method, "fit_seconds", math.nan),
            **_metrics(cell, task, draws, data, reference.bandwidth),
        }
    rows = pd.DataFrame({"dataset": range(len(query))}).assign(
        **{k: v.double().tolist() if isinstance(v, Tensor) else v for k, v in columns.items()},
        **describe_columns(cell),
        seconds=seconds,
        note=" ".join(sorted({str(w.message) for w in caught})),
    )
    if draws is not None and cell.test.keep_samples:
        kept = draws.samples[: cell.test.keep_samples, :KEPT_DATASETS].transpose(0, 1)
        samples = kept.double().tolist()
        samples += [None] * (len(rows) - len(samples))
        rows = rows.assign(theta=data.theta.double().tolist(), samples=samples)
    return rows


def describe_columns(cell: Cell) -> Columns:
    """Return the columns that say what was computed, the same for all rows of a cell."""
    bank, recipe, test = cell.bank, cell.recipe, cell.test
    task, plain = make_task(bank), json.loads(canonical(cell))
    rule = recipe.options.get("bandwidth", "median")
    relative = recipe.method in VARIANTS and isinstance(rule, str)

    def text(part: str, name: str) -> str:
        return json.dumps(plain[part][name], sort_keys=True)

    return {
        "address": cell.address,
        "task": bank.task,
        "task_options": text("bank", "options"),
        "num_simulations": bank.num,
        "num_obs": task.num_obs if test.num_obs is None else test.num_obs,
        "dim": torch.Size(task.event_shape).numel(),
        "method": recipe.method,
        "method_options": text("recipe", "options"),
        "learned_summary": recipe.learned_summary,
        "epsilon": float(test.epsilon),
        "delta": float(test.contamination.get("delta", math.nan)),
        "contamination": text("test", "contamination"),
        "bandwidth": parse_bandwidth(rule) if relative else math.nan,
        "seed": bank.seed,
    }


def _summaries(
    task: Task, method: Any, query: Tensor, data: Datasets, reference: Reference
) -> Columns:
    if method is None:
        used, clean = task.summary(query), task.summary(data.x_clean)
    else:
        used = method.used_summary(query)
        robust = isinstance(method, MinimumDistanceMethod)
        summary = method.posterior.mds.summary if robust else method.summary
        with torch.no_grad():
            clean = summary(data.x_clean)
    used, clean = used.double(), clean.double()
    return {
        "summary_distance": metrics.summary_distance(used, clean),
        "summary_distance_standardised": metrics.summary_distance(used, clean, reference.scale),
    }


def _detection(found: Any) -> Columns:
    """Return what MDS says about datasets; NaN for other methods."""
    names = ("p_value", "adapted", "distance_obs", "distance_star")
    if found is None:
        return dict.fromkeys((*names, "detected"), math.nan)
    return {**{name: getattr(found, name) for name in names}, "detected": found.misspecified}


@dataclass(frozen=True)
class Draws:
    """Posterior samples of B datasets."""

    samples: Tensor  # `(S, B, d_theta)`, float32
    num_inside: Tensor  # inside the prior's support `(B,)`: S, or less where the draws are raw


def draw(task: Task, method: Any, x: Tensor, num_samples: int, seed: int) -> Draws:
    """Draw samples from a method, or from the task's exact posterior if it is None."""
    all_inside = torch.full((len(x),), num_samples)
    if method is None:
        exact: Any = getattr(task, "posterior", None)
        if exact is None:
            raise ValueError(f"'exact' needs a task with an exact posterior, got {task.name}.")
        with seeded(seed):
            return Draws(exact(x).sample((num_samples,)), all_inside)
    if isinstance(method, MinimumDistanceMethod):
        robust = method.posterior
        return _at_summaries(robust.queries, robust.conditions(x), num_samples, seed)
    queries = Queries(find_backend(method.posterior), MAX_DRAWS)
    conditions = Conditions.certain(queries.checked(method.used_summary(x)))
    return _at_summaries(queries, conditions, num_samples, seed)


def _at_summaries(queries: Queries, s: Conditions, num_samples: int, seed: int) -> Draws:
    """Draw at the summaries of B datasets, without rejection where it comes to nothing."""

    def part(which: Tensor) -> Conditions:
        return Conditions(s.s[which], s.uncertain[which], s.around[which])

    budget = Budget(MAX_DRAWS)
    with seeded(seed, s.s.device):
        drawn = queries.draw(num_samples, s, budget)
    if drawn.complete:
        return Draws(drawn.samples.float(), drawn.obtained)  # TabPFN's are float64
    short, inside = drawn.obtained < num_samples, drawn.obtained.clone()
    keep = Budget(MAX_DRAWS, reject=False)
    free = queries.sample((num_samples,), part(short), keep, seed=seed).float()
    samples = free.new_empty(num_samples, len(s), free.shape[-1])
    samples[:, short] = free
    if not short.all():
        rest = _at_summaries(queries, part(~short), num_samples, seed)
        samples[:, ~short], inside[~short] = rest.samples, rest.num_inside
    return Draws(samples, inside)


def _metrics(
    cell: Cell, task: Task, draws: Draws | None, data: Datasets, bandwidth: float
) -> Columns:
    levels = [f"coverage_{round(100 * level)}" for level in LEVELS]
    if draws is None:
        names = ("rmse", "posterior_sd", "predictive_mmd", "reference_mmd", "num_inside")
        return dict.fromkeys((*names, *levels), math.nan)
    theta, samples = data.theta.double(), draws.samples.double()
    return {
        "rmse": metrics.rmse(samples.mean(0), theta),
        **dict(zip(levels, metrics.coverage(samples, theta, LEVELS), strict=True)),
        "posterior_sd": samples.std(0).mean(-1),
        "predictive_mmd": _predictive(cell, task, draws, data.x_clean, bandwidth),
        "reference_mmd": _against_exact(cell, task, draws.samples, data.x_clean),
        "num_inside": draws.num_inside,
    }


def _predictive(cell: Cell, task: Task, draws: Draws, x_clean: Tensor, bandwidth: float) -> Tensor:
    """Return the predictive MMD `(B,)`; NaN where samples lie outside the prior's support."""
    values = torch.full((len(x_clean),), math.nan)
    num = min(cell.test.num_predictive, len(draws.samples))
    if not num:
        return values
    for index in (draws.num_inside == len(draws.samples)).nonzero()[:, 0].tolist():
        source = banks.generator("predictive", dataset=index, **seeded_by(cell.bank))
        x = task.simulate(draws.samples[:num, index], 1, generator=source)
        pair = x.flatten(0, 1)[None], x_clean[index : index + 1]
        values[index] = metrics.predictive_mmd(*pair, bandwidth)[0]
    return values


def _against_exact(cell: Cell, task: Task, samples: Tensor, x_clean: Tensor) -> Any:
    """Return the MMD `(B,)` from the exact posterior given the clean data, if the task has one."""
    exact = getattr(task, "posterior", None)
    if exact is None:
        return math.nan
    num = min(REFERENCE_DRAWS, len(samples))
    with seeded(derived_seed("exact", **seeded_by(cell.bank))):
        drawn = exact(x_clean).sample((num,))
    values = torch.full((len(x_clean),), math.nan, dtype=drawn.dtype)
    finite = samples.isfinite().all(-1).all(0)
    if finite.any():
        values[finite] = metrics.reference_mmd(samples[:num, finite], drawn[:, finite])
    return values
