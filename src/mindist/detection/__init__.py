"""Detection of misspecification: null distances, p-values, thresholds.

May import: torch, `mindist.checks`, `mindist.protocols`.
"""

from mindist.detection.null import NullDistances

__all__ = ["NullDistances"]
