"""mindist: make a pretrained amortised posterior robust, after the fact, without retraining."""

from mindist.adaptation import Adaptation, Detection, Search
from mindist.minimum_distance import MinimumDistance
from mindist.observed import read_observed
from mindist.posteriors import RobustPosterior
from mindist.simulating import simulate
from mindist.simulation.bank import SimulationBank

__all__ = [
    "Adaptation",
    "Detection",
    "MinimumDistance",
    "RobustPosterior",
    "Search",
    "SimulationBank",
    "read_observed",
    "simulate",
]
__version__ = "0.1.0"
