"""Adaptation: sort and speak, calibrated; or search for the nearest embedding.

May import: torch, `mindist.solvers`, `mindist.decoders`, `mindist.features`, `mindist.detection`,
`mindist.summarise`, `mindist.checks`, `mindist.protocols`.
"""

from mindist.adaptation.calibration import Calibration
from mindist.adaptation.influence import Derivatives, influence
from mindist.adaptation.noise import MAX_DATASETS, NUM_POINTS, SummaryNoise, spread
from mindist.adaptation.objective import EmbeddingDistance, ReducedHead
from mindist.adaptation.procedure import Procedure
from mindist.adaptation.recovery import choose_representation
from mindist.adaptation.search import Problem, Search, View, search
from mindist.adaptation.sorting import Sorter
from mindist.adaptation.speaking import FixedPoints, Speaker
from mindist.adaptation.starts import Bank, Cloud
from mindist.result import Adaptation, Detection, Status

__all__ = [
    "MAX_DATASETS",
    "NUM_POINTS",
    "Adaptation",
    "Bank",
    "Calibration",
    "Cloud",
    "Derivatives",
    "Detection",
    "EmbeddingDistance",
    "FixedPoints",
    "Problem",
    "Procedure",
    "ReducedHead",
    "Search",
    "Sorter",
    "Speaker",
    "Status",
    "SummaryNoise",
    "View",
    "choose_representation",
    "influence",
    "search",
    "spread",
]
