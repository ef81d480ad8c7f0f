r"""Neural posterior estimation, on given summaries or with a jointly learned one.

.. math:: \min_\psi\; \mathbb{E}\left[-\log q_\psi(\theta \mid f(x_{1:N}))\right]
    \qquad\text{or}\qquad
    \min_{\psi, \phi}\; \mathbb{E}\left[-\log q_\psi(\theta \mid f_\phi(x_{1:N}))\right]

over simulations, with sbi's neural spline flow and Adam at 5e-4 (appendix "Further Experimental
Details").
"""

from __future__ import annotations

from typing import Any

from torch import nn

from mindist.posteriors.guards import seeded
from mindist.posteriors.sbi_bridge import split_embedding, train_npe
from mindist.tasks.task import Task
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries


class NeuralPosterior(SummaryQueries):
    """A neural posterior, queried at the summary of the observed data, contaminated or not.

    Its attributes `posterior` and `summary` are what the other methods build on.

    Example:
        >>> import torch
        >>> from mindist_paper.baselines import Options, Training, train_method
        >>> from mindist.tasks import GaussianTask
        >>> task, generator = GaussianTask(), torch.Generator().manual_seed(0)
        >>> theta = task.sample_prior(200, generator)
        >>> x = task.simulate(theta, generator=generator)
        >>> options = Options(training=Training(density_estimator="mdn", max_num_epochs=1))
        >>> npe = train_method("npe", task, theta, x, options)
        >>> npe.sample((5,), x[0], seed=0).shape, npe.used_summary(x[:3]).shape
        (torch.Size([5, 2]), torch.Size([3, 2]))
    """


def train_neural_posterior(
    task: Task, simulations: Simulations, options: Options
) -> NeuralPosterior:
    """Train an NPE, or take the one of the options."""
    if options.npe is not None:
        return options.npe
    how: dict[str, Any] = {**vars(options.training), "seed": options.seed}
    if options.learned_summary:
        net = summary_network(task, options.seed)
        joint = train_npe(
            task.prior, simulations.theta, simulations.datasets(), embedding_net=net, **how
        )
        summary, posterior = split_embedding(joint)
        return NeuralPosterior(posterior, summary, task.event_shape)
    s = simulations.summaries(task.summary, task_summary=True)
    posterior = train_npe(task.prior, simulations.theta, s, **how)
    return NeuralPosterior(posterior, task.summary, task.event_shape)


def summary_network(task: Task, seed: int) -> nn.Module:
    """The task's untrained summary network, with initial weights from a seed."""
    with seeded(seed):
        return task.summary_network()


__all__ = ["NeuralPosterior", "summary_network", "train_neural_posterior"]
