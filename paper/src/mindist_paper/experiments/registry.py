"""Every experiment by name."""

from __future__ import annotations

from mindist_paper.experiments import (
    ablation,
    cryo_em,
    decoders,
    detection,
    divergence,
    gaussian,
    gaussian_mean,
    gaussian_sizes,
    npe_pfn,
    outliers,
    theory,
    time_series,
    unseen,
)
from mindist_paper.experiments.experiment import Experiment

ORDER = (
    "figure1",
    "gaussian",
    "gaussian-delta",
    "oup",
    "oup-learned",
    "sir",
    "sir-full",
    "cryo-em",
    "kl",
    "kl-delta",
    "detection",
    "sample-size",
    "dimension",
    "initialisation",
    "bandwidth",
    "npe-pfn",
    "robustness",
    "consistency",
    "gaussian-mean",
    "unseen",
    "ablation",
    "decoders",
    "outliers",
)
"""The paper's order: main figures, appendices, theorems; then what the paper does not have."""

_MODULES = (
    gaussian,
    time_series,
    cryo_em,
    divergence,
    detection,
    gaussian_sizes,
    npe_pfn,
    theory,
    gaussian_mean,
    unseen,
    ablation,
    decoders,
    outliers,
)
_ENTRIES = {entry.name: entry for module in _MODULES for entry in module.ENTRIES}

EXPERIMENTS: dict[str, Experiment] = {name: _ENTRIES[name] for name in ORDER}
"""What `mindist reproduce` knows."""

__all__ = ["EXPERIMENTS"]
