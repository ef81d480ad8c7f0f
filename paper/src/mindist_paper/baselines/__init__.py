"""NPE and what has been proposed to make it robust, one file each, all queried the same way.

A method is trained by `train_method(name, task, theta, x)` and queried with raw datasets, like
`RobustPosterior`; docs/baselines.md says what each does and where it differs from the paper's text.
May import: torch, NumPy, `mindist.tasks` and the layers below; scikit-learn only in `npe_or.py`.
sbi is needed to import this package.
"""

from mindist_paper.baselines.error_model import SpikeAndSlab
from mindist_paper.baselines.method import Method, Options, Simulations, Training
from mindist_paper.baselines.npe import NeuralPosterior
from mindist_paper.baselines.registry import METHODS, train_method

__all__ = [
    "METHODS",
    "Method",
    "NeuralPosterior",
    "Options",
    "Simulations",
    "SpikeAndSlab",
    "Training",
    "train_method",
]
