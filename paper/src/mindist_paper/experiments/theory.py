"""The two theorems, checked numerically."""

from __future__ import annotations

import pandas as pd

from mindist_paper.experiments import verdicts
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.profiles import THEOREM_SIZES
from mindist_paper.experiments.theorems import consistency_rows, robustness_rows

FLOOR = 1e-3  # of slopes in the figure: the exact one falls to 1e-162


def robustness(profile: str, num_seeds: int) -> pd.DataFrame:
    """Slopes of KL."""
    return robustness_rows(THEOREM_SIZES[profile], num_seeds)


def consistency(profile: str, num_seeds: int) -> pd.DataFrame:
    """Errors by N."""
    return consistency_rows(THEOREM_SIZES[profile], num_seeds)


def legible(rows: pd.DataFrame) -> pd.DataFrame:
    """Slopes of practically nothing lifted to the floor of the axis."""
    return rows.assign(kl_slope=rows.kl_slope.clip(lower=FLOOR))


ROBUSTNESS = Experiment(
    name="robustness",
    title="Theorem 4.1: how far one outlier moves the posterior",
    shows="slope of KL in epsilon by outlier position; where a singular Hessian voids the bound",
    source="Theorem 4.1, appendix Assumptions",
    own_rows=robustness,
    prepare=legible,
    panels=[
        Panel(
            "kl_slope",
            by="outlier",
            title="KL / ε at ε = 0.05, well specified",
            where={"part": "outlier"},
            log=True,
        ),
        Panel(
            "kl_slope",
            by="small_epsilon",
            title="Largest KL / ε, data in two groups",
            where={"part": "gap"},
            series="gap",
            log=True,
        ),
        Panel(
            "condition",
            by="outlier",
            title="Condition number of the Hessian at s*",
            where={"part": "outlier", "method": ["mds-exact", "mds", "mds-rf"]},
        ),
    ],
    notes=[
        "The derivative of KL at epsilon = 0 is 0 for every differentiable summary, the mean too; "
        "what tells them apart is the slope KL / epsilon at a fixed small epsilon, over all "
        f"positions. Slopes below {FLOOR:g} are shown as {FLOOR:g}.",
        "The gap is half the distance of two equal groups of data, in units of the distance at "
        "which the Hessian becomes singular. The paper's condition averages the Hessian over the "
        "model, not over the data, and so does not see this.",
    ],
    minutes={"smoke": 0.1, "quick": 0.2, "paper": 1},
    verdict=verdicts.robustness,
)

CONSISTENCY = Experiment(
    name="consistency",
    title="Theorem 4.2: the posterior at s* concentrates",
    shows="error, spread and coverage of the exact posterior at s* on clean data, N up to 3,000",
    source="Theorem 4.2",
    own_rows=consistency,
    panels=[
        Panel("rmse", by="num_obs", log=True),
        Panel("posterior_sd", by="num_obs", log=True),
        Panel("coverage_90", by="num_obs"),
    ],
    minutes={"smoke": 0.1, "quick": 0.1, "paper": 1},
    verdict=verdicts.consistency,
)

ENTRIES = (ROBUSTNESS, CONSISTENCY)

__all__ = ["ENTRIES"]
