"""Four tasks in one experiment: the Gaussian one with the sample mean, OUP, SIR and cryo-EM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe, TestSpec
from mindist_paper.experiments.cryo_em import molecule
from mindist_paper.experiments.grid import bank, product, setting
from mindist_paper.experiments.profiles import MEAN_TRAINING, SIZES

NAMES = {"gaussian": "Gaussian", "oup": "OUP", "sir": "SIR", "cryo_em": "cryo-EM"}
"""The tasks, and what they are called in figures."""

OWN: Mapping[str, Mapping[str, Any]] = {"gaussian": {"delta": 3.0}}
"""What is chosen about a task's own contamination."""

MEAN_NOTE = (
    "The Gaussian task has the sample mean as its summary; its NPE is a mixture density network, "
    "which contains the exact posterior."
)


def smoke_tasks(profile: str) -> tuple[str, ...]:
    """All four, or in the smoke profile the quickest one."""
    return tuple(NAMES)[:1] if profile == "smoke" else tuple(NAMES)


def task_cells(
    task: str,
    profile: str,
    num_seeds: int,
    recipes: Sequence[Recipe],
    tests: Sequence[TestSpec],
) -> list[Cell]:
    """Recipes, trained as the task's experiments train them, on tests of one task."""
    training = MEAN_TRAINING[profile] if task == "gaussian" else SIZES[profile][task].training
    options = {"molecule": molecule()} if task == "cryo_em" else {}
    banks = [bank(task, profile, seed, options) for seed in range(num_seeds)]
    return product(banks, [replace(r, training=training) for r in recipes], tests)


def own_setting(task: str, profile: str, epsilon: float, **changes: Any) -> TestSpec:
    """The task's own contamination, everything measured but for the changes."""
    return setting(task, profile, epsilon, OWN.get(task), **changes)


def lean(test: TestSpec) -> TestSpec:
    """The same test datasets, without what takes longest to measure."""
    return replace(test, num_predictive=0, keep_samples=0)


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """The task's name in figures, as a column."""
    return rows.assign(task_name=rows.task.map(NAMES))


__all__ = ["MEAN_NOTE", "NAMES", "lean", "own_setting", "smoke_tasks", "task_cells", "with_names"]
