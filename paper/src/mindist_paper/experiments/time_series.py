"""OUP and SIR: Figure 4, the appendix's figures, and the ablations on OUP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from mindist_paper.evaluation.cell import Cell
from mindist_paper.experiments import verdicts
from mindist_paper.experiments.claims import Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.grid import (
    BASELINES,
    MINIMUM_DISTANCE,
    NNPE_NOTE,
    SHOWN_EPSILON,
    bank,
    compare,
    product,
    recipe,
    setting,
)
from mindist_paper.experiments.profiles import EPSILONS, INITIALISATION_DATASETS, SEARCH_SEEDS, ends
from mindist_paper.experiments.tables import option

METHODS = (*BASELINES, *MINIMUM_DISTANCE, "oracle")
CONTAMINATED = (0.1, 0.2, 0.3, 0.4, 0.5)
FULL_EPSILONS = (0.0, 0.2, 0.5, 0.8, 1.0)
BANDWIDTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
STARTS: dict[str, list[str | list[float]]] = {
    "observed": [],
    "perturbed": ["perturbed"],
    "mean": ["mean"],
    "zero": [[0.0, 0.0, 0.0]],
    "nearest": ["nearest"],
}
"""The paper's four, the first of which is the method's own, and the nearest simulated dataset."""

FOUR = {"epsilon": SHOWN_EPSILON, "seed": 0}
CURVES = (
    Panel("rmse"),
    Panel("predictive_mmd"),
    Panel("summary_distance_standardised"),
)


def oup_cells(profile: str, num_seeds: int) -> list[Cell]:
    """All methods by epsilon, with the three fixed summaries."""
    tests = [setting("oup", profile, e) for e in EPSILONS[profile]]
    return compare("oup", METHODS, profile, num_seeds, tests)


def oup_learned_cells(profile: str, num_seeds: int) -> list[Cell]:
    """The same with a learned summary."""
    tests = [setting("oup", profile, e) for e in EPSILONS[profile]]
    methods = ("npe", *MINIMUM_DISTANCE, "oracle")
    return compare("oup", methods, profile, num_seeds, tests, learned_summary=True)


def sir_cells(profile: str, num_seeds: int) -> list[Cell]:
    """All methods by epsilon, with the six summaries."""
    tests = [setting("sir", profile, e) for e in EPSILONS[profile]]
    return compare("sir", METHODS, profile, num_seeds, tests)


def sir_full_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Up to every trajectory contaminated."""
    tests = [setting("sir", profile, e) for e in ends(profile, FULL_EPSILONS)]
    return compare("sir", METHODS, profile, num_seeds, tests)


def initialisation_cells(profile: str, num_seeds: int) -> list[Cell]:
    """MDS (RF) from each start, from ten starts, and from several perturbed ones."""
    banks = [bank("oup", profile, seed) for seed in range(num_seeds)]
    num = INITIALISATION_DATASETS[profile]
    tests = [setting("oup", profile, e, num=num) for e in EPSILONS[profile]]
    full = [
        recipe("mds-rf", "oup", profile, {"starts": starts} if starts else {})
        for starts in STARTS.values()
    ]
    full.append(recipe("mds-rf", "oup", profile, {"restarts": 9}))  # ten starts in all
    bare = [replace(t, num_samples=0, num_predictive=0, keep_samples=0) for t in tests]
    spread = [
        recipe("mds-rf", "oup", profile, {"starts": ["perturbed"], "search_seed": seed})
        for seed in range(1, 1 + SEARCH_SEEDS[profile])
    ]
    return product(banks, full, tests) + product(banks, spread, bare)


def bandwidth_cells(profile: str, num_seeds: int) -> list[Cell]:
    """Both presets at multiples of the median distance."""
    banks = [bank("oup", profile, seed) for seed in range(num_seeds)]
    tests = [setting("oup", profile, SHOWN_EPSILON)]
    chosen = [
        recipe(method, "oup", profile, {} if k == 1.0 else {"bandwidth": f"{k:g} median"})
        for method in MINIMUM_DISTANCE
        for k in ((0.5, 1.0) if profile == "smoke" else BANDWIDTHS)
    ]
    return product(banks, [*chosen, recipe("npe", "oup", profile)], tests)


def initialisation_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Each start by name; the spread over perturbed starts; one start against ten."""

    def name(starts: list[Any]) -> str:
        return next(name for name, known in STARTS.items() if known == starts)

    rows = rows.assign(
        start=option(rows, "starts", []).map(name),
        restarts=option(rows, "restarts", 0),
        search_seed=option(rows, "search_seed"),
    )
    full = rows[rows.search_seed.isna()]
    schemes = full[full.restarts == 0].assign(part="scheme")
    several = full[full.start == "observed"]
    several = several.assign(part="restarts", initialisations=1 + several.restarts)
    keys = ["epsilon", "seed", "dataset"]
    seeds = rows[rows.search_seed.notna()]
    spread = seeds.groupby(keys, as_index=False).summary_distance.std()
    spread = spread.rename(columns={"summary_distance": "spread"})
    spread = spread.assign(part="spread", method="mds-rf", start="perturbed")
    return pd.concat([schemes, several, spread], ignore_index=True)


def bandwidth_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The multiple of the median as a number; NPE, which has none, at each of them."""
    given = option(rows, "bandwidth", "1 median").map(lambda text: float(str(text).split()[0]))
    rows = rows.assign(bandwidth=given)
    npe, rest = rows[rows.method == "npe"], rows[rows.method != "npe"]
    repeated = [npe.assign(bandwidth=k) for k in sorted(rest.bandwidth.unique())]
    return pd.concat([rest, *repeated], ignore_index=True)


