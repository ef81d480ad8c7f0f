"""Every experiment by name."""

from mindist_paper.experiments import gaussian, theorems, time_series
from mindist_paper.experiments.experiment import NEW, Experiment
from mindist_paper.zoo.published import BENCHMARKS

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
# Not of tasks but of models of their own, which `mindist_paper.zoo` runs; no part of `all`
_SHOWS = {
    "zoo": "28 small models, 5 to 7 contaminations of each: the default was developed on them"
}
_SHOWS |= {name: f"published benchmark ({b.source})" for name, b in BENCHMARKS.items()}
OTHERS: dict[str, Experiment] = {
    name: Experiment(
        *(name, name, shows, NEW, (), (2, 6, 10) if name == "zoo" else (0.2, 1, 1.5)),
        estimated=("smoke", "quick", "paper"),
    )
    for name, shows in _SHOWS.items()
}
