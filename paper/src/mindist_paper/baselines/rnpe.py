r"""Robust NPE: infer the latent summary that the observed one is an error away from.

.. math:: p(\theta \mid y) = \int q_\psi(\theta \mid x)\, p(x \mid y)\, dx, \qquad
    p(x \mid y) \propto p(x)\, p(y \mid x)

with a neural spline flow for :math:`p(x)` and the spike-and-slab error model (Ward et al., NeurIPS
2022, Algorithm 1). Chains cycle through three Metropolis steps, which propose a draw from p(x),
:math:`y_j + e_j` in some coordinates, and :math:`x + \gamma (a - b)` with a, b from p(x).
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sbi.inference import MarginalTrainer
from torch import Generator, Tensor

from mindist import checks
from mindist.decoders.ridge import Standardiser
from mindist.posteriors.guards import quiet, seeded
from mindist.posteriors.queries import Conditions
from mindist.posteriors.sbi_training import HARMLESS, NoTracker
from mindist.protocols import Array
from mindist.tasks import Task
from mindist_paper.baselines.method import Options, Simulations, SpikeAndSlab, SummaryQueries
from mindist_paper.baselines.npe import NeuralPosterior, train_neural_posterior

POOL = 20_000  # draws from p(x) kept for proposals
USED_DRAWS = 10  # of each chain, for `used_summary`
MAX_R_HAT = 1.1  # Gelman et al., Bayesian Data Analysis, Section 11.5
PRIOR_STEPS = 10  # in a cycle: they cost next to nothing, their densities are known
MIN_STEP = 0.01  # of the walk, in units of the prior's spread: the spike's width


@dataclass(frozen=True)
class Chains:
    """How long to run how many chains for each dataset."""

    num_chains: int = 32  # Chains for each dataset
    warm_up: int = 50  # Cycles of all steps that are thrown away
    thin: int = 3  # Cycles for each draw that is kept


@dataclass(frozen=True)
class LatentPrior:
    """A density of latent summaries, and draws from it."""

    log_prob: Callable[[Tensor], Tensor]  # From summaries `(n, d_s)` to log-densities `(n,)`
    pool: Tensor  # Draws `(P, d_s)`, from which proposals are taken
    pool_log_prob: Tensor  # Their log-densities `(P,)`

    def pick(self, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return draws `(*shape, d_s)` from the pool and their log-densities `(*shape,)`."""
        index = torch.randint(len(self.pool), shape, generator=generator).to(self.pool.device)
        return self.pool[index], self.pool_log_prob[index]


@dataclass(frozen=True)
class _State:
    """Positions `(C, B, d_s)` with their log p(x) and log p(y given x), `(C, B)`."""

    x: Tensor
    log_p: Tensor
    log_e: Tensor


@dataclass(frozen=True)
class _Sampler:
    """The Metropolis steps of chains over p(x given y)."""

    prior: LatentPrior
    error: SpikeAndSlab
    y: Tensor
    generator: torch.Generator

    def start(self, num: int) -> _State:
        """Draw starts `(num, B)` from the pool in proportion to p(y given x)."""
        index = []
        for one in self.y:
            weights = torch.softmax(self.error.log_prob(one, self.prior.pool), 0).cpu()
            drawn = torch.multinomial(weights, num, replacement=True, generator=self.generator)
            index.append(drawn)
        place = torch.stack(index, 1).to(self.y.device)
        return self.state(self.prior.pool[place], self.prior.pool_log_prob[place])

    def state(self, x: Tensor, log_p: Tensor | None = None) -> _State:
        if log_p is None:
            log_p = self.prior.log_prob(x.flatten(0, -2)).reshape(x.shape[:-1])
        return _State(x, log_p, self.error.log_prob(self.y, x))

    def accept(self, state: _State, proposal: _State, log_ratio: Tensor) -> _State:
        uniform = torch.rand(log_ratio.shape, generator=self.generator, dtype=torch.float64)
        accept = uniform.log().to(log_ratio.device) < log_ratio
        return _State(
            torch.where(accept[..., None], proposal.x, state.x),
            torch.where(accept, proposal.log_p, state.log_p),
            torch.where(accept, proposal.log_e, state.log_e),
        )

    def prior_step(self, state: _State) -> _State:
        proposal = self.state(*self.prior.pick(tuple(state.log_p.shape), self.generator))
        return self.accept(state, proposal, proposal.log_e - state.log_e)

    def error_step(self, state: _State) -> _State:
        shape = tuple(state.x.shape)
        part = (torch.rand(shape, generator=self.generator) < 0.5).to(self.y.device)
        near = self.y + self.error.noise(shape, self.generator).to(self.y.device)
        proposal = self.state(torch.where(part, near, state.x))
        return self.accept(state, proposal, proposal.log_p - state.log_p)

    def walk_step(self, state: _State) -> _State:
        shape = tuple(state.log_p.shape)
        (a, _), (b, _) = (self.prior.pick(shape, self.generator) for _ in range(2))
        uniform = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        gamma = (math.log(MIN_STEP) * uniform.to(self.y.device)).exp()
        proposal = self.state(state.x + gamma[..., None] * (a - b))
        ratio = proposal.log_p + proposal.log_e - state.log_p - state.log_e
        return self.accept(state, proposal, ratio)


