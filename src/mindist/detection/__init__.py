"""Detection of misspecification: null distances, p-values, thresholds, several tests as one.

May import: torch, SciPy's trees, `mindist.decoders`, `mindist.features`, `mindist.checks`,
`mindist.protocols`.
"""

from mindist.detection.detector import MAX_LEARNED, MAX_NULL, CombinedTest, Detector, NullDistances
from mindist.detection.statistics import ResidualStatistics, SummaryOutlyingness

__all__ = [
    "MAX_LEARNED",
    "MAX_NULL",
    "CombinedTest",
    "Detector",
    "NullDistances",
    "ResidualStatistics",
    "SummaryOutlyingness",
]
