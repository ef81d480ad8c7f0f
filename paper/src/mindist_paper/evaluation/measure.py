"""The rows of one cell: what a method did on each test dataset, and how good it was.

Every row has the same columns; what a method or a task does not have is NaN, and so is what a
cell that was stored by an earlier version did not measure yet, once rows are put together. All but
`TIMES` are determined by the cell: its test datasets, posterior draws and simulated predictions
have seeds derived from the configuration.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from mindist.features.bandwidth import parse_bandwidth
from mindist.posteriors.guards import seeded
from mindist.tasks import Task
from mindist_paper.baselines import Method
from mindist_paper.baselines.mds import MinimumDistanceMethod
from mindist_paper.evaluation.bank import (
    Datasets,
    derived_seed,
    generator,
    make_datasets,
    make_task,
)
from mindist_paper.evaluation.cell import Cell, canonical
from mindist_paper.evaluation.metrics import (
    coverage,
    predictive_mmd,
    reference_mmd,
    rmse,
    roc_auc,
    summary_distance,
)
from mindist_paper.evaluation.recipe import VARIANTS
from mindist_paper.evaluation.sampling import Draws, draw
from mindist_paper.evaluation.trained import Reference

LEVELS = (0.5, 0.8, 0.9, 0.95)
REFERENCE_DRAWS = 2_000  # at most, of the exact posterior given the clean data
KEPT_DATASETS = 4
TIMES = ("seconds", "fit_seconds")
"""Columns that are not determined by the configuration."""


def measure(cell: Cell, method: Method | None, reference: Reference) -> pd.DataFrame:
    """One row for each test dataset of a cell.

    Arguments:
        cell: What to measure.
        method: The trained method; the NPE for "oracle", None for "exact".
        reference: Scale and bandwidth that all methods on the bank share.

    Returns:
        Rows with the columns of the configuration (`describe_columns`), the metrics, what was
        detected, and, where samples are kept, the list columns "theta" and "samples".
    """
    task, data = make_task(cell.bank), make_datasets(cell.bank, cell.test)
    query = data.x_clean if cell.recipe.method == "oracle" else data.x_obs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        start = time.perf_counter()
        found = method.adapt(query) if isinstance(method, MinimumDistanceMethod) else None
        draws = None
        if cell.test.num_samples:
            seed = derived_seed("posterior", **_drawn_for(cell))
            draws = draw(task, method, query, cell.test.num_samples, seed)
        seconds = (time.perf_counter() - start) / len(query)
        columns: dict[str, Any] = {
            **_summaries(task, method, query, data, reference),
            **_detection(found),
            **_observations(found, data),
            "fit_seconds": getattr(method, "fit_seconds", math.nan),
            **_metrics(cell, task, draws, data, reference.bandwidth),
        }
    num = len(query)
    rows = pd.DataFrame(
        {
            **{name: [value] * num for name, value in describe_columns(cell).items()},
            "dataset": range(num),
            **{name: _column(value, num) for name, value in columns.items()},
            "seconds": [seconds] * num,
            "note": [" ".join(sorted({str(w.message) for w in caught}))] * num,
        }
    )
    return _with_samples(rows, cell, draws, data)


def describe_columns(cell: Cell) -> dict[str, Any]:
    """The columns that say what was computed, the same for all rows of a cell."""
    bank, recipe, test = cell.bank, cell.recipe, cell.test
    task, plain = make_task(bank), json.loads(canonical(cell))
    rule = recipe.options.get("bandwidth", "median")
    relative = recipe.method in VARIANTS and isinstance(rule, str)
    return {
        "address": cell.address,
        "task": bank.task,
        "task_options": _text(plain["bank"]["options"]),
        "num_simulations": bank.num,
        "num_obs": task.num_obs if test.num_obs is None else test.num_obs,
        "dim": torch.Size(task.event_shape).numel(),
        "method": recipe.method,
        "method_options": _text(plain["recipe"]["options"]),
        "learned_summary": recipe.learned_summary,
        "epsilon": float(test.epsilon),
        "delta": float(test.contamination.get("delta", math.nan)),
        "contamination": _text(plain["test"]["contamination"]),
        "bandwidth": parse_bandwidth(rule) if relative else math.nan,
        "seed": bank.seed,
    }


def _summaries(
    task: Task, method: Method | None, query: Tensor, data: Datasets, reference: Reference
) -> dict[str, Any]:
    """Distances of the used summaries from those of the clean data, in the method's own space."""
    if method is None:
        used, clean = task.summary(query), task.summary(data.x_clean)
    else:
        found, summary = method.used_summary(query), _summary_of(method)
        if found is None:
            return {"summary_distance": math.nan, "summary_distance_standardised": math.nan}
        with torch.no_grad():
            used, clean = found, summary(data.x_clean)
    used, clean = used.double(), clean.double()
    return {
        "summary_distance": summary_distance(used, clean),
        "summary_distance_standardised": summary_distance(used, clean, reference.scale),
    }


