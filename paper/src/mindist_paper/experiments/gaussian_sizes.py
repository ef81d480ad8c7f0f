"""Number and dimension of the observations (appendix Ablation Studies)."""

from __future__ import annotations

from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments import verdicts
from mindist_paper.experiments.claims import Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.grid import MINIMUM_DISTANCE, NNPE_NOTE, compare, setting
from mindist_paper.experiments.profiles import SIZES
from mindist_paper.experiments.tables import with_sizes

NUMBERS = (5, 10, 50, 100, 200, 500)
DIMENSIONS = (2, 5, 10, 50, 100)
ABLATION = ("npe", "nnpe", *MINIMUM_DISTANCE, "oracle")


def sample_size_cells(profile: str, num_seeds: int) -> list[Cell]:
    """A bank for each N; delta = 5, epsilon = .2, the sample mean."""
    tests = [setting("gaussian", profile, 0.2, {"delta": 5.0})]
    default = SIZES[profile]["gaussian"].options.get("num_obs", 100)
    cells: list[Cell] = []
    for num_obs in (5, 20) if profile == "smoke" else NUMBERS:
        options = {} if num_obs == default else {"num_obs": num_obs}
        cells += compare("gaussian", ABLATION, profile, num_seeds, tests, options=options)
    return cells


def dimension_cells(profile: str, num_seeds: int) -> list[Cell]:
    """A bank for each D; delta = 5, epsilon = .3."""
    tests = [setting("gaussian_factor", profile, 0.3, {"delta": 5.0})]
    cells: list[Cell] = []
    for dim in (2, 10) if profile == "smoke" else DIMENSIONS:
        options = {"dim": dim}
        cells += compare("gaussian_factor", ABLATION, profile, num_seeds, tests, options=options)
    return cells


SAMPLE_SIZE = Experiment(
    name="sample-size",
    title="Number of observations (δ = 5, ε = 0.2, sample mean)",
    shows="N from 5 to 500: the gain over NPE grows with N",
    source="appendix Sample Size Ablation",
    cells=sample_size_cells,
    prepare=with_sizes,
    panels=[
        Panel("rmse", by="num_obs", log=True),
        Panel("reference_mmd", by="num_obs"),
        Panel("predictive_mmd", by="num_obs", log=True),
    ],
    notes=[NNPE_NOTE, "Every N has simulations, an NPE and a decoder of its own."],
    minutes={"smoke": 0.2, "quick": 1.2, "paper": 70},
    verdict=verdicts.joined(
        verdict(Claim("mds-rf", "npe", by="num_obs"), Claim("mds-rf", "nnpe", by="num_obs")),
        verdicts.gain_trend("mds-rf", "npe", "num_obs", grows=True),
    ),
)

DIMENSION = Experiment(
    name="dimension",
    title="Dimension of the observations (factor model, δ = 5, ε = 0.3)",
    shows="D from 2 to 100 with two parameters and two summaries: the gain shrinks with D",
    source="appendix Data Dimension Ablation",
    cells=dimension_cells,
    panels=[
        Panel("rmse", by="dim"),
        Panel("reference_mmd", by="dim"),
        Panel("predictive_mmd", by="dim"),
    ],
    notes=[NNPE_NOTE, "A has orthonormal columns: nothing but the dimension changes."],
    minutes={"smoke": 0.2, "quick": 0.9, "paper": 50},
    verdict=verdicts.joined(
        verdict(Claim("mds-rf", "npe", by="dim"), Claim("mds-rf", "nnpe", by="dim")),
        verdicts.gain_trend("mds-rf", "npe", "dim", grows=False),
    ),
)

ENTRIES = (SAMPLE_SIZE, DIMENSION)

__all__ = ["ENTRIES"]
