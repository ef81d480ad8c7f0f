"""NPE and what has been proposed to make it robust, all queried the same way.

A method is trained by `train_method(name, task, theta, x)` and queried with raw datasets, like
`RobustPosterior`; docs/baselines.md says what each does and where it differs from the paper's text.
May import: torch, NumPy, ArviZ, `mindist.tasks` and the layers below; scikit-learn only in
`npe_or.py`. sbi is needed to import this package.
"""

from collections.abc import Iterable
from functools import partial

from torch import Tensor

from mindist import checks
from mindist.tasks import Task
from mindist_paper.baselines.mds import train_minimum_distance
from mindist_paper.baselines.method import (
    Builder,
    Method,
    Options,
    Simulations,
    SpikeAndSlab,
    Training,
)
from mindist_paper.baselines.npe import (
    NeuralPosterior,
    train_neural_posterior,
    train_noisy_posterior,
    train_pfn_posterior,
)
from mindist_paper.baselines.npe_or import train_outlier_removal
from mindist_paper.baselines.npe_rs import train_robust_statistics
from mindist_paper.baselines.rnpe import train_latent_summary_posterior

# What `train_method` knows: the paper's methods, and the package's default as "mds"
METHODS: dict[str, Builder] = {
    "npe": train_neural_posterior,
    "nnpe": train_noisy_posterior,
    "rnpe": train_latent_summary_posterior,
    "npe-or": train_outlier_removal,
    "npe-rs": train_robust_statistics,
    "mds": partial(train_minimum_distance, variant="default"),
    "mds-rf": partial(train_minimum_distance, variant="rf"),
    "mds-dec": partial(train_minimum_distance, variant="dec"),
    "mds-kl": partial(train_minimum_distance, variant="kl"),
    "npe-pfn": train_pfn_posterior,
    "npe-pfn-mds": partial(train_minimum_distance, variant="rf", train=train_pfn_posterior),
}


def train_method(
    name: str,
    task: Task,
    theta: Tensor,
    x: Tensor | Iterable[Tensor],
    options: Options | None = None,
    *,
    s: Tensor | None = None,
) -> Method:
    """Train one of the methods on simulations."""
    builder = METHODS[checks.choice(name, tuple(METHODS), "name")]
    return builder(task, Simulations(theta, x, s), Options() if options is None else options)


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
