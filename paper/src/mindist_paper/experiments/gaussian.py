"""The Gaussian task: Figures 1 and 3 and the appendix's figures of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments import anchors, verdicts
from mindist_paper.experiments.claims import SIMILAR, Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.grid import (
    BASELINES,
    MINIMUM_DISTANCE,
    NNPE_NOTE,
    SHOWN_EPSILON,
    compare,
    setting,
)
from mindist_paper.experiments.profiles import GAUSSIAN_EPSILONS, ends
from mindist_paper.experiments.tables import best_penalty

DELTAS = (1.0, 2.0, 3.0, 4.0, 5.0)
ALL = (*BASELINES, "npe-rs", "mds-rf", "mds-dec", "mds", "oracle")
ROBUST_NOTE = (
    "NPE-RS starts from the trained NPE and is trained further for each setting, on the batch of "
    "observed datasets; of several lambda the one with the lowest mean RMSE is shown, which "
    "favours it."
)


def by_epsilon(methods: Sequence[str]) -> Any:
    """Cells of methods by contaminated fraction, with a learned summary."""

    def cells(profile: str, num_seeds: int) -> list[Cell]:
        tests = [
            setting("gaussian", profile, e, {"delta": 3.0}) for e in GAUSSIAN_EPSILONS[profile]
        ]
        return compare("gaussian", methods, profile, num_seeds, tests, learned_summary=True)

    return cells


def by_delta(methods: Sequence[str]) -> Any:
    """Cells of methods by shift of the outliers at epsilon .2, with a learned summary."""

    def cells(profile: str, num_seeds: int) -> list[Cell]:
        chosen = ends(profile, DELTAS)
        tests = [setting("gaussian", profile, SHOWN_EPSILON, {"delta": d}) for d in chosen]
        return compare("gaussian", methods, profile, num_seeds, tests, learned_summary=True)

    return cells


def figure1_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Outliers at 8 units, with the sample mean as the summary."""
    tests = [setting("gaussian", profile, e, {"delta": 8.0}) for e in (0.0, SHOWN_EPSILON)]
    methods = ("npe", *MINIMUM_DISTANCE, "oracle")
    return compare("gaussian", methods, profile, num_seeds, tests)


FOUR_POSTERIORS = Panel(
    "posterior",
    title="Posteriors of four datasets, ε = 0.2",
    where={"epsilon": SHOWN_EPSILON, "delta": 3.0, "seed": 0},
)
BY_DELTA = {"epsilon": SHOWN_EPSILON}

FIGURE1 = Experiment(
    name="figure1",
    title="A fifth of the observations shifted by 8 units",
    shows="data, summaries and posterior of one contaminated dataset, before and after adaptation",
    source="Figure 1",
    cells=figure1_cells,
    panels=[Panel("rmse"), Panel("reference_mmd"), Panel("summary_distance")],
    notes=[
        "The picture has one dataset, shifted by 8; the curves below have outliers at +8 and -8 "
        "and the sample mean as the summary."
    ],
    minutes={"smoke": 0.2, "quick": 0.7, "paper": 20},
    verdict=verdict(Claim("mds-rf", "npe", at=(0.2,)), Claim("mds", "npe", at=(0.2,))),
    illustration="figure1",
)

GAUSSIAN = Experiment(
    name="gaussian",
    title="Gaussian task by contaminated fraction (δ = 3)",
    shows="all methods by epsilon: posterior MMD, RMSE, predictive MMD, coverage, four posteriors",
    source="Figure 3 right; appendix Gaussian Task",
    cells=by_epsilon(ALL),
    prepare=best_penalty,
    panels=[
        Panel("reference_mmd"),
        Panel("rmse"),
        Panel("predictive_mmd"),
        Panel("coverage"),
        FOUR_POSTERIORS,
    ],
    notes=[NNPE_NOTE, ROBUST_NOTE],
    minutes={"smoke": 0.3, "quick": 3.3, "paper": 74},
    estimated=(),
    anchors=anchors.GAUSSIAN,
    anchors_source=anchors.GAUSSIAN_SOURCE,
    verdict=verdict(
        Claim("mds-rf", "npe", "reference_mmd", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "nnpe", "reference_mmd", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "npe-or", "reference_mmd", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "npe-rs", "reference_mmd", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "npe", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "mds-dec", relation=SIMILAR),
    ),
)

GAUSSIAN_DELTA = Experiment(
    name="gaussian-delta",
    title="Gaussian task by shift of the outliers (ε = 0.2)",
    shows="all methods by delta: posterior MMD, RMSE, predictive MMD, coverage",
    source="Figure 3 left; appendix Gaussian Task",
    cells=by_delta(ALL),
    prepare=best_penalty,
    panels=[
        Panel("reference_mmd", by="delta", where=BY_DELTA),
        Panel("rmse", by="delta", where=BY_DELTA),
        Panel("predictive_mmd", by="delta", where=BY_DELTA),
        Panel("coverage", by="delta", where=BY_DELTA),
    ],
    notes=[NNPE_NOTE, ROBUST_NOTE],
    minutes={"smoke": 0.2, "quick": 2.3, "paper": 50},
    verdict=verdicts.joined(
        verdict(
            Claim("mds-rf", "npe", "reference_mmd", by="delta", at=(2.0, 3.0, 4.0, 5.0)),
            Claim("mds-rf", "nnpe", "reference_mmd", by="delta", at=(2.0, 3.0, 4.0, 5.0)),
            Claim("mds-rf", "npe", by="delta", at=(3.0, 4.0, 5.0)),
        ),
        verdicts.rises_and_falls("mds-rf", "reference_mmd", "delta"),
    ),
)

ENTRIES = (FIGURE1, GAUSSIAN, GAUSSIAN_DELTA)

__all__ = ["BY_DELTA", "ENTRIES", "by_delta", "by_epsilon"]
