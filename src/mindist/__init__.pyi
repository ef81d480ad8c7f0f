from .adaptation import Search as Search
from .entrywise import Entrywise as Entrywise
from .minimum_distance import MinimumDistance as MinimumDistance
from .observed import read_observed as read_observed
from .posteriors import MisspecificationWarning as MisspecificationWarning
from .posteriors import RobustPosterior as RobustPosterior
from .posteriors import watch as watch
from .result import Adaptation as Adaptation
from .result import Completion as Completion
from .result import Detection as Detection
from .result import EntryDetection as EntryDetection
from .selftest import SelfTest as SelfTest
from .simulation.build import simulate as simulate
from .simulation.store import SimulationBank as SimulationBank

__version__: str
