"""Metrics: tensors in, tensors out.

May import: torch, and every layer below.
"""

from mindist.evaluation.metrics import (
    coverage,
    detection_rate,
    mean_and_standard_error,
    pooled_bandwidths,
    predictive_mmd,
    reference_mmd,
    rmse,
    summary_distance,
)

__all__ = [
    "coverage",
    "detection_rate",
    "mean_and_standard_error",
    "pooled_bandwidths",
    "predictive_mmd",
    "reference_mmd",
    "rmse",
    "summary_distance",
]
