"""mindist: make a pretrained amortised posterior robust, after the fact, without retraining."""

from mindist.adaptation import Adaptation, Detection, Search
from mindist.minimum_distance import MinimumDistance
from mindist.observed import read_observed
from mindist.posteriors import RobustPosterior

__all__ = [
    "Adaptation",
    "Detection",
    "MinimumDistance",
    "RobustPosterior",
    "Search",
    "read_observed",
]
__version__ = "0.1.0"
