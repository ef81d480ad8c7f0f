"""mindist: make a pretrained amortised posterior robust, after the fact, without retraining."""

from mindist.adaptation import Adaptation, Detection, Search
from mindist.minimum_distance import MinimumDistance
from mindist.observed import read_observed
from mindist.posteriors import MisspecificationWarning, RobustPosterior, watch
from mindist.simulating import SimulationBank, simulate

__all__ = ["Adaptation", "Detection", "MinimumDistance", "MisspecificationWarning",
           "RobustPosterior", "Search", "SimulationBank", "read_observed", "simulate",
           "watch"]  # fmt: skip
__version__ = "0.1.0"
