"""Every experiment by name."""

from __future__ import annotations

from mindist.experiments import (
    cryo_em,
    detection,
    divergence,
    gaussian,
    gaussian_sizes,
    npe_pfn,
    theory,
    time_series,
)
from mindist.experiments.experiment import Experiment

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
)
"""The paper's order: main figures, appendices, theorems."""

_MODULES = (
    gaussian,
    time_series,
    cryo_em,
    divergence,
    detection,
    gaussian_sizes,
    npe_pfn,
    theory,
)
_ENTRIES = {entry.name: entry for module in _MODULES for entry in module.ENTRIES}

EXPERIMENTS: dict[str, Experiment] = {name: _ENTRIES[name] for name in ORDER}
"""What `mindist reproduce` knows."""

__all__ = ["EXPERIMENTS"]
