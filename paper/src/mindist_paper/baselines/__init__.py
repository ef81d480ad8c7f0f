"""NPE and what was proposed to make it robust, queried in one way (docs/baselines.md)."""

from collections.abc import Iterable
from functools import partial

from torch import Tensor

from mindist import checks
from mindist.tasks import Task
from mindist_paper.baselines import npe
from mindist_paper.baselines.mds import train_minimum_distance
from mindist_paper.baselines.method import Builder, Method, Options, Simulations, Training
from mindist_paper.baselines.npe_or import train_outlier_removal
from mindist_paper.baselines.npe_rs import train_robust_statistics

# What `train_method` knows: the paper's methods, and the package's default as "mds"
METHODS: dict[str, Builder] = {
    "npe": npe.train_neural_posterior,
    "nnpe": npe.train_noisy_posterior,
    "npe-or": train_outlier_removal,
    "npe-rs": train_robust_statistics,
    "mds": partial(train_minimum_distance, variant="default"),
    "mds-rf": partial(train_minimum_distance, variant="rf"),
    "mds-dec": partial(train_minimum_distance, variant="dec"),
    "mds-kl": partial(train_minimum_distance, variant="kl"),
    "npe-pfn": npe.train_pfn_posterior,
    "npe-pfn-mds": partial(train_minimum_distance, variant="rf", train=npe.train_pfn_posterior),
}


def train_method(
    name: str,
    task: Task,
    theta: Tensor,
    x: Tensor | Iterable[Tensor],
    options: Options | None = None,
) -> Method:
    """Train one of the methods on simulations."""
    builder = METHODS[checks.choice(name, tuple(METHODS), "name")]
    return builder(task, Simulations(theta, x), Options() if options is None else options)


__all__ = ["METHODS", "Method", "Options", "Training", "train_method"]
