"""Size and power of the detection (appendix Detecting Model Misspecification)."""

from __future__ import annotations

import pandas as pd

from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments import verdicts
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.gaussian import DELTAS
from mindist_paper.experiments.grid import MINIMUM_DISTANCE, SHOWN_EPSILON, compare, setting
from mindist_paper.experiments.profiles import DETECTION_DATASETS, GAUSSIAN_EPSILONS, ends


def detection_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Both presets on many datasets, nothing but detection measured."""
    pairs = [(e, 3.0) for e in (0.0, 0.05, *GAUSSIAN_EPSILONS[profile][1:])]
    pairs += [(SHOWN_EPSILON, d) for d in ends(profile, DELTAS) if d != 3.0]
    tests = [
        setting(
            "gaussian",
            profile,
            epsilon,
            {"delta": delta},
            num=DETECTION_DATASETS[profile],
            num_samples=0,
            num_predictive=0,
            keep_samples=0,
        )
        for epsilon, delta in pairs
    ]
    return compare("gaussian", MINIMUM_DISTANCE, profile, num_seeds, tests, learned_summary=True)


def detection_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rejection rates by alpha on clean data beside those by epsilon and by delta."""
    clean = rows[rows.epsilon == 0.0]
    size = [
        clean.assign(part="size", alpha=alpha, detected=clean.p_value <= alpha)
        for alpha in (0.01, 0.05, 0.1, 0.2, 0.3, 0.5)
    ]
    power = rows[rows.delta == 3.0].assign(part="epsilon", alpha=0.05)
    shift = rows[rows.epsilon == SHOWN_EPSILON].assign(part="delta", alpha=0.05)
    return pd.concat([*size, power, shift], ignore_index=True)


DETECTION = Experiment(
    name="detection",
    title="Detection of misspecification: size and power",
    shows="rejection rate on clean data by level, and on contaminated data by epsilon and by delta",
    source="appendix Detecting Model Misspecification",
    cells=detection_cells,
    prepare=detection_rows,
    panels=[
        Panel("detected", by="alpha", title="Size, clean data", where={"part": "size"}),
        Panel("detected", title="Power, δ = 3", where={"part": "epsilon"}),
        Panel("detected", by="delta", title="Power, ε = 0.2", where={"part": "delta"}),
    ],
    minutes={"smoke": 0.1, "quick": 0.2, "paper": 10},
    verdict=verdicts.size_and_power,
)

ENTRIES = (DETECTION,)

__all__ = ["ENTRIES"]
