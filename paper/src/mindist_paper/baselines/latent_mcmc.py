r"""Latent summaries x given observed ones y, by Markov chains over tensors.

.. math:: p(x \mid y) \propto p(x)\, p(y \mid x)

with :math:`p(x)` a density of simulated summaries and :math:`p(y \mid x)` the spike-and-slab error
model, whose indicators are summed out. A chain cycles through three Metropolis steps, each of which
leaves the target as it is; together they reach narrow spikes and broad slabs alike:

* *prior*: propose :math:`x' \sim p(x)`, accept by :math:`p(y \mid x') / p(y \mid x)`;
* *error*: propose :math:`x'_j = y_j + e_j` in a random part of the coordinates, with e from the
  error model, which is symmetric, and accept by :math:`p(x') / p(x)`;
* *walk*: propose :math:`x' = x + \gamma (a - b)` with a, b from p(x), which gives steps the shape
  of the prior, and :math:`\gamma` log-uniform between 0.01 and 1.

Chains start at draws from p(x) that are chosen in proportion to :math:`p(y \mid x)`, which is close
to the target already where the slab decides.

Reference for the walk: ter Braak, Statistics and Computing 16 (2006), differential evolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist_paper.baselines.error_model import SpikeAndSlab

PRIOR_STEPS = 10  # in a cycle: they cost next to nothing, their densities are known
MIN_STEP = 0.01  # of the walk, in units of the prior's spread: the spike's width


@dataclass(frozen=True)
class Chains:
    """How long to run how many chains for each dataset.

    Arguments:
        num_chains: Chains for each dataset.
        warm_up: Cycles of all steps that are thrown away.
        thin: Cycles for each draw that is kept.
    """

    num_chains: int = 32
    warm_up: int = 50
    thin: int = 3


@dataclass(frozen=True)
class LatentPrior:
    """A density of latent summaries, and draws from it.

    Arguments:
        log_prob: Of summaries `(n, d_s)`, `(n,)`.
        pool: Draws `(P, d_s)`, from which proposals are taken.
        pool_log_prob: Their log-densities `(P,)`.
    """

    log_prob: Callable[[Tensor], Tensor]
    pool: Tensor
    pool_log_prob: Tensor

    def pick(self, shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws `(*shape, d_s)` from the pool and their log-densities `(*shape,)`."""
        index = torch.randint(len(self.pool), shape, generator=generator).to(self.pool.device)
        return self.pool[index], self.pool_log_prob[index]

    def evaluate(self, x: Tensor) -> Tensor:
        """Log-densities `(*,)` of summaries `(*, d_s)`."""
        return self.log_prob(x.flatten(0, -2)).reshape(x.shape[:-1])


@dataclass(frozen=True)
class _State:
    """Positions `(C, B, d_s)` with their log p(x) and log p(y given x), `(C, B)`."""

    x: Tensor
    log_p: Tensor
    log_e: Tensor

    def moved(self, proposal: _State, log_ratio: Tensor, generator: torch.Generator) -> _State:
        uniform = torch.rand(log_ratio.shape, generator=generator, dtype=torch.float64)
        accept = uniform.log().to(log_ratio.device) < log_ratio
        return _State(
            torch.where(accept[..., None], proposal.x, self.x),
            torch.where(accept, proposal.log_p, self.log_p),
            torch.where(accept, proposal.log_e, self.log_e),
        )


