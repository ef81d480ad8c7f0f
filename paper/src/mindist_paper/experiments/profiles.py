"""How much each profile computes, and cells from a few words: which task, methods, settings.

Equal settings give equal cells, whichever experiment asks, so that nothing is computed twice.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec
from mindist_paper.tasks.molecule import HSP90_VARIABLE

Options = Mapping[str, Any] | None


@dataclass(frozen=True)
class Size:
    """How much one task computes in one profile."""

    simulations: int  # M, training datasets
    datasets: int  # B, test datasets
    samples: int  # S, posterior samples for each test dataset
    predictive: int  # Observations simulated for each posterior-predictive MMD
    training: Mapping[str, Any] = field(default_factory=dict)  # that differs from the paper's
    options: Mapping[str, Any] = field(default_factory=dict)  # Options of the task


@dataclass(frozen=True)
class TheoremSizes:
    """How much to simulate for the theorems."""

    simulations: int  # M of the fitted estimators
    datasets: int  # How many test datasets for each N, for consistency
    sizes: tuple[int, ...]  # The values of N, for consistency
    fitted_sizes: tuple[int, ...]  # Those of them at which the estimator is fitted as well


# A mixture density network is the quickest posterior of sbi; two passes suffice to run the code.
SMOKE = {"density_estimator": "mdn", "max_num_epochs": 2}
# Held-out losses are flat after about 40 passes at four times the paper's step.
QUICK_MDN = {"density_estimator": "mdn", "learning_rate": 2e-3, "max_num_epochs": 40}
QUICK_NSF = {"learning_rate": 1e-3, "max_num_epochs": 60}
# "Until convergence": sbi's rule, bounded so that no task needs more than three hours.
PAPER = {"max_num_epochs": 100}
SMOKE_SIMULATIONS = 400  # 380 is the least with which detection can be calibrated at .05
# By profile and task. The paper's 50,000 datasets of the factor model would be 2 GB; two
# summaries do not need them
SIZES: dict[str, dict[str, Size]] = {
    "smoke": {
        "gaussian": Size(SMOKE_SIMULATIONS, 4, 50, 50, SMOKE, {"num_obs": 20}),
        "gaussian_factor": Size(SMOKE_SIMULATIONS, 4, 50, 50, SMOKE, {"num_obs": 20}),
        "oup": Size(SMOKE_SIMULATIONS, 4, 50, 50, SMOKE, {"num_obs": 20}),
        "sir": Size(SMOKE_SIMULATIONS, 4, 50, 20, SMOKE, {"num_obs": 10}),
        "cryo_em": Size(SMOKE_SIMULATIONS, 4, 50, 20, SMOKE, {"num_obs": 5}),
    },
    "quick": {
        "gaussian": Size(5_000, 50, 500, 500, QUICK_MDN),
        "gaussian_factor": Size(4_000, 50, 500, 500, QUICK_MDN),
        "oup": Size(4_000, 50, 500, 500, QUICK_NSF),
        "sir": Size(3_000, 50, 500, 200, QUICK_NSF),
        "cryo_em": Size(1_500, 50, 500, 200, QUICK_NSF),
    },
    "paper": {
        "gaussian": Size(50_000, 100, 2_000, 1_000, PAPER),
        "gaussian_factor": Size(20_000, 100, 2_000, 1_000, PAPER),
        "oup": Size(10_000, 100, 2_000, 1_000, PAPER),
        "sir": Size(10_000, 100, 2_000, 1_000, PAPER),
        "cryo_em": Size(15_000, 100, 2_000, 500, PAPER),
    },
}
EPSILONS: dict[str, tuple[float, ...]] = {
    "smoke": (0.0, 0.2),
    "quick": (0.0, 0.1, 0.2, 0.3, 0.5),
    "paper": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
}
GAUSSIAN_EPSILONS = {**EPSILONS, "paper": EPSILONS["quick"]}  # the paper has no .4 there
MEAN_EPSILONS = {**EPSILONS, "quick": EPSILONS["paper"]}  # with the sample mean
# Given the sample mean, one component of a mixture density network has the exact posterior
MEAN_TRAINING = {"smoke": SMOKE, "quick": QUICK_MDN, "paper": QUICK_MDN}
# lambda of NPE-RS: the paper's grid, or one of it
PENALTIES = {"smoke": (10.0,), "quick": (10.0,), "paper": (0.1, 1.0, 5.0, 10.0)}
# Passes of NPE-RS from the trained NPE: with 1,000 steps its error has settled (docs/baselines.md)
ROBUST_EPOCHS = {"smoke": 1, "quick": 40, "paper": 10}
# Test datasets where nothing but detection is measured
DETECTION_DATASETS = {"smoke": 20, "quick": 300, "paper": 1_000}
# A search from one start takes L-BFGS up to half a second, and there are twenty of them
INITIALISATION_DATASETS = {"smoke": 4, "quick": 20, "paper": 100}
# Perturbed starts over which the spread of the initialisation ablation is taken
SEARCH_SEEDS = {"smoke": 2, "quick": 5, "paper": 10}
PFN_DATASETS = {"smoke": 2, "quick": 8, "paper": 50}
# NPE-PFN takes about a second for each query on a CPU
PFN_SAMPLES = {"smoke": 10, "quick": 100, "paper": 500}
THEOREM_SIZES = {
    "smoke": TheoremSizes(400, 20, (10, 30, 100), (10,)),
    "quick": TheoremSizes(3_000, 200, (10, 30, 100, 300, 1_000, 3_000), (10, 30, 100, 300)),
    "paper": TheoremSizes(10_000, 400, (10, 30, 100, 300, 1_000, 3_000), (10, 30, 100, 300, 1_000)),
}
SHOWN_EPSILON = 0.2  # whose posteriors are drawn
KEPT_SAMPLES = 200  # of each of the four posteriors that are drawn
BASELINES = ("npe", "nnpe", "npe-or")
MINIMUM_DISTANCE = ("mds-rf", "mds")
ERROR_MODEL = {"rho": 0.5, "tau": 0.2}
NNPE_NOTE = (
    "NNPE has rho = 1/2 and tau = 0.2: with the printed rho = 1 no network could give the paper's "
    "figure (docs/baselines.md)."
)


def ends(profile: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return all values, or the first and the last in the smoke profile."""
    return (values[0], values[-1]) if profile == "smoke" else values


