"""Adaptation: where the search starts, the search, and what it says about each dataset.

May import: torch, `mindist.solvers`, `mindist.decoders`, `mindist.features`, `mindist.detection`,
`mindist.checks`, `mindist.protocols`.
"""

from mindist.adaptation.result import Adaptation, Detection, Status
from mindist.adaptation.search import ReducedHead, Search, search
from mindist.adaptation.starts import Bank

__all__ = ["Adaptation", "Bank", "Detection", "ReducedHead", "Search", "Status", "search"]
