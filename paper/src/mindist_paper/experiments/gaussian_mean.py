"""The Gaussian task with the sample mean as its summary."""

from __future__ import annotations

from mindist_paper.evaluation.cell import Cell, Recipe
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.four_tasks import own_setting, task_cells
from mindist_paper.experiments.profiles import MEAN_EPSILONS
from mindist_paper.experiments.ratios import relative

METHODS = ("npe", "npe-or", "mds-rf", "mds", "oracle", "exact")


def cells(profile: str, num_seeds: int) -> list[Cell]:
    """All methods that need no training of their own, by epsilon."""
    tests = [own_setting("gaussian", profile, e) for e in MEAN_EPSILONS[profile]]
    return task_cells("gaussian", profile, num_seeds, [Recipe(m) for m in METHODS], tests)


GAUSSIAN_MEAN = Experiment(
    name="gaussian-mean",
    title="Gaussian task with the sample mean (δ = 3)",
    shows="the sufficient, least robust summary by epsilon: RMSE, posterior MMD, coverage",
    source="not in the paper, which learns the summary",
    cells=cells,
    panels=[
        Panel("rmse"),
        Panel("reference_mmd"),
        Panel("detected"),
        Panel("coverage_90"),
        Panel("coverage"),
    ],
    notes=[
        "The NPE is a mixture density network in every profile, of which one component has the "
        "form of the exact posterior; the exact posterior at the observed mean stands beside it "
        "to show what the network costs.",
        "All outliers lie at two points, +δ and -δ: the default counts such copies once, of which "
        "the ablation shows what it is worth.",
    ],
    minutes={"smoke": 0.1, "quick": 0.6, "paper": 4},
    verdict=relative("mds", "oracle", "npe", "npe-or", "mds-rf"),
)

ENTRIES = (GAUSSIAN_MEAN,)

__all__ = ["ENTRIES"]
