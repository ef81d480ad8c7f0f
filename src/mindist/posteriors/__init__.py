"""`RobustPosterior`, `watch`, and one bridge file for each foreign library.

`robust.py` adapts and asks (`queries.py`, `truncation.py`) through the protocol of `backend.py`.
May import: the layers below it; a bridge its library too, once one of its posteriors is wrapped.
"""

from mindist.posteriors.backend import Backend, Component
from mindist.posteriors.flow_bridge import CallablePosterior
from mindist.posteriors.guards import load_pickled_posterior
from mindist.posteriors.robust import RobustPosterior
from mindist.posteriors.watching import MisspecificationWarning, watch

__all__ = ["Backend", "CallablePosterior", "Component", "MisspecificationWarning"]
__all__ += ["RobustPosterior", "load_pickled_posterior", "watch"]