@torch.no_grad()
def sample_latents(
    prior: LatentPrior, error: SpikeAndSlab, y: Tensor, num: int, chains: Chains, source: Generator
) -> Tensor:
    """Draw from p(x given y) for a batch of observed summaries."""
    sampler = _Sampler(prior, error, y, source)
    state, kept = sampler.start(chains.num_chains), []
    for cycle in range(1, chains.warm_up + num * chains.thin + 1):
        for _ in range(PRIOR_STEPS):
            state = sampler.prior_step(state)
        state = sampler.walk_step(sampler.error_step(state))
        if cycle > chains.warm_up and (cycle - chains.warm_up) % chains.thin == 0:
            kept.append(state.x)
    return torch.stack(kept)


def split_r_hat(draws: Tensor) -> Tensor:
    r"""Return split :math:`\hat R` `(*,)` of draws `(T, C, *)`: near 1 where chains agree."""
    with warnings.catch_warnings():
        # ArviZ announces its next version, and wonders at many short chains.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "More chains", UserWarning)
        import arviz

        az: Any = arviz  # is not typed
        data = az.convert_to_dataset(draws.double().transpose(0, 1).cpu().numpy())
        return torch.as_tensor(az.rhat(data, method="split")["x"].to_numpy())


class LatentSummaryPosterior(SummaryQueries):
    """A neural posterior, averaged over latent summaries."""

    def __init__(
        self, npe: NeuralPosterior, prior: LatentPrior, standardise: Standardiser, options: Options
    ) -> None:
        super().__init__(npe.posterior, npe.summary, npe.event_shape)
        self.prior, self.standardise, self.error_model = prior, standardise, options.error_model
        self.chains, self.seed = Chains(), options.seed

    def latents(self, x: Array, num_draws: int = USED_DRAWS, *, seed: int = 0) -> Tensor:
        """Draw latent summaries `(T, C, B, d_s)` of datasets."""
        batch, _ = checks.observed(x, self.event_shape)
        y = self.standardise(super()._summaries(batch).double())
        generator = torch.Generator().manual_seed(seed)
        draws = sample_latents(self.prior, self.error_model, y, num_draws, self.chains, generator)
        return draws * self.standardise.scale + self.standardise.centre

    def sample_batched(self, shape: Sequence[int], x: Array, *, seed: int | None = None) -> Tensor:
        """Return samples `(*shape, B, d_theta)` given datasets `(B, N, *event)`."""
        size = torch.Size(shape).numel()
        if seed is None:
            seed = int(torch.randint(2**31, ()))
        each = max(4, -(-size // self.chains.num_chains))
        latents = self.latents(x, each, seed=seed)
        worst = float(split_r_hat(latents).max())
        if not worst < MAX_R_HAT:
            checks.warn_user(
                f"The chains of latent summaries disagree: the largest R-hat is {worst:.2f}, "
                f"expected less than {MAX_R_HAT}. Run them longer: Chains(warm_up=...)."
            )
        around = latents.flatten(0, 1).transpose(0, 1).to(self._queries.backend.device).float()
        every = torch.ones(len(around), dtype=torch.bool, device=around.device)
        return self._queries.sample(shape, Conditions(around[:, 0], every, around), seed=seed)

    def _summaries(self, x: Tensor) -> Tensor:
        """Return the mean latent summary `(B, d_s)`: the posterior is queried around it."""
        return self.latents(x, seed=self.seed).flatten(0, 1).mean(0).to(x.dtype)


@torch.enable_grad()
def train_marginal(s: Tensor, options: Options) -> Any:
    """Train sbi's neural spline flow on the distribution of summaries `(M, d_s)`; freeze it."""
    how = options.training
    with seeded(options.seed, s.device), quiet(*HARMLESS, stdout=True):
        own = {"tracker": NoTracker(), "show_progress_bars": False}
        trainer = MarginalTrainer("nsf", device=str(s.device), **own)
        flow = trainer.append_samples(s.float()).train(
            training_batch_size=how.batch_size,
            learning_rate=how.learning_rate,
            stop_after_epochs=how.stop_after_epochs,
            max_num_epochs=how.max_num_epochs,
        )
        return flow.requires_grad_(False).eval()


def train_latent_summary_posterior(
    task: Task, data: Simulations, options: Options
) -> LatentSummaryPosterior:
    """Train an NPE, or take the one of the options, and the density of its summaries."""
    npe = train_neural_posterior(task, data, options)
    s = data.summaries(npe.summary, task_summary=npe.summary == task.summary)
    standardise = Standardiser.of(s)
    flow = train_marginal(standardise(s), options)

    def log_prob(u: Tensor) -> Tensor:
        value: Tensor = flow.log_prob(u.float())
        return value.double()

    with seeded(options.seed, s.device), torch.no_grad():
        pool = flow.sample((POOL,)).double()
        prior = LatentPrior(log_prob, pool, log_prob(pool))
    return LatentSummaryPosterior(npe, prior, standardise, options)
