"""Detection of misspecification: null distances, p-values, several tests as one.

May import: torch, SciPy's trees, `mindist.decoders`, `mindist.features`, `mindist.checks`,
`mindist.protocols`.
"""

from mindist.detection.null import CombinedTest, NullDistances
from mindist.detection.statistics import Misfit, SummaryOutlyingness

__all__ = ["CombinedTest", "Misfit", "NullDistances", "SummaryOutlyingness"]
