"""Every experiment by name."""

from mindist_paper.experiments import beyond, gaussian, theorems, time_series
from mindist_paper.experiments.experiment import Experiment

# The paper's order: main figures, appendices, theorems; then what the paper does not have.
ORDER = """
figure1 gaussian gaussian-delta oup oup-learned sir sir-full cryo-em kl kl-delta detection
sample-size dimension initialisation bandwidth npe-pfn robustness consistency
gaussian-mean unseen ablation decoders outliers
"""
_MODULES = (gaussian, time_series, theorems, beyond)
_ENTRIES = {entry.name: entry for module in _MODULES for entry in module.ENTRIES}
# What `mindist reproduce` knows
EXPERIMENTS: dict[str, Experiment] = {name: _ENTRIES[name] for name in ORDER.split()}
