"""What the paper does not have: unseen contaminations, the ablation, decoders, outliers."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from mindist_paper.evaluation.cell import Cell, Recipe, TestSpec
from mindist_paper.experiments import claims, profiles
from mindist_paper.experiments.experiment import NEW, Experiment
from mindist_paper.experiments.profiles import SHOWN_EPSILON, SIZES, bank, product, setting
from mindist_paper.report.statistics import Panel, paired_difference, summarise
from mindist_paper.report.style import setting as in_words
from mindist_paper.tasks.contaminations import SUITABLE

# Contaminated fractions of each kind. Three gross outliers of 100 are a few
FRACTIONS: dict[str, tuple[float, ...]] = {
    **{"cluster": (0.2,), "student-t": (0.2, 1.0), "scale": (0.2, 1.0), "gross": (0.03,)},
    **{"duplicates": (0.3,), "missing": (0.2,), "noise-scale": (1.0,)},
}
SMOKE_KINDS = ("gross", "missing")
DEFAULT, PAPER = "default", "paper's preset"
# The recipe's options that remove one idea. The paper's preset has none of them
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
CLEAN, SMALL = 0.0, 0.05
# Options of the default for each decoder. A flow is known by fresh draws only, which suit Adam
DECODERS: dict[str, Mapping[str, Any]] = {
    "ridge": {},
    "mlp": {"decoder": "mlp"},
    "flow": {"decoder": "flow", "solver": "adam", "stay": 0, "reweight": 0},
}
MEAN_NOTE = (
    "The Gaussian task has the sample mean as its summary; its NPE is a mixture density network, "
    "which contains the exact posterior."
)


def tasks_of(profile: str) -> tuple[str, ...]:
    """Return all four tasks, or in the smoke profile the quickest one."""
    return tuple(claims.NAMES)[:1] if profile == "smoke" else tuple(claims.NAMES)


def task_cells(
    task: str, profile: str, num_seeds: int, recipes: Sequence[Recipe], tests: Sequence[TestSpec]
) -> list[Cell]:
    """Return recipes, trained as the task's experiments train them, on tests of one task."""
    own = SIZES[profile][task].training
    training = profiles.MEAN_TRAINING[profile] if task == "gaussian" else own
    banks = [bank(task, profile, seed) for seed in range(num_seeds)]
    return product(banks, [replace(r, training=training) for r in recipes], tests)


def own_setting(task: str, profile: str, epsilon: float) -> TestSpec:
    """Return a test with the task's own contamination."""
    return setting(task, profile, epsilon, {"delta": 3.0} if task == "gaussian" else None)


def lean(test: TestSpec) -> TestSpec:
    """Return the same test datasets, without what takes longest to measure."""
    return replace(test, num_predictive=0, keep_samples=0)


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the task's name in figures as a column."""
    return rows.assign(task_name=rows.task.map(claims.NAMES))


def unseen_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Return every kind of contamination that suits a task."""
    cells: list[Cell] = []
    recipes = [Recipe(m) for m in ("npe", "mds-rf", "mds")]
    for task in claims.NAMES:
        tests = [
            lean(setting(task, profile, epsilon, {"kind": kind}))
            for kind in (SMOKE_KINDS if profile == "smoke" else SUITABLE[task])
            for epsilon in FRACTIONS[kind]
        ]
        cells += task_cells(task, profile, num_seeds, recipes, tests)
    return cells


def unseen_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Add kind and fraction in words, and the error relative to NPE."""
    kinds = rows.contamination.map(lambda text: json.loads(text)["kind"])
    shares = rows.epsilon.map(lambda epsilon: f"{100 * epsilon:.3g}%")
    return claims.with_ratio(rows.assign(case=kinds + " " + shares), ("task", "case"))


