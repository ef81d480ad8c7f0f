"""Adaptation: sort and speak, calibrated; or search for the nearest embedding.

May import: torch, `mindist.solvers`, `mindist.decoders`, `mindist.features`, `mindist.detection`,
`mindist.summarise`, `mindist.checks`, `mindist.protocols`.
"""

from mindist.adaptation.calibration import NUM_POINTS, SummaryNoise, spread
from mindist.adaptation.search import Search, choose_representation
from mindist.result import Adaptation, Detection, Status

__all__ = [
    "NUM_POINTS",
    "Adaptation",
    "Detection",
    "Search",
    "Status",
    "SummaryNoise",
    "choose_representation",
    "spread",
]
