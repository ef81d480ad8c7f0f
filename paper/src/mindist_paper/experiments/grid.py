"""Cells from a few words: which task, which methods, which settings.

Equal settings give equal cells, whichever experiment asks, so that nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec
from mindist_paper.experiments.profiles import PENALTIES, ROBUST_EPOCHS, SIZES

ERROR_MODEL = {"rho": 0.5, "tau": 0.2}
NNPE_NOTE = (
    "NNPE has rho = 1/2 and tau = 0.2: with the printed rho = 1 no network could give the paper's "
    "figure (docs/baselines.md)."
)

SHOWN_EPSILON = 0.2  # whose posteriors are drawn
KEPT_SAMPLES = 200  # of each of the four posteriors that are drawn

BASELINES = ("npe", "nnpe", "npe-or")
MINIMUM_DISTANCE = ("mds-rf", "mds")


def bank(task: str, profile: str, seed: int, options: Mapping[str, Any] | None = None) -> BankSpec:
    """The training simulations of a task in a profile."""
    size = SIZES[profile][task]
    return BankSpec(task, size.simulations, {**size.options, **(options or {})}, seed)


def recipes(
    method: str, task: str, profile: str, *, learned_summary: bool = False
) -> Sequence[Recipe]:
    """A method as the experiments use it: one recipe, or for NPE-RS one for each lambda."""
    training = SIZES[profile][task].training
    plain = Recipe(method, training, learned_summary)
    if method == "nnpe":
        return [replace(plain, options={"error_model": ERROR_MODEL})]
    if method == "npe-rs":
        epochs = ROBUST_EPOCHS[profile]
        penalties = PENALTIES[profile]
        return [replace(plain, options={"penalty": p, "max_num_epochs": epochs}) for p in penalties]
    return [plain]


def recipe(
    method: str, task: str, profile: str, options: Mapping[str, Any] | None = None
) -> Recipe:
    """One method on the task's own summary, with options."""
    return Recipe(method, SIZES[profile][task].training, options=options or {})


def setting(
    task: str,
    profile: str,
    epsilon: float,
    contamination: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TestSpec:
    """The test datasets of a task in a profile, everything measured but for the changes."""
    size = SIZES[profile][task]
    whole = TestSpec(
        epsilon,
        contamination or {},
        num=size.datasets,
        num_samples=size.samples,
        num_predictive=size.predictive,
        keep_samples=KEPT_SAMPLES if epsilon == SHOWN_EPSILON else 0,
    )
    return replace(whole, **changes)


def product(
    banks: Iterable[BankSpec], cell_recipes: Sequence[Recipe], tests: Sequence[TestSpec]
) -> list[Cell]:
    """Every recipe on every bank and every test."""
    return [Cell(b, r, t) for b in banks for r in cell_recipes for t in tests]


def compare(
    task: str,
    methods: Sequence[str],
    profile: str,
    num_seeds: int,
    tests: Sequence[TestSpec],
    *,
    learned_summary: bool = False,
    options: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """Several methods on the same test datasets of one task."""
    banks = [bank(task, profile, seed, options) for seed in range(num_seeds)]
    chosen = [
        r for m in methods for r in recipes(m, task, profile, learned_summary=learned_summary)
    ]
    return product(banks, chosen, tests)


__all__ = [
    "BASELINES",
    "ERROR_MODEL",
    "MINIMUM_DISTANCE",
    "NNPE_NOTE",
    "SHOWN_EPSILON",
    "bank",
    "compare",
    "product",
    "recipe",
    "recipes",
    "setting",
]
