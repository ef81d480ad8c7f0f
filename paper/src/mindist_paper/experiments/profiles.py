"""How much each profile computes: the one table of sizes.

`smoke` runs every line of code and shows nothing; `quick` shows the right picture on two cores in
minutes; `paper` has the paper's sizes (section 5 and appendix "Further Experimental Details").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindist_paper.experiments.theorems import TheoremSizes


@dataclass(frozen=True)
class Size:
    """How much one task computes in one profile.

    Arguments:
        simulations: M, training datasets.
        datasets: B, test datasets.
        samples: S, posterior samples for each test dataset.
        predictive: Observations simulated for each posterior-predictive MMD.
        training: What differs from the paper's training (`mindist_paper.baselines.Training`).
        options: Of the task.
    """

    simulations: int
    datasets: int
    samples: int
    predictive: int
    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


# A mixture density network is the quickest posterior of sbi; two passes suffice to run the code.
SMOKE = {"density_estimator": "mdn", "max_num_epochs": 2}
# Held-out losses are flat after about 40 passes at four times the paper's step.
QUICK_MDN = {"density_estimator": "mdn", "learning_rate": 2e-3, "max_num_epochs": 40}
QUICK_NSF = {"learning_rate": 1e-3, "max_num_epochs": 60}
# "Until convergence": sbi's rule, bounded so that no task needs more than three hours.
PAPER = {"max_num_epochs": 100}

SMOKE_SIMULATIONS = 400  # 380 is the least with which detection can be calibrated at .05

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
"""Profile, task: sizes. The paper's own number for the factor model would be 50,000 datasets of
100 x 100 numbers, 2 GB; the NPE of a two-dimensional summary does not need them."""

EPSILONS: dict[str, tuple[float, ...]] = {
    "smoke": (0.0, 0.2),
    "quick": (0.0, 0.1, 0.2, 0.3, 0.5),
    "paper": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
}

GAUSSIAN_EPSILONS = {**EPSILONS, "paper": EPSILONS["quick"]}
"""The Gaussian task has no epsilon of .4 in the paper."""

MEAN_EPSILONS: dict[str, tuple[float, ...]] = {**EPSILONS, "quick": EPSILONS["paper"]}
"""Of the Gaussian task with the sample mean."""

MEAN_TRAINING: dict[str, dict[str, Any]] = {
    "smoke": SMOKE,
    "quick": QUICK_MDN,
    "paper": QUICK_MDN,
}
"""Of the NPE on the sample mean: the exact posterior is Gaussian with a linear mean, which one
component of a mixture density network has exactly. A spline flow takes minutes to come as near."""

ABLATION_EPSILONS: dict[str, tuple[float, ...]] = {
    "smoke": (0.0, 0.2),
    "quick": (0.0, 0.2, 0.5),
    "paper": (0.0, 0.2, 0.5),
}

PENALTIES: dict[str, tuple[float, ...]] = {
    "smoke": (10.0,),
    "quick": (10.0,),
    "paper": (0.1, 1.0, 5.0, 10.0),
}
"""lambda of NPE-RS: the paper's grid, or one of it."""

ROBUST_EPOCHS = {"smoke": 1, "quick": 40, "paper": 10}
"""Passes of NPE-RS after its warm start from the trained NPE, for each setting and lambda: 1,000
steps and more, with which its error has settled (docs/baselines.md)."""

DETECTION_DATASETS = {"smoke": 20, "quick": 300, "paper": 1_000}
"""Test datasets where nothing but detection is measured."""

INITIALISATION_DATASETS = {"smoke": 4, "quick": 20, "paper": 100}
"""A search from one start takes L-BFGS up to half a second, and there are twenty of them."""

SEARCH_SEEDS = {"smoke": 2, "quick": 5, "paper": 10}
"""Perturbed starts over which the spread of the initialisation ablation is taken."""

PFN_DATASETS = {"smoke": 2, "quick": 8, "paper": 50}
PFN_SAMPLES = {"smoke": 10, "quick": 100, "paper": 500}
"""NPE-PFN takes about a second for each query on a CPU."""

THEOREM_SIZES = {
    "smoke": TheoremSizes(400, 20, (10, 30, 100), (10,)),
    "quick": TheoremSizes(3_000, 200, (10, 30, 100, 300, 1_000, 3_000), (10, 30, 100, 300)),
    "paper": TheoremSizes(10_000, 400, (10, 30, 100, 300, 1_000, 3_000), (10, 30, 100, 300, 1_000)),
}


def ends(profile: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """All values, or the first and the last in the smoke profile.

    Example:
        >>> ends("smoke", (1, 2, 3)), ends("quick", (1, 2, 3))
        ((1, 3), (1, 2, 3))
    """
    return (values[0], values[-1]) if profile == "smoke" else values


__all__ = [
    "ABLATION_EPSILONS",
    "DETECTION_DATASETS",
    "EPSILONS",
    "GAUSSIAN_EPSILONS",
    "INITIALISATION_DATASETS",
    "MEAN_EPSILONS",
    "MEAN_TRAINING",
    "PENALTIES",
    "PFN_DATASETS",
    "PFN_SAMPLES",
    "ROBUST_EPOCHS",
    "SEARCH_SEEDS",
    "SIZES",
    "THEOREM_SIZES",
    "Size",
    "ends",
]