def ablation_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Return every variant and the paper's preset on four tasks, at a few fractions."""
    recipes = [Recipe("mds", options=options) for options in VARIANTS.values()]
    cells: list[Cell] = []
    for task in tasks_of(profile):
        # Only SIR is made for an epsilon of 1: every trajectory reported late.
        more = (1.0,) if task == "sir" and profile != "smoke" else ()
        epsilons = (*profiles.ABLATION_EPSILONS[profile], *more)
        tests = [lean(own_setting(task, profile, e)) for e in epsilons]
        cells += task_cells(task, profile, num_seeds, [*recipes, Recipe("mds-rf")], tests)
    return cells


def ablation_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Add what was removed, in words."""
    known = {json.dumps(options, sort_keys=True): name for name, options in VARIANTS.items()}
    return rows.assign(variant=rows.method_options.map(known).where(rows.method == "mds", PAPER))


def what_each_idea_is_worth(rows: pd.DataFrame) -> str:
    """Say for each variant in how many settings it is worse than the default, and where most."""
    sentences = []
    groups = list(rows.assign(method=rows.variant).groupby(["task", "epsilon"]))
    for variant in (*list(VARIANTS)[1:], PAPER):
        changes: dict[str, list[tuple[float, str]]] = {"worse": [], "better": []}
        for (task, epsilon), own in groups:
            difference, error = paired_difference(own, "rmse", "epsilon", epsilon, variant, DEFAULT)
            mean = own.groupby("method").rmse.mean()
            where = f"{claims.NAMES[task]} at {in_words('epsilon', epsilon)}"
            words = f"{where}: {mean[variant]:.3g} against {mean[DEFAULT]:.3g}"
            if abs(difference) > claims.DECIDED * error:
                size = abs(difference) / mean[DEFAULT]
                changes["worse" if difference > 0 else "better"].append((size, words))
        parts = [
            f"{word} than the default in {len(own)} (most on {max(own)[1]})"
            for word, own in changes.items()
            if own
        ]
        text = ", ".join(parts) or "no different from the default"
        sentences.append(f"{variant[:1].upper()}{variant[1:]}: {text}, of {len(groups)} settings.")
    return " ".join(sentences)


def decoder_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Return each decoder on clean data, at a small fraction and at a fifth."""
    cells: list[Cell] = []
    for task in tasks_of(profile):
        recipes = [
            Recipe("mds", options=options)
            for name, options in DECODERS.items()
            if name != "flow" or (task == "gaussian" and profile != "smoke")
        ]
        tests = [lean(own_setting(task, profile, e)) for e in (CLEAN, SMALL, SHOWN_EPSILON)]
        cells += task_cells(task, profile, num_seeds, recipes, tests)
    return cells


def decoder_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the decoder and the task's name as columns."""
    return with_names(rows).assign(decoder=claims.option(rows, "decoder", "ridge"))


def table_of_decoders(rows: pd.DataFrame) -> str:
    """List held-out error, power, RMSE and seconds of each decoder, task by task."""
    sentences = []
    for task, own in rows.groupby("task_name", sort=False):
        parts = []
        for decoder, chosen in own.groupby("decoder", sort=False):
            by = dict(list(chosen.groupby("epsilon")))
            parts.append(
                f"{decoder} {by[CLEAN].distance_obs.mean():.3g} / {by[SMALL].detected.mean():.2f} "
                f"/ {by[SHOWN_EPSILON].rmse.mean():.3g} / {chosen.fit_seconds.mean():.1f} s"
            )
        sentences.append(f"{task}: {'; '.join(parts)}.")
    head = "Squared distance on clean data / rejection rate at ε = 0.05 / RMSE at ε = 0.2 / fit."
    return " ".join([head, *sentences])


