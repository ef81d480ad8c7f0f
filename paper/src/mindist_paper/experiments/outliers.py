"""Which observations are wrong, and how many."""

from __future__ import annotations

import math

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.four_tasks import (
    MEAN_NOTE,
    NAMES,
    own_setting,
    task_cells,
    with_names,
)
from mindist_paper.experiments.profiles import EPSILONS, MEAN_EPSILONS
from mindist_paper.report.statistics import summarise
from mindist_paper.report.style import setting as in_words


def outlier_cells(profile: str, num_seeds: int) -> list[Cell]:
    """The default on four tasks: the cells of their own experiments."""
    cells: list[Cell] = []
    for task in NAMES:
        epsilons = MEAN_EPSILONS[profile] if task == "gaussian" else EPSILONS[profile]
        tests = [own_setting(task, profile, epsilon) for epsilon in epsilons]
        cells += task_cells(task, profile, num_seeds, [Recipe("mds")], tests)
    return cells


def found_outliers(rows: pd.DataFrame) -> str:
    """The area under the ROC curve and the estimated fraction, task by task."""
    metrics = ("outlier_auc", "epsilon_hat", "false_outliers")
    found = {metric: summarise(rows, metric, "epsilon", "task_name") for metric in metrics}

    def listed(metric: str, task: str) -> str:
        points = [p for p in found[metric].get(task, ()) if math.isfinite(p.mean)]
        return ", ".join(f"{p.mean:.2f} at {in_words('epsilon', p.at)}" for p in points)

    words = ("ROC AUC", "estimated ε", "clean observations flagged")
    sentences = []
    for task in rows.task_name.unique():
        parts = [
            f"{word} {text}"
            for word, metric in zip(words, metrics, strict=True)
            if (text := listed(metric, task))
        ]
        sentences.append(f"{task}: {'; '.join(parts)}.")
    return " ".join(sentences)


OUTLIERS = Experiment(
    name="outliers",
    title="Which observations are wrong, and how many",
    shows="ROC AUC of the outlier score, estimated contaminated fraction, clean ones flagged",
    source="not in the paper",
    cells=outlier_cells,
    prepare=with_names,
    panels=[
        Panel("outlier_auc", title="Outlier score", series="task_name"),
        Panel("epsilon_hat", title="Estimated fraction", series="task_name"),
        Panel("epsilon_error", title="Standard error of the estimate", series="task_name"),
        Panel("false_outliers", title="Clean observations flagged", series="task_name"),
    ],
    notes=[
        MEAN_NOTE,
        "The default alone. SIR's contamination moves 5% of the counts of a weekend: no trajectory "
        "is an outlier, and the whole dataset is misspecified.",
    ],
    minutes={"smoke": 0.2, "quick": 2, "paper": 20},
    estimated=("quick", "paper"),
    verdict=found_outliers,
)

ENTRIES = (OUTLIERS,)

__all__ = ["ENTRIES"]
