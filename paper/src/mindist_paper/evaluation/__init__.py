"""Metrics, tensors in, tensors out; and the runner, cells in, tidy rows out.

May import: torch, pandas, joblib, and every layer below.
"""

from mindist_paper.evaluation.metrics import (
    coverage,
    pooled_bandwidths,
    predictive_mmd,
    reference_mmd,
    rmse,
    roc_auc,
    summary_distance,
)

__all__ = [
    "coverage",
    "pooled_bandwidths",
    "predictive_mmd",
    "reference_mmd",
    "rmse",
    "roc_auc",
    "summary_distance",
]
