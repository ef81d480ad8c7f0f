"""Cryo-EM: Figures 5 and 6, and the appendix's."""

from __future__ import annotations

import os

from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments import anchors
from mindist_paper.experiments.claims import Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.grid import (
    BASELINES,
    MINIMUM_DISTANCE,
    NNPE_NOTE,
    SHOWN_EPSILON,
    compare,
    setting,
)
from mindist_paper.experiments.profiles import EPSILONS
from mindist_paper.tasks.molecule import HSP90_VARIABLE

METHODS = (*BASELINES, *MINIMUM_DISTANCE, "oracle")
SEVERE = (0.2, 0.3, 0.4, 0.5)


def molecule() -> str:
    """Which molecule: the paper's where its coordinates are at hand, else the synthetic chain.

    The name stands in the configuration and so in the address of results; the path does not.
    """
    return "hsp90" if os.environ.get(HSP90_VARIABLE) else "synthetic"


def cells(profile: str, num_seeds: int) -> list[Cell]:
    """All methods by epsilon, with the six summaries."""
    tests = [setting("cryo_em", profile, e) for e in EPSILONS[profile]]
    return compare("cryo_em", METHODS, profile, num_seeds, tests, options={"molecule": molecule()})


CRYO_EM = Experiment(
    name="cryo-em",
    title="Cryo-electron microscopy",
    shows="all methods by epsilon: RMSE of the index, predictive MMD, coverage, sample images",
    source="Figures 5 and 6; appendix Cryo-EM Task",
    cells=cells,
    panels=[
        Panel("images", title="Images of the molecule, and noise in their place"),
        Panel("rmse"),
        Panel("predictive_mmd"),
        Panel("summary_distance_standardised"),
        Panel("coverage"),
        Panel(
            "posterior",
            title="Posteriors of four datasets, ε = 0.2",
            where={"epsilon": SHOWN_EPSILON, "seed": 0},
        ),
    ],
    notes=[
        NNPE_NOTE,
        f"The molecule is HSP90 where the environment variable {HSP90_VARIABLE} names its file, "
        "else a synthetic chain of about its size and motion, for which the published values are "
        "no anchor; the column task_options says which.",
    ],
    minutes={"smoke": 0.3, "quick": 1.5, "paper": 20},
    estimated=(),
    anchors=anchors.CRYO_EM,
    anchors_source=anchors.CRYO_EM_SOURCE,
    verdict=verdict(
        Claim("mds-rf", "npe", at=SEVERE),
        Claim("mds-rf", "nnpe", at=SEVERE),
        Claim("mds-rf", "npe-or", at=SEVERE),
    ),
)

ENTRIES = (CRYO_EM,)

__all__ = ["ENTRIES", "molecule"]
