"""Every experiment by name."""

from mindist_paper.experiments import gaussian, theorems, time_series
from mindist_paper.experiments.experiment import NEW, Experiment

# The paper's order: main figures, appendices, theorems; then what the paper does not have.
ORDER = """
figure1 gaussian gaussian-delta oup oup-learned sir sir-full cryo-em kl kl-delta detection
sample-size dimension initialisation bandwidth npe-pfn robustness consistency
gaussian-mean
"""
_MODULES = (gaussian, time_series, theorems)
_ENTRIES = {entry.name: entry for module in _MODULES for entry in module.ENTRIES}
# What `mindist reproduce` knows
EXPERIMENTS: dict[str, Experiment] = {name: _ENTRIES[name] for name in ORDER.split()}
# Not of tasks but of models of its own, which `mindist_paper.zoo` runs
ZOO = Experiment(
    name="zoo",
    title="A zoo of small models",
    shows="28 small models, 5 to 7 contaminations of each: the default was developed on them",
    source=NEW,
    panels=(),
    minutes=(2, 6, 10),
    estimated=("smoke", "quick", "paper"),
)
