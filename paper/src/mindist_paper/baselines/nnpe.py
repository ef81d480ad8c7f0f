r"""Noisy NPE: the error model becomes part of the simulator.

.. math:: \min_\psi\; \mathbb{E}\left[-\log q_\psi(\theta \mid y)\right], \qquad
    y \sim p(y \mid f(x_{1:N}))

with the spike-and-slab error model :math:`p(y \mid x)` in units of the simulated summaries'
standard deviations. Errors are drawn once for each simulation, as part of the simulator, not anew
in each epoch. At test time the posterior is queried at the observed summary as it is.

Reference: Ward et al., Robust Neural Posterior Estimation, NeurIPS 2022; appendix "Further
Experimental Details" of the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mindist.decoders.standardise import Standardiser
from mindist.posteriors.guards import quiet
from mindist.posteriors.sbi_bridge import train_npe
from mindist.tasks.task import Task
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries
from mindist_paper.baselines.npe import train_neural_posterior


class NoisyPosterior(SummaryQueries):
    """A neural posterior that was trained on noisy summaries."""


class Squash(nn.Module):
    r"""Standardised summaries on a scale that a network can take, :math:`\mathrm{asinh}(s)`.

    A slab with Cauchy tails has no standard deviation: the usual z-scoring by the noisy summaries'
    own would press all ordinary ones into a point. The map is one-to-one, so that the posterior
    given its value is the posterior given `s`.

    Arguments:
        standardise: From the simulated summaries without noise.
    """

    def __init__(self, standardise: Standardiser) -> None:
        super().__init__()
        # Constants, but sbi asks an embedding net for its first parameter.
        self.centre = nn.Parameter(standardise.centre.float(), requires_grad=False)
        self.scale = nn.Parameter(standardise.scale.float(), requires_grad=False)

    def forward(self, s: Tensor) -> Tensor:
        """Squashed summaries `(B, d_s)`."""
        return torch.asinh((s - self.centre) / self.scale)


def train_noisy_posterior(task: Task, simulations: Simulations, options: Options) -> NoisyPosterior:
    """Train an NPE on noisy summaries: the task's, or those of a jointly trained network."""
    summary = task.summary
    if options.learned_summary or options.npe is not None:
        summary = train_neural_posterior(task, simulations, options).summary
    s = simulations.summaries(summary, task_summary=summary == task.summary)
    standardise = Standardiser.of(s)
    generator = torch.Generator().manual_seed(options.seed)
    noise = options.error_model.noise(tuple(s.shape), generator).to(s.device)
    y = (s.double() + standardise.scale * noise).float()
    with quiet("Data has extreme outliers"):  # which is what the slab is for
        posterior = train_npe(
            task.prior,
            simulations.theta,
            y,
            embedding_net=Squash(standardise),
            z_score_x="none",
            seed=options.seed,
            **vars(options.training),
        )
    return NoisyPosterior(posterior, summary, task.event_shape)


__all__ = ["NoisyPosterior", "Squash", "train_noisy_posterior"]
