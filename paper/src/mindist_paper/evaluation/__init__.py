"""Metrics, tensors in, tensors out; and the runner, cells in, tidy rows out.

The runner's modules (`store`, `bank`, `trained`, `measure`, `runner`) need `mindist[reproduce]`, so
they are imported by their own names. May import: torch, pandas, PyArrow and joblib in these modules
only, and every layer below.
"""

from mindist_paper.evaluation.metrics import (
    coverage,
    detection_rate,
    mean_and_standard_error,
    pooled_bandwidths,
    predictive_mmd,
    reference_mmd,
    rmse,
    roc_auc,
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
    "roc_auc",
    "summary_distance",
]
