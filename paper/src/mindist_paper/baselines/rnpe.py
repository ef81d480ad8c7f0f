r"""Robust NPE: infer the latent summary that the observed one is an error away from.

.. math:: p(\theta \mid y) = \int q_\psi(\theta \mid x)\, p(x \mid y)\, dx, \qquad
    p(x \mid y) \propto p(x)\, p(y \mid x)

with the NPE as it is, a neural spline flow for the simulated summaries' density :math:`p(x)`, and
the spike-and-slab error model. Latent summaries are sampled by Markov chains for each observed
dataset, then parameters by the NPE, one for each.

Reference: Ward et al., Robust Neural Posterior Estimation, NeurIPS 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from sbi.inference import MarginalTrainer
from torch import Tensor

from mindist import checks
from mindist.decoders.standardise import Standardiser
from mindist.posteriors.backend import Backend, Component
from mindist.posteriors.guards import quiet, seeded, warn_user
from mindist.posteriors.queries import Conditions, Queries
from mindist.posteriors.robust import MAX_DRAWS_PER_SAMPLE
from mindist.posteriors.sbi_training import HARMLESS, NoTracker
from mindist.protocols import Array
from mindist.tasks.task import Task
from mindist_paper.baselines.error_model import SpikeAndSlab
from mindist_paper.baselines.latent_mcmc import Chains, LatentPrior, sample_latents, split_r_hat
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries
from mindist_paper.baselines.npe import NeuralPosterior, train_neural_posterior

POOL = 20_000  # draws from p(x) kept for proposals
USED_DRAWS = 10  # of each chain, for `used_summary`
MAX_R_HAT = 1.1  # Gelman et al., Bayesian Data Analysis, Section 11.5


@dataclass(frozen=True)
class Latents:
    """Latent summaries of B datasets.

    Arguments:
        s: Draws `(T, C, B, d_s)`, T of each of C chains, in the units of the summaries.
        r_hat: The largest split R-hat over coordinates, `(B,)`.
    """

    s: Tensor
    r_hat: Tensor


@dataclass(frozen=True)
class LatentComponent:
    """A density averaged over latent summaries; its condition is the number of the dataset.

    Arguments:
        component: The density given one summary.
        latents: Draws `(L, B, d_s)`.
    """

    component: Component
    latents: Tensor

    @property
    def weight(self) -> float:
        """The component's share of the mixture."""
        return self.component.weight

    def draw(self, num_samples: int, index: Tensor, **options: Any) -> Tensor:
        """Draws `(num_samples, B, d_theta)`, each at a latent summary picked at random."""
        shape = (num_samples, len(index))
        rows = torch.randint(len(self.latents), shape, device=index.device)
        s = self.latents[rows, index[:, 0].long()]
        theta = self.component.draw(1, s.flatten(0, 1), **options)[0]
        return theta.reshape(*shape, -1)

    def in_support(self, theta: Tensor) -> Tensor:
        """Whether parameters `(..., d_theta)` lie in the support of the prior, `(...)`."""
        return self.component.in_support(theta)


@dataclass(frozen=True)
class LatentBackend:
    """What `Queries.sample` asks of a posterior, averaged over latent summaries."""

    backend: Backend
    latents: Tensor
    condition_shape: torch.Size = torch.Size((1,))  # noqa: RUF009

    @property
    def components(self) -> list[LatentComponent]:
        """The mixture."""
        return [LatentComponent(part, self.latents) for part in self.backend.components]

    @property
    def num_parameters(self) -> int:
        """d_theta."""
        return self.backend.num_parameters

    @property
    def device(self) -> torch.device:
        """Where the posterior computes."""
        return self.backend.device


