"""Adaptation: where the search starts, the search, and what it says about each dataset.

May import: torch, `mindist.solvers`, `mindist.decoders`, `mindist.features`, `mindist.detection`,
`mindist.checks`, `mindist.protocols`.
"""

from mindist.adaptation.efficiency import choose_representation
from mindist.adaptation.influence import influence
from mindist.adaptation.result import Adaptation, Detection, Status
from mindist.adaptation.reweight import minimised, reweighted_search
from mindist.adaptation.search import ReducedHead, Search, search
from mindist.adaptation.starts import Bank
from mindist.adaptation.view import View
from mindist.adaptation.weights import Observations

__all__ = [
    "Adaptation",
    "Bank",
    "Detection",
    "Observations",
    "ReducedHead",
    "Search",
    "Status",
    "View",
    "choose_representation",
    "influence",
    "minimised",
    "reweighted_search",
    "search",
]
