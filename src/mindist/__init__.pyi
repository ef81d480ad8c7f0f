from mindist.adaptation import Adaptation as Adaptation
from mindist.adaptation import Detection as Detection
from mindist.adaptation import Search as Search
from mindist.minimum_distance import MinimumDistance as MinimumDistance
from mindist.observed import read_observed as read_observed
from mindist.posteriors import MisspecificationWarning as MisspecificationWarning
from mindist.posteriors import RobustPosterior as RobustPosterior
from mindist.posteriors import watch as watch
from mindist.simulating import SimulationBank as SimulationBank
from mindist.simulating import simulate as simulate

__version__: str