def outlier_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Return the default on four tasks: the cells of their own experiments."""
    cells: list[Cell] = []
    for task in claims.NAMES:
        epsilons = profiles.MEAN_EPSILONS if task == "gaussian" else profiles.EPSILONS
        tests = [own_setting(task, profile, epsilon) for epsilon in epsilons[profile]]
        cells += task_cells(task, profile, num_seeds, [Recipe("mds")], tests)
    return cells


def found_outliers(rows: pd.DataFrame) -> str:
    """List the area under the ROC curve and the estimated fraction, task by task."""
    words = {
        "outlier_auc": "ROC AUC",
        "epsilon_hat": "estimated ε",
        "false_outliers": "clean observations flagged",
    }
    found = {metric: summarise(rows, metric, "epsilon", "task_name") for metric in words}
    sentences = []
    for task in rows.task_name.unique():
        parts = []
        for metric, word in words.items():
            points = [p for p in found[metric].get(task, ()) if math.isfinite(p.mean)]
            if points:
                parts.append(f"{word} {', '.join(claims.at('epsilon', p, '.2f') for p in points)}")
        sentences.append(f"{task}: {'; '.join(parts)}.")
    return " ".join(sentences)


def by_task(metric: str, by: str, words: str, **how: Any) -> list[Panel]:
    """Return a panel for each task."""
    return [
        Panel(metric, by, f"{n}{words}", {"task": task}, **how) for task, n in claims.NAMES.items()
    ]


ENTRIES = (
    Experiment(
        name="unseen",
        title="Contaminations that the paper never tried",
        shows="a one-sided cluster, heavy tails, scale, gross outliers, duplicates, missing "
        "blocks: RMSE relative to NPE",
        source=NEW,
        cells=unseen_cells,
        prepare=unseen_rows,
        panels=[
            *by_task("rmse_ratio", "case", ", relative to NPE"),
            *by_task("rmse", "case", "", log=True),
            *by_task("detected", "case", ", detection"),
        ],
        notes=[
            MEAN_NOTE,
            "docs/tasks.md says what each kind is. Gross outliers are copies of each other too, "
            "and the default counts copies once. Where all observations are scaled, data of "
            "another parameter may be what they look like.",
        ],
        minutes=(0.3, 4, 25),
        estimated=("quick", "paper"),
        verdict=claims.joined(
            *(partial(claims.nowhere_worse, method=m) for m in ("mds", "mds-rf"))
        ),
    ),
    Experiment(
        name="ablation",
        title="The default with one idea removed at a time",
        shows="RMSE, rejection rate and coverage without each of the ideas of the default",
        source=NEW,
        cells=ablation_cells,
        prepare=ablation_rows,
        panels=[
            *by_task("rmse", "epsilon", "", log=True, series="variant"),
            *by_task("detected", "epsilon", ", detection", series="variant"),
            *by_task("coverage_90", "epsilon", ", coverage of 90% intervals", series="variant"),
        ],
        notes=[MEAN_NOTE],
        minutes=(0.5, 5, 40),
        estimated=("quick", "paper"),
        verdict=what_each_idea_is_worth,
    ),
    Experiment(
        name="decoders",
        title="Which decoder",
        shows="ridge, MLP and flow: held-out squared distance, power, RMSE, seconds of the fit",
        source=NEW,
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
            "The distance is that of clean test datasets: the decoder's error and the noise of the "
            "embedding. The flow models the density of an observation, and runs on the Gaussian "
            "task only, with Adam. All but the ridge regression have the distance alone as "
            "detector. Seconds include the embedding of the simulations.",
        ],
        minutes=(0.2, 3, 40),
        estimated=("quick", "paper"),
        verdict=table_of_decoders,
    ),
    Experiment(
        name="outliers",
        title="Which observations are wrong, and how many",
        shows="ROC AUC of the outlier score, estimated contaminated fraction, clean ones flagged",
        source=NEW,
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
            "The default alone. SIR's contamination moves 5% of the counts of a weekend: no "
            "trajectory is an outlier, and the whole dataset is misspecified.",
        ],
        minutes=(0.2, 2, 20),
        estimated=("quick", "paper"),
        verdict=found_outliers,
    ),
)