class LatentSummaryPosterior(SummaryQueries):
    """A neural posterior, averaged over latent summaries.

    Arguments:
        npe: The posterior and its summary.
        prior: p(x) over standardised summaries.
        standardise: Of summaries.
        error_model: p(y given x).
        chains: How the Markov chains are run.
        seed: Of the chains in `used_summary`.
    """

    def __init__(
        self,
        npe: NeuralPosterior,
        prior: LatentPrior,
        standardise: Standardiser,
        error_model: SpikeAndSlab,
        *,
        chains: Chains | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(npe.posterior, npe.summary, npe.event_shape)
        self.prior, self.standardise, self.error_model = prior, standardise, error_model
        self.chains, self.seed = Chains() if chains is None else chains, seed

    def latents(self, x: Array, num_draws: int = USED_DRAWS, *, seed: int = 0) -> Latents:
        """Latent summaries of observed datasets `(B, N, *event)`, and whether chains agree."""
        batch, _ = checks.observed(x, self.event_shape)
        y = self.standardise(super()._summaries(batch).double())
        generator = torch.Generator().manual_seed(seed)
        draws = sample_latents(self.prior, self.error_model, y, num_draws, self.chains, generator)
        s = draws * self.standardise.scale + self.standardise.centre
        return Latents(s, split_r_hat(draws).amax(-1))

    def sample_batched(
        self, sample_shape: Sequence[int], x: Array, *, seed: int | None = None
    ) -> Tensor:
        """Samples `(*sample_shape, B, d_theta)` given datasets `(B, N, *event)`."""
        size = torch.Size(sample_shape).numel()
        if seed is None:
            seed = int(torch.randint(2**31, ()))
        each = max(4, -(-size // self.chains.num_chains))
        latents = self.latents(x, each, seed=seed)
        worst = float(latents.r_hat.max())
        if not worst < MAX_R_HAT:
            warn_user(
                f"The chains of latent summaries disagree: the largest R-hat is {worst:.2f}, "
                f"expected less than {MAX_R_HAT}. Run them longer: Chains(warm_up=...)."
            )
        averaged = LatentBackend(self._queries.backend, latents.s.flatten(0, 1).float())
        index = torch.arange(latents.s.shape[2], dtype=torch.float32)[:, None]
        queries = Queries(cast(Backend, averaged), MAX_DRAWS_PER_SAMPLE)
        return queries.sample(
            sample_shape, Conditions.certain(index.to(averaged.device)), seed=seed
        )

    def _summaries(self, x: Tensor) -> Tensor:
        """The mean latent summary `(B, d_s)`: the posterior is queried at draws around it."""
        s = self.latents(x, seed=self.seed).s
        return s.flatten(0, 1).mean(0).to(x.dtype)


@torch.enable_grad()
def train_marginal(
    s: Tensor,
    *,
    learning_rate: float = 5e-4,
    max_num_epochs: int = 2**31 - 1,
    batch_size: int = 200,
    stop_after_epochs: int = 20,
    seed: int | None = None,
) -> Any:
    """Train sbi's neural spline flow on the distribution of summaries `(M, d_s)`.

    Returns:
        An estimator with `log_prob(s)` of summaries `(n, d_s)` and `sample((n,))`, frozen.

    Example:
        >>> s = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> train_marginal(s, max_num_epochs=1, seed=0).log_prob(s[:3]).shape
        torch.Size([3])
    """
    with seeded(seed, s.device), quiet(*HARMLESS, stdout=True):
        trainer = MarginalTrainer(
            "nsf", device=str(s.device), tracker=NoTracker(), show_progress_bars=False
        )
        flow = trainer.append_samples(s.float()).train(
            training_batch_size=batch_size,
            learning_rate=learning_rate,
            stop_after_epochs=stop_after_epochs,
            max_num_epochs=max_num_epochs,
        )
        return flow.requires_grad_(False).eval()


def train_latent_summary_posterior(
    task: Task, simulations: Simulations, options: Options
) -> LatentSummaryPosterior:
    """Train an NPE, or take the one of the options, and the density of its summaries."""
    npe = train_neural_posterior(task, simulations, options)
    s = simulations.summaries(npe.summary, task_summary=npe.summary == task.summary)
    standardise = Standardiser.of(s)
    how = {
        key: value for key, value in vars(options.training).items() if key != "density_estimator"
    }
    flow = train_marginal(standardise(s), seed=options.seed, **how)

    def log_prob(u: Tensor) -> Tensor:
        value: Tensor = flow.log_prob(u.float())
        return value.double()

    with seeded(options.seed, s.device), torch.no_grad():
        pool = flow.sample((POOL,)).double()
        prior = LatentPrior(log_prob, pool, log_prob(pool))
    return LatentSummaryPosterior(npe, prior, standardise, options.error_model, seed=options.seed)


__all__ = ["LatentSummaryPosterior", "Latents", "train_latent_summary_posterior"]
