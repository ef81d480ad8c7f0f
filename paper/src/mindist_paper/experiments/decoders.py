"""Which decoder: what each one costs and what it is good for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.four_tasks import (
    MEAN_NOTE,
    lean,
    own_setting,
    smoke_tasks,
    task_cells,
    with_names,
)
from mindist_paper.experiments.grid import SHOWN_EPSILON
from mindist_paper.experiments.tables import option

CLEAN, SMALL = 0.0, 0.05
DECODERS: dict[str, Mapping[str, Any]] = {
    "ridge": {},
    "mlp": {"decoder": "mlp"},
    "flow": {"decoder": "flow", "solver": "adam", "stay": 0, "reweight": 0},
}
"""Decoder: options of the default. A flow is known by fresh draws only, which suit Adam alone."""

FLOW_TASKS = ("gaussian",)  # the others' observations have 25, 365 and 1,024 numbers


def decoder_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Each decoder on clean data, at a small fraction and at a fifth."""
    cells: list[Cell] = []
    for task in smoke_tasks(profile):
        recipes = [
            Recipe("mds", options=options)
            for name, options in DECODERS.items()
            if name != "flow" or (task in FLOW_TASKS and profile != "smoke")
        ]
        tests = [lean(own_setting(task, profile, e)) for e in (CLEAN, SMALL, SHOWN_EPSILON)]
        cells += task_cells(task, profile, num_seeds, recipes, tests)
    return cells


def decoder_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The decoder and the task's name as columns."""
    return with_names(rows).assign(decoder=option(rows, "decoder", "ridge"))


def table_of_decoders(rows: pd.DataFrame) -> str:
    """Held-out error, power, RMSE and seconds of each decoder, task by task."""
    sentences = []
    for task, own in rows.groupby("task_name", sort=False):
        parts = []
        for decoder, chosen in own.groupby("decoder", sort=False):
            at = dict(list(chosen.groupby("epsilon")))
            parts.append(
                f"{decoder} {at[CLEAN].distance_obs.mean():.3g} / {at[SMALL].detected.mean():.2f} "
                f"/ {at[SHOWN_EPSILON].rmse.mean():.3g} / {chosen.fit_seconds.mean():.1f} s"
            )
        sentences.append(f"{task}: {'; '.join(parts)}.")
    head = (
        "Squared distance on clean test data / rejection rate at ε = 0.05 / RMSE at ε = 0.2 / fit."
    )
    return " ".join([head, *sentences])


DECODER_CHOICE = Experiment(
    name="decoders",
    title="Which decoder",
    shows="ridge, MLP and flow: held-out squared distance, power, RMSE, seconds of the fit",
    source="not in the paper",
    cells=decoder_cells,
    prepare=decoder_rows,
    panels=[
        Panel(metric, "decoder", title, {"epsilon": epsilon}, log, "task_name")
        for metric, title, epsilon, log in (
            ("distance_obs", "Held-out squared distance", CLEAN, True),
            ("detected", "Detection, ε = 0.05", SMALL, False),
            ("rmse", "RMSE, ε = 0.2", SHOWN_EPSILON, True),
            ("fit_seconds", "Fit", CLEAN, True),
        )
    ],
    notes=[
        MEAN_NOTE,
        "The distance is that of clean test datasets, which no decoder was fitted to: its own "
        "error and the noise of the embedding, the same for all on a task. The flow is fitted to "
        "the observations as they are and searched with Adam, on the Gaussian task only, because "
        "it models the density of an observation. The combined detector needs the closed form of "
        "the ridge regression; the others have the distance alone. Seconds include the embedding "
        "of the simulations.",
    ],
    minutes={"smoke": 0.2, "quick": 3, "paper": 40},
    estimated=("quick", "paper"),
    verdict=table_of_decoders,
)

ENTRIES = (DECODER_CHOICE,)

__all__ = ["ENTRIES"]
