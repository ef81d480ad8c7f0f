"""Adaptation: where the search starts, the search, and what it says about each dataset.

May import: torch, `mindist.solvers`, `mindist.decoders`, `mindist.features`, `mindist.detection`,
`mindist.summarise`, `mindist.checks`, `mindist.protocols`.
"""

from mindist.adaptation.block import reweighted_search
from mindist.adaptation.influence import Derivatives, Influence, Response, influence
from mindist.adaptation.noise import MAX_DATASETS, NUM_POINTS, SummaryNoise, spread
from mindist.adaptation.objective import EmbeddingDistance, ReducedHead
from mindist.adaptation.recovery import choose_representation, efficient_bandwidth
from mindist.adaptation.search import Problem, Search, View, search
from mindist.adaptation.starts import Bank, Cloud
from mindist.adaptation.weights import Observations, multiplicity
from mindist.result import Adaptation, Detection, Status

__all__ = [
    "MAX_DATASETS",
    "NUM_POINTS",
    "Adaptation",
    "Bank",
    "Cloud",
    "Derivatives",
    "Detection",
    "EmbeddingDistance",
    "Influence",
    "Observations",
    "Problem",
    "ReducedHead",
    "Response",
    "Search",
    "Status",
    "SummaryNoise",
    "View",
    "choose_representation",
    "efficient_bandwidth",
    "influence",
    "multiplicity",
    "reweighted_search",
    "search",
    "spread",
]
