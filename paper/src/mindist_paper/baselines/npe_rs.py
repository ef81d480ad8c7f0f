r"""NPE with robust statistics: a summary network that maps the observed data among simulated ones.

.. math::
    \min_{\psi, \phi}\; \mathbb{E}\left[-\log q_\psi(\theta \mid f_\phi(x_{1:N}))\right]
    + \lambda\, \mathrm{MMD}^2\left[f_\phi(x_{1:N}), f_\phi(\tilde x_{1:N})\right]

with a Gaussian kernel at the median distance of a batch (Huang et al., NeurIPS 2023, equation 7).
"""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mindist import checks
from mindist.features.kernel import mmd_squared
from mindist.posteriors.sbi_bridge import EmbeddingSummary
from mindist.tasks import Task
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries, Training
from mindist_paper.baselines.npe import NeuralPosterior, train_neural_posterior

# The penalty is worth less than .1 nat, as much as the held-out loss wanders: no early stopping,
# the step size falls to zero instead. After 40 epochs the RMSE has settled (docs/baselines.md).
EPOCHS, LEARNING_RATE = 40, 2e-3
GRADIENT_NORM = 5.0  # sbi's
Batch = tuple[Tensor, Tensor, Tensor]  # parameters, simulated datasets, observed datasets
SMALLEST = 1e-6  # bandwidth, where all summaries of a batch coincide


class RobustStatistics(SummaryQueries):
    """A neural posterior over summaries that were learned for given observed datasets."""


def train_robust_statistics(task: Task, data: Simulations, options: Options) -> RobustStatistics:
    """Train jointly with the penalty, from a jointly trained NPE: the options', or a new one."""
    if options.x_obs is None:
        what = "expected Options(x_obs=...), of shape (B, N, *event), got None"
        raise ValueError(f"x_obs: NPE-RS is trained for the observed datasets; {what}.")
    if not 0 <= options.penalty < math.inf:
        raise ValueError(f"penalty: expected lambda of at least 0, got {options.penalty}.")
    x_obs, _ = checks.observed(options.x_obs, task.event_shape, "x_obs")
    npe = train_neural_posterior(task, data, replace(options, learned_summary=True))
    summary, posterior = trainable_copy(npe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        tensors = data.theta.float(), data.datasets().float(), x_obs.float()
        estimator = posterior.posterior_estimator
        fit(summary, estimator, tensors, options.training, options.penalty)
    frozen = EmbeddingSummary(summary, torch.Size(x_obs.shape[1:]))
    return RobustStatistics(posterior, frozen, task.event_shape)


def trainable_copy(npe: NeuralPosterior) -> tuple[nn.Module, Any]:
    """Copy the network behind a learned summary and the posterior over it, ready to be trained."""
    if not isinstance(npe.summary, EmbeddingSummary):
        what = "expected an NPE of Options(learned_summary=True), got one with a fixed summary"
        raise ValueError(f"npe: NPE-RS trains the summary; {what}.")
    summary = copy.deepcopy(npe.summary.net).requires_grad_(True)
    posterior = copy.deepcopy(npe.posterior)
    posterior.posterior_estimator.requires_grad_(True)
    return summary, posterior


def penalised_loss(summary: nn.Module, estimator: Any, batch: Batch, penalty: float) -> Tensor:
    """Return the loss of a batch of parameters, simulated datasets and observed datasets."""
    theta, x, x_obs = batch
    s, s_obs = summary(x), summary(x_obs)
    nll: Tensor = estimator.loss(theta, condition=s).mean()
    if not penalty:
        return nll
    with torch.no_grad():
        bandwidth = float(nn.functional.pdist(s).median())
    return nll + penalty * mmd_squared(s, s_obs, max(bandwidth, SMALLEST))


@torch.enable_grad()
def fit(
    summary: nn.Module, estimator: Any, data: Batch, training: Training, penalty: float
) -> None:
    """Train both networks by Adam on the penalised loss; the step size falls to zero."""
    theta, x, x_obs = data
    both = nn.ModuleList([summary, estimator]).train()
    optimiser = torch.optim.Adam(both.parameters(), lr=LEARNING_RATE)
    epochs = min(EPOCHS, training.max_num_epochs)
    steps = epochs * -(-len(theta) // training.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(theta)).split(training.batch_size):
            if len(chosen) > 1:  # one summary has no median distance
                optimiser.zero_grad()
                batch = (theta[chosen], x[chosen], x_obs)
                penalised_loss(summary, estimator, batch, penalty).backward()
                nn.utils.clip_grad_norm_(both.parameters(), GRADIENT_NORM)
                optimiser.step()
            schedule.step()
    both.requires_grad_(False).eval()
