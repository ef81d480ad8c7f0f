"""Metrics: tensors in, tensors out.

May import: torch, and every layer below.
"""

from mindist.evaluation.metrics import rmse

__all__ = ["rmse"]
