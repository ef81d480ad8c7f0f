"""Contaminations that the paper never tried."""

from __future__ import annotations

import json

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe
from mindist_paper.experiments import verdicts
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.four_tasks import MEAN_NOTE, NAMES, lean, task_cells
from mindist_paper.experiments.grid import setting
from mindist_paper.experiments.ratios import nowhere_worse, with_ratio
from mindist_paper.tasks.contaminations import SUITABLE

METHODS = ("npe", "mds-rf", "mds")
FRACTIONS: dict[str, tuple[float, ...]] = {
    "cluster": (0.2,),
    "student-t": (0.2, 1.0),
    "scale": (0.2, 1.0),
    "gross": (0.03,),
    "duplicates": (0.3,),
    "missing": (0.2,),
    "noise-scale": (1.0,),
}
"""Kind: contaminated fractions. Three gross outliers of 100 are a few."""

SMOKE_KINDS = ("gross", "missing")


def unseen_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Every kind that suits a task."""
    cells: list[Cell] = []
    for task in NAMES:
        kinds = SMOKE_KINDS if profile == "smoke" else SUITABLE[task]
        tests = [
            lean(setting(task, profile, epsilon, {"kind": kind}))
            for kind in kinds
            for epsilon in FRACTIONS[kind]
        ]
        cells += task_cells(task, profile, num_seeds, [Recipe(m) for m in METHODS], tests)
    return cells


def unseen_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The kind and the fraction in words, and the error relative to NPE."""
    kinds = rows.contamination.map(lambda text: json.loads(text)["kind"])
    shares = rows.epsilon.map(lambda epsilon: f"{100 * epsilon:.3g}%")
    return with_ratio(rows.assign(case=kinds + " " + shares), ("task", "case"))


UNSEEN = Experiment(
    name="unseen",
    title="Contaminations that the paper never tried",
    shows="a one-sided cluster, heavy tails, scale, gross outliers, duplicates, missing blocks: "
    "RMSE relative to NPE",
    source="not in the paper",
    cells=unseen_cells,
    prepare=unseen_rows,
    panels=[
        *(
            Panel("rmse_ratio", "case", f"{name}, relative to NPE", {"task": task})
            for task, name in NAMES.items()
        ),
        *(Panel("rmse", "case", name, {"task": task}, log=True) for task, name in NAMES.items()),
        *(
            Panel("detected", "case", f"{name}, detection", {"task": task})
            for task, name in NAMES.items()
        ),
    ],
    notes=[
        MEAN_NOTE,
        "cluster: 2 population standard deviations to one side, a tenth as wide; student-t: noise "
        "with 2 degrees of freedom and a quarter of the population's size; scale: 1.5 times about "
        "the population's mean (counts: about 0); noise-scale: 1.5 times about the true mean; "
        "gross: every coordinate at a million; duplicates: copies of one observation; missing: a "
        "third of a series or an image, or a coordinate, at 0. Gross outliers are copies of each "
        "other too, and the default counts copies once. Where all observations are scaled, data "
        "of another parameter may be what they look like.",
    ],
    minutes={"smoke": 0.3, "quick": 4, "paper": 25},
    estimated=("quick", "paper"),
    verdict=verdicts.joined(nowhere_worse("mds"), nowhere_worse("mds-rf")),
)

ENTRIES = (UNSEEN,)

__all__ = ["ENTRIES"]
