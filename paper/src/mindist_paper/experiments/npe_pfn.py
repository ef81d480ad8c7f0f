"""A tabular foundation model as the posterior (its own appendix)."""

from __future__ import annotations

from mindist_paper.baselines.method import Options
from mindist_paper.baselines.npe_pfn import checkpoint_path
from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments.claims import Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.gaussian import BY_DELTA
from mindist_paper.experiments.grid import SHOWN_EPSILON, compare, setting
from mindist_paper.experiments.profiles import GAUSSIAN_EPSILONS, PFN_DATASETS, PFN_SAMPLES


def pfn_cells(profile: str, num_seeds: int) -> list[Cell]:
    """TabPFN alone and behind MDS (RF), on few datasets: a query takes a second."""
    tests = [
        setting(
            "gaussian",
            profile,
            epsilon,
            {"delta": delta},
            num=PFN_DATASETS[profile],
            num_samples=PFN_SAMPLES[profile],
            num_predictive=PFN_SAMPLES[profile],
            keep_samples=0,
        )
        for epsilon, delta in pfn_settings(profile)
    ]
    methods = ("npe-pfn", "npe-pfn-mds")
    return compare("gaussian", methods, profile, num_seeds, tests)


def pfn_settings(profile: str) -> list[tuple[float, float]]:
    """Pairs of epsilon and delta."""
    epsilons = {"smoke": (0.2,), "quick": (0.0, 0.2), "paper": GAUSSIAN_EPSILONS["paper"]}[profile]
    deltas = {"smoke": (), "quick": (5.0,), "paper": (1.0, 2.0, 4.0, 5.0)}[profile]
    return [(e, 3.0) for e in epsilons] + [(SHOWN_EPSILON, d) for d in deltas]


def no_checkpoint() -> str | None:
    """Why NPE-PFN cannot run here, if it cannot."""
    if checkpoint_path(Options()).is_file():
        return None
    return (
        "the TabPFN weights are not here. Fetch them with `make tabpfn`, or set MINDIST_TABPFN "
        "to their path."
    )


NPE_PFN = Experiment(
    name="npe-pfn",
    title="A tabular foundation model as the posterior",
    shows="MDS makes NPE-PFN robust without touching it: posterior MMD, RMSE, predictive, coverage",
    source="appendix NPE with Tabular Foundation Models",
    cells=pfn_cells,
    panels=[
        Panel("reference_mmd", where={"delta": 3.0}),
        Panel("rmse", where={"delta": 3.0}),
        Panel("predictive_mmd", where={"delta": 3.0}),
        Panel("rmse", by="delta", where=BY_DELTA),
        Panel("coverage", where={"delta": 3.0}),
    ],
    notes=["The sample mean is the summary; 1,000 simulations are the context."],
    minutes={"smoke": 0.5, "quick": 1.4, "paper": 60},
    verdict=verdict(
        Claim("npe-pfn-mds", "npe-pfn", at=(0.1, 0.2, 0.3), where={"delta": 3.0}),
        explain="npe-pfn-mds",
    ),
    unavailable=no_checkpoint,
)

ENTRIES = (NPE_PFN,)

__all__ = ["ENTRIES"]
