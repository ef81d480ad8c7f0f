"""The default with one idea removed at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe
from mindist_paper.experiments.claims import DECIDED
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.four_tasks import (
    MEAN_NOTE,
    NAMES,
    lean,
    own_setting,
    smoke_tasks,
    task_cells,
)
from mindist_paper.experiments.profiles import ABLATION_EPSILONS
from mindist_paper.report.statistics import paired_difference
from mindist_paper.report.style import setting as in_words

DEFAULT, PAPER = "default", "paper's preset"
VARIANTS: dict[str, Mapping[str, Any]] = {
    DEFAULT: {},
    "no gate": {"force": True},
    "no local kernel": {"local": False},
    "no weights": {"reweight": 0},
    "weights whatever their feedback": {"feedback": 100},
    "copies all count": {"distinct": False},
    "not kept near simulations": {"stay": 0},
    "raw observations": {"representation": "raw"},
    "independent frequencies": {"frequencies": "random"},
    "distance alone detects": {"detector": "distance"},
    "start at the observed": {"starts": ["observed"]},
    "no uncertainty": {"uncertainty": False},
}
"""What is removed: the recipe's options. The paper's preset has none of it."""

SIR_EPSILON = 1.0  # only SIR is made for it: every trajectory reported late


def ablation_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Every variant and the paper's preset on four tasks, at a few fractions."""
    recipes = [Recipe("mds", options=options) for options in VARIANTS.values()]
    cells: list[Cell] = []
    for task in smoke_tasks(profile):
        more = (SIR_EPSILON,) if task == "sir" and profile != "smoke" else ()
        epsilons = (*ABLATION_EPSILONS[profile], *more)
        tests = [lean(own_setting(task, profile, epsilon)) for epsilon in epsilons]
        cells += task_cells(task, profile, num_seeds, [*recipes, Recipe("mds-rf")], tests)
    return cells


def ablation_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """What was removed, in words."""
    known = {json.dumps(options, sort_keys=True): name for name, options in VARIANTS.items()}
    variant = rows.method_options.map(known).where(rows.method == "mds", PAPER)
    return rows.assign(variant=variant)


@dataclass(frozen=True)
class Effect:
    """What a variant changes at one setting.

    Arguments:
        change: Of the RMSE, relative to that of the default.
        decided: Whether it is beyond two standard errors of the paired difference.
        words: The setting and both errors.
    """

    change: float
    decided: bool
    words: str


def effects(rows: pd.DataFrame, variant: str) -> list[Effect]:
    """What a variant changes, setting by setting."""
    found = []
    for (task, epsilon), own in rows.assign(method=rows.variant).groupby(["task", "epsilon"]):
        difference, error = paired_difference(own, "rmse", "epsilon", epsilon, variant, DEFAULT)
        mean = own.groupby("method").rmse.mean()
        where = f"{NAMES[task]} at {in_words('epsilon', epsilon)}"
        words = f"{where}: {mean[variant]:.3g} against {mean[DEFAULT]:.3g}"
        decided = abs(difference) > DECIDED * error
        found.append(Effect(difference / mean[DEFAULT], decided, words))
    return found


def what_each_idea_is_worth(rows: pd.DataFrame) -> str:
    """For each variant in how many settings it is worse than the default, and where most."""
    sentences = []
    for variant in (*list(VARIANTS)[1:], PAPER):
        found = effects(rows, variant)
        parts = []
        for word, sign in (("worse", 1), ("better", -1)):
            own = [e for e in found if e.decided and sign * e.change > 0]
            if own:
                most = max(own, key=lambda effect: abs(effect.change))
                parts.append(f"{word} than the default in {len(own)} (most on {most.words})")
        text = ", ".join(parts) or "no different from the default"
        sentences.append(f"{variant[:1].upper()}{variant[1:]}: {text}, of {len(found)} settings.")
    return " ".join(sentences)


ABLATION = Experiment(
    name="ablation",
    title="The default with one idea removed at a time",
    shows="RMSE, rejection rate and coverage without each of the ideas of the default",
    source="not in the paper",
    cells=ablation_cells,
    prepare=ablation_rows,
    panels=[
        Panel(metric, title=f"{name}{words}", where={"task": task}, log=log, series="variant")
        for metric, words, log in (
            ("rmse", "", True),
            ("detected", ", detection", False),
            ("coverage_90", ", coverage of 90% intervals", False),
        )
        for task, name in NAMES.items()
    ],
    notes=[MEAN_NOTE],
    minutes={"smoke": 0.5, "quick": 5, "paper": 40},
    estimated=("quick", "paper"),
    verdict=what_each_idea_is_worth,
)

ENTRIES = (ABLATION,)

__all__ = ["ENTRIES"]
