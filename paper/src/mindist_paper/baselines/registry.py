"""Every method by name, and one way to train them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from mindist import checks
from mindist.tasks.task import Task
from mindist_paper.baselines.mds import Builder, minimum_distance_builder
from mindist_paper.baselines.method import Method, Options, Simulations
from mindist_paper.baselines.nnpe import train_noisy_posterior
from mindist_paper.baselines.npe import train_neural_posterior
from mindist_paper.baselines.npe_or import train_outlier_removal
from mindist_paper.baselines.npe_pfn import train_pfn_minimum_distance, train_pfn_posterior
from mindist_paper.baselines.npe_rs import train_robust_statistics
from mindist_paper.baselines.rnpe import train_latent_summary_posterior

METHODS: dict[str, Builder] = {
    "npe": train_neural_posterior,
    "nnpe": train_noisy_posterior,
    "rnpe": train_latent_summary_posterior,
    "npe-or": train_outlier_removal,
    "npe-rs": train_robust_statistics,
    "mds": minimum_distance_builder("default"),
    "mds-rf": minimum_distance_builder("rf"),
    "mds-dec": minimum_distance_builder("dec"),
    "mds-kl": minimum_distance_builder("kl"),
    "npe-pfn": train_pfn_posterior,
    "npe-pfn-mds": train_pfn_minimum_distance,
}
"""What `train_method` knows: the paper's methods, and the package's default as "mds"."""


def train_method(
    name: str,
    task: Task,
    theta: Tensor,
    x: Tensor | Iterable[Tensor],
    options: Options | None = None,
    *,
    s: Tensor | None = None,
) -> Method:
    """Train one of the methods on simulations.

    Arguments:
        name: One of `METHODS`.
        task: Whose prior, summary and event shape are used.
        theta: Parameters `(M, d_theta)`.
        x: Simulated datasets `(M, N, *event)`, or a list-like of chunks of them.
        options: What differs from the paper's choices.
        s: The task's summaries `(M, d_s)`, if they are known already.

    Returns:
        A method to be queried with raw datasets.

    Example:
        >>> from mindist.tasks import GaussianTask
        >>> train_method("abc", GaussianTask(), theta=None, x=None)
        Traceback (most recent call last):
            ...
        ValueError: name: expected one of 'npe', 'nnpe', 'rnpe', 'npe-or', ..., got 'abc'.
    """
    builder = METHODS[checks.choice(name, tuple(METHODS), "name")]
    return builder(task, Simulations(theta, x, s), Options() if options is None else options)


__all__ = ["METHODS", "train_method"]