@torch.no_grad()
def sample_latents(
    prior: LatentPrior,
    error: SpikeAndSlab,
    y: Tensor,
    num_draws: int,
    chains: Chains,
    generator: torch.Generator,
) -> Tensor:
    """Draws from p(x given y) for a batch of observed summaries.

    Arguments:
        prior: p(x), over standardised summaries.
        error: p(y given x).
        y: Observed standardised summaries `(B, d_s)`, float64.
        num_draws: Draws that each chain keeps.
        chains: How to run.
        generator: Of all proposals.

    Returns:
        Draws `(num_draws, C, B, d_s)`.
    """
    start = _starts(prior, error, y, chains.num_chains, generator)
    x, log_p = prior.pool[start], prior.pool_log_prob[start]
    state = _State(x, log_p, error.log_prob(y, x))
    kept = []
    for cycle in range(1, chains.warm_up + num_draws * chains.thin + 1):
        for _ in range(PRIOR_STEPS):
            state = _prior_step(state, prior, error, y, generator)
        state = _error_step(state, prior, error, y, generator)
        state = _walk_step(state, prior, error, y, generator)
        if cycle > chains.warm_up and (cycle - chains.warm_up) % chains.thin == 0:
            kept.append(state.x)
    return torch.stack(kept)


def _starts(
    prior: LatentPrior, error: SpikeAndSlab, y: Tensor, num: int, generator: torch.Generator
) -> Tensor:
    """Where chains start, `(num, B)` places in the pool: drawn in proportion to p(y given x)."""
    index = []
    for one in y:
        weights = torch.softmax(error.log_prob(one, prior.pool), 0).cpu()
        index.append(torch.multinomial(weights, num, replacement=True, generator=generator))
    return torch.stack(index, 1).to(y.device)


def _prior_step(
    state: _State, prior: LatentPrior, error: SpikeAndSlab, y: Tensor, generator: torch.Generator
) -> _State:
    x, log_p = prior.pick(tuple(state.log_p.shape), generator)
    proposal = _State(x, log_p, error.log_prob(y, x))
    return state.moved(proposal, proposal.log_e - state.log_e, generator)


def _error_step(
    state: _State, prior: LatentPrior, error: SpikeAndSlab, y: Tensor, generator: torch.Generator
) -> _State:
    shape = tuple(state.x.shape)
    part = (torch.rand(shape, generator=generator) < 0.5).to(y.device)
    near = y + error.noise(shape, generator).to(y.device)
    x = torch.where(part, near, state.x)
    proposal = _State(x, prior.evaluate(x), error.log_prob(y, x))
    return state.moved(proposal, proposal.log_p - state.log_p, generator)


def _walk_step(
    state: _State, prior: LatentPrior, error: SpikeAndSlab, y: Tensor, generator: torch.Generator
) -> _State:
    shape = tuple(state.log_p.shape)
    (a, _), (b, _) = prior.pick(shape, generator), prior.pick(shape, generator)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64).to(y.device)
    gamma = (math.log(MIN_STEP) * uniform).exp()
    x = state.x + gamma[..., None] * (a - b)
    proposal = _State(x, prior.evaluate(x), error.log_prob(y, x))
    ratio = proposal.log_p + proposal.log_e - state.log_p - state.log_e
    return state.moved(proposal, ratio, generator)


def split_r_hat(draws: Tensor) -> Tensor:
    r"""Split :math:`\hat R` of each quantity: near 1 where chains agree with each other.

    Arguments:
        draws: `(T, C, *)`, T draws of C chains; each chain is split in two halves.

    Returns:
        :math:`\hat R`, `(*,)`. Reference: Gelman et al., Bayesian Data Analysis, 3rd edition,
        equation 11.4. NaN with fewer than four draws.

    Example:
        >>> split_r_hat(torch.tensor([[0.0, 9.0], [1.0, 8.0], [0.0, 9.0], [1.0, 8.0]])) > 5
        tensor(True)
    """
    half = len(draws) // 2
    if half < 2:
        return torch.full(draws.shape[2:], math.nan, dtype=draws.dtype)
    halves = torch.cat([draws[:half], draws[-half:]], dim=1)
    within = halves.var(dim=0).mean(dim=0)
    between = halves.mean(dim=0).var(dim=0)
    return ((half - 1) / half + between / within).sqrt()


__all__ = ["Chains", "LatentPrior", "sample_latents", "split_r_hat"]