def over(first: str, *rest: str, at: tuple[float, ...] = CONTAMINATED) -> list[Claim]:
    """Claims that one method is below each of the others."""
    return [Claim(first, other, at=at) for other in rest]


OUP = Experiment(
    name="oup",
    title="Ornstein-Uhlenbeck process",
    shows="all methods by epsilon: RMSE, predictive MMD, distance of the summary, coverage",
    source="Figure 4 top; appendix OUP Task",
    cells=oup_cells,
    panels=[
        *(replace(panel, log=True) for panel in CURVES),
        Panel("coverage"),
        Panel("trajectories", title="Clean and contaminated trajectories of one dataset"),
        Panel("posterior", title="Posteriors of four datasets, ε = 0.2", where=FOUR),
    ],
    notes=[NNPE_NOTE, "Distances of summaries are in standard deviations of simulated ones."],
    minutes={"smoke": 0.2, "quick": 2.2, "paper": 6.2},
    estimated=(),
    verdict=verdict(*over("mds-rf", "npe", "nnpe", "npe-or")),
)

OUP_LEARNED = Experiment(
    name="oup-learned",
    title="Ornstein-Uhlenbeck process with a learned summary",
    shows="a summary network trained jointly with the NPE, then frozen",
    source="appendix OUP with Learned Neural Summary Statistic",
    cells=oup_learned_cells,
    panels=[replace(panel, log=True) for panel in CURVES],
    minutes={"smoke": 0.2, "quick": 1.3, "paper": 30},
    verdict=verdict(*over("mds-rf", "npe")),
)

SIR = Experiment(
    name="sir",
    title="SIR model with late reporting of weekends",
    shows="all methods by epsilon: RMSE, predictive MMD, distance of the summary, coverage",
    source="Figure 4 bottom; appendix SIR Task",
    cells=sir_cells,
    panels=[
        *CURVES,
        Panel("coverage"),
        Panel("trajectories", title="Clean and contaminated trajectories of one dataset"),
        Panel("posterior", title="Posteriors of four datasets, ε = 0.2", where=FOUR),
    ],
    notes=[NNPE_NOTE, "Distances of summaries are in standard deviations of simulated ones."],
    minutes={"smoke": 0.2, "quick": 1.9, "paper": 6.7},
    estimated=(),
    verdict=verdict(
        *over("mds-rf", "npe", "npe-or"), Claim("nnpe", "mds-rf", at=(0.2, 0.3, 0.4, 0.5))
    ),
)

SIR_FULL = Experiment(
    name="sir-full",
    title="SIR model up to every trajectory misreported",
    shows="epsilon up to 1: the gain over NPE keeps growing",
    source="appendix SIR under Further Misspecification",
    cells=sir_full_cells,
    panels=list(CURVES),
    notes=[NNPE_NOTE],
    minutes={"smoke": 0.2, "quick": 2.2, "paper": 15},
    verdict=verdicts.joined(
        verdict(*over("mds-rf", "npe", "npe-or", at=(0.2, 0.5, 0.8, 1.0))),
        verdicts.gain_trend("mds-rf", "npe", "epsilon", grows=True),
    ),
)

INITIALISATION = Experiment(
    name="initialisation",
    title="Where the search starts (OUP, MDS (RF))",
    shows="four starts of the paper and ours, spread over perturbed starts, one start against ten",
    source="appendix Optimization Sensitivity Ablation",
    cells=initialisation_cells,
    prepare=initialisation_rows,
    panels=[
        Panel("rmse", title="By start", where={"part": "scheme"}, series="start", log=True),
        Panel("spread", title="Spread over starts", where={"part": "spread"}, log=True),
        Panel(
            "rmse",
            title="One start against ten",
            where={"part": "restarts"},
            series="initialisations",
            log=True,
        ),
    ],
    notes=['"nearest" is the simulated dataset with the nearest embedding, not in the paper.'],
    minutes={"smoke": 0.2, "quick": 2.5, "paper": 50},
    verdict=verdicts.starts,
)

BANDWIDTH = Experiment(
    name="bandwidth",
    title="Bandwidth of the kernel (OUP, ε = 0.2)",
    shows="multiples of the median distance from 0.1 to 10",
    source="appendix MMD Kernel Bandwidth Ablation",
    cells=bandwidth_cells,
    prepare=bandwidth_rows,
    panels=[
        Panel("rmse", by="bandwidth", log=True),
        Panel("predictive_mmd", by="bandwidth", log=True),
        Panel("summary_distance_standardised", by="bandwidth", log=True),
    ],
    minutes={"smoke": 0.1, "quick": 2.6, "paper": 15},
    verdict=verdicts.median_bandwidth,
)

ENTRIES = (OUP, OUP_LEARNED, SIR, SIR_FULL, INITIALISATION, BANDWIDTH)

__all__ = ["ENTRIES"]