def _summary_of(method: Any) -> Any:
    """The summary function behind a method."""
    if isinstance(method, MinimumDistanceMethod):
        return method.posterior.mds.summary
    return method.summary


def _detection(found: Any) -> dict[str, Any]:
    """What minimum-distance summaries say about each dataset; NaN for other methods."""
    sources = {
        "detected": "misspecified",
        "p_value": "p_value",
        "adapted": "adapted",
        "distance_obs": "distance_obs",
        "distance_star": "distance_star",
    }
    return {
        column: math.nan if found is None else getattr(found, source)
        for column, source in sources.items()
    }


def _observations(found: Any, data: Datasets) -> dict[str, Any]:
    """What minimum-distance summaries say about single observations; NaN for other methods."""
    names = ("outlier_auc", "false_outliers", "epsilon_hat", "epsilon_error")
    if found is None:
        return dict.fromkeys(names, math.nan)
    wrong = (data.x_obs != data.x_clean).flatten(2).any(2)
    flagged = (found.outliers & ~wrong).double().sum(1) / (~wrong).double().sum(1)  # NaN for 0 / 0
    values = (roc_auc(found.outlier_score, wrong), flagged, found.epsilon, found.epsilon_error)
    return dict(zip(names, values, strict=True))


def _metrics(
    cell: Cell, task: Task, draws: Draws | None, data: Datasets, bandwidth: float
) -> dict[str, Any]:
    """What is computed from posterior samples, dataset by dataset."""
    names = [f"coverage_{round(100 * level)}" for level in LEVELS]
    names = ["rmse", *names, "posterior_sd", "predictive_mmd", "reference_mmd", "num_inside"]
    if draws is None:
        return dict.fromkeys(names, math.nan)
    theta = data.theta.double()
    samples = draws.samples.double()
    values = [rmse(samples.mean(0), theta), *coverage(samples, theta, LEVELS)]
    values += [
        samples.std(0).mean(-1),
        _predictive(cell, task, draws, data.x_clean, bandwidth),
        _against_exact(cell, task, draws.samples, data.x_clean),
        draws.num_inside,
    ]
    return dict(zip(names, values, strict=True))


def _predictive(cell: Cell, task: Task, draws: Draws, x_clean: Tensor, bandwidth: float) -> Tensor:
    """The posterior-predictive MMD `(B,)`; NaN where samples lie outside the prior's support."""
    values = torch.full((len(x_clean),), math.nan)
    num = min(cell.test.num_predictive, len(draws.samples))
    if not num:
        return values
    for index in (draws.num_inside == len(draws.samples)).nonzero()[:, 0].tolist():
        source = generator("predictive", dataset=index, **_drawn_for(cell))
        x = task.simulate(draws.samples[:num, index], 1, generator=source)
        pair = x.flatten(0, 1)[None], x_clean[index : index + 1]
        values[index] = predictive_mmd(*pair, bandwidth)[0]
    return values


def _against_exact(cell: Cell, task: Task, samples: Tensor, x_clean: Tensor) -> Any:
    """The MMD `(B,)` from the exact posterior given the clean data, where the task has one.

    NaN for a dataset whose samples are not finite: a network that is asked at a summary of a
    million may answer nothing else.
    """
    exact = getattr(task, "posterior", None)
    if exact is None:
        return math.nan
    num = min(REFERENCE_DRAWS, len(samples))
    with seeded(derived_seed("exact", **_drawn_for(cell))):
        drawn = exact(x_clean).sample((num,))
    values = torch.full((len(x_clean),), math.nan, dtype=drawn.dtype)
    finite = samples.isfinite().all(-1).all(0)
    if finite.any():
        values[finite] = reference_mmd(samples[:num, finite], drawn[:, finite])
    return values


def _with_samples(
    rows: pd.DataFrame, cell: Cell, draws: Draws | None, data: Datasets
) -> pd.DataFrame:
    """Keep posterior samples of the first datasets, with their true parameters."""
    size = cell.test.keep_samples
    if draws is None or not size:
        return rows
    first = min(KEPT_DATASETS, len(rows))
    kept = draws.samples[:size, :first].transpose(0, 1).double().tolist()
    empty: Sequence[Any] = [None] * (len(rows) - first)
    return rows.assign(theta=data.theta.double().tolist(), samples=[*kept, *empty])


def _drawn_for(cell: Cell) -> dict[str, Any]:
    """What draws depend on: not on the method, so that equal summaries give equal samples."""
    bank = json.loads(canonical(cell.bank))
    return {name: bank[name] for name in ("task", "options", "seed")}


def _column(value: Any, num: int) -> Any:
    return value.double().tolist() if isinstance(value, Tensor) else [float(value)] * num


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


__all__ = ["LEVELS", "TIMES", "describe_columns", "measure"]