def molecule() -> str:
    """Return which molecule: the paper's where its coordinates are at hand, else the chain."""
    return "hsp90" if os.environ.get(HSP90_VARIABLE) else "synthetic"


def bank(task: str, profile: str, seed: int, options: Options = None) -> BankSpec:
    """Return the training simulations of a task in a profile."""
    size = SIZES[profile][task]
    own = {"molecule": molecule()} if task == "cryo_em" else {}
    return BankSpec(task, size.simulations, {**size.options, **own, **(options or {})}, seed)


def recipe(method: str, task: str, profile: str, options: Options = None) -> Recipe:
    """Return one method on the task's own summary, with options."""
    return Recipe(method, SIZES[profile][task].training, options=options or {})


def setting(
    task: str, profile: str, epsilon: float, contamination: Options = None, **changes: Any
) -> TestSpec:
    """Return the test datasets of a task, everything measured but for the changes."""
    size = SIZES[profile][task]
    keep = KEPT_SAMPLES if epsilon == SHOWN_EPSILON else 0
    sizes = {"num": size.datasets, "num_samples": size.samples, "num_predictive": size.predictive}
    whole = TestSpec(epsilon, contamination or {}, keep_samples=keep, **sizes)
    return replace(whole, **changes)


def product(
    banks: Iterable[BankSpec], recipes: Sequence[Recipe], tests: Sequence[TestSpec]
) -> list[Cell]:
    """Return every recipe on every bank and every test."""
    return [Cell(b, r, t) for b in banks for r in recipes for t in tests]


def compare(
    task: str,
    methods: Sequence[str],
    profile: str,
    num_seeds: int,
    tests: Sequence[TestSpec],
    *,
    learned_summary: bool = False,
    options: Options = None,
) -> list[Cell]:
    """Return several methods on the same test datasets of one task; NPE-RS with each lambda."""
    epochs = {"max_num_epochs": ROBUST_EPOCHS[profile]}
    robust = [{"penalty": penalty, **epochs} for penalty in PENALTIES[profile]]
    more: dict[str, list[Any]] = {"nnpe": [{"error_model": ERROR_MODEL}], "npe-rs": robust}
    recipes = [
        Recipe(method, SIZES[profile][task].training, learned_summary, own)
        for method in methods
        for own in more.get(method, [{}])
    ]
    banks = [bank(task, profile, seed, options) for seed in range(num_seeds)]
    return product(banks, recipes, tests)
