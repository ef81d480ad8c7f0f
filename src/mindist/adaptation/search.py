r"""The search for the minimum-distance summary.

.. math:: s^\star = \arg\min_s \| \mu(s) - \bar z_{obs} \|_2^2 \quad \text{(equation 2)}, \qquad
    \text{or} \quad s^\star = \arg\min_s -\tfrac{1}{N} \textstyle\sum_n \log q(\tilde x_n \mid s)

for the KL variant of the appendix "Choice of Divergence".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.objective import EmbeddingDistance
from mindist.adaptation.options import Search
from mindist.adaptation.starts import starting_points
from mindist.adaptation.view import View
from mindist.adaptation.weights import in_order
from mindist.protocols import DensityDecoder
from mindist.result import Status
from mindist.solvers import (
    Solution,
    SolverStatus,
    adam,
    damped_newton,
    gradient_descent,
    lbfgs,
)
from mindist.solvers.newton import Quadratic

ADAM_STEP = 0.05  # in standard deviations of the simulated summaries
BLOCK_BYTES = 2**27  # of Jacobians held at once

Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """Observed datasets, as a search sees them.

    Arguments:
        x: The datasets `(B, N, *event)`; only the KL divergence looks at them.
        s_obs: Their summaries `(B, d_s)`.
        z_bar: Their mean embeddings `(B, K)`.
        cloud: Where datasets with such embeddings have their summaries, if it is known already.
        mu_obs: The decoder's embeddings at `s_obs`, `(B, K)`, if they are known already.

    Example:
        >>> problem = Problem(torch.zeros(3, 20, 2), torch.zeros(3, 2), torch.zeros(3, 16))
        >>> problem[torch.tensor([0, 2])].s_obs.shape
        torch.Size([2, 2])
    """

    x: Tensor
    s_obs: Tensor
    z_bar: Tensor
    cloud: Cloud | None = None
    mu_obs: Tensor | None = None

    def __getitem__(self, rows: Tensor) -> Problem:
        """Select datasets; return self if all are selected, in order."""
        if in_order(rows, self.s_obs.shape[0]):
            return self
        cloud = None if self.cloud is None else self.cloud[rows]
        mu_obs = None if self.mu_obs is None else self.mu_obs[rows]
        return Problem(self.x[rows], self.s_obs[rows], self.z_bar[rows], cloud, mu_obs)

    def moved(self, rows: Tensor, z_bar: Tensor, view: View) -> Problem:
        """With other embeddings `(n, K)` of some datasets, written over theirs, and new clouds."""
        self.z_bar[rows] = z_bar
        cloud = self.cloud and self.cloud.updated(rows, view.bank.cloud(z_bar))
        return replace(self, cloud=cloud)


@dataclass(frozen=True)
class Found:
    """Where the search of each dataset ended.

    Arguments:
        s_star: The best summaries `(B, d_s)`, float64, rounded as the observed ones are.
        mu: The decoder's embeddings there, `(B, K)`, float64.
        objective_star: What was minimised, there, `(B,)`; never above `objective_obs`.
        objective_obs: The same at the observed summaries, `(B,)`.
        improved: Whether the objective fell, `(B,)`.
        code: How the solver ended, `(B,)`, a `SolverStatus`.
    """

    s_star: Tensor
    mu: Tensor
    objective_star: Tensor
    objective_obs: Tensor
    improved: Tensor
    code: Tensor

    def update(self, rows: Tensor, other: Found) -> None:
        """Overwrite some datasets by another search of theirs."""
        for part, new in zip(vars(self).values(), vars(other).values(), strict=True):
            part[rows] = new

    @property
    def status(self) -> tuple[Status, ...]:
        """How each search ended, for people."""
        return tuple(
            Status.KEPT_OBSERVED
            if not improved or code == SolverStatus.NONFINITE
            else Status[SolverStatus(code).name]
            for code, improved in zip(self.code.tolist(), self.improved.tolist(), strict=True)
        )


def search(
    view: View,
    options: Search,
    problem: Problem,
    generator: torch.Generator,
    near: Tensor | None = None,
) -> Found:
    """Search from every start of every dataset and keep the best of each dataset.

    Arguments:
        view: The decoder, and simulations to start from and to stay near.
        options: Solver, starts and divergence.
        problem: The observed datasets.
        generator: Draws perturbations and samples of a density decoder.
        near: Where an earlier search ended, `(B, d_s)`; a start that lies higher gives way to it.

    Returns:
        For each dataset the best summary; `s_obs` where nothing better was found.
    """
    s_obs, z_bar = problem.s_obs.double(), problem.z_bar.double()
    cloud = view.cloud(options, z_bar) if problem.cloud is None else problem.cloud
    starts = starting_points(
        options.starts, options.restarts, s_obs, z_bar, view.bank, generator, cloud
    )
    num_starts = starts.shape[1]
    every = torch.arange(s_obs.shape[0], device=s_obs.device)
    dataset = every.repeat_interleave(num_starts) if num_starts > 1 else every
    candidates = starts.flatten(0, 1)[:, None]
    if near is not None:
        candidates = torch.cat([candidates, near[dataset, None]], dim=1)
    objective = _objective(view, options, problem.x, z_bar, cloud)
    solution = _solve(view, options, objective, candidates, dataset, generator)
    # In the precision of the summaries: rounding may undo a tiny gain.
    value = solution.value.to(problem.s_obs.dtype).double()
    with torch.no_grad():
        mu_obs = view.decode(s_obs) if problem.mu_obs is None else problem.mu_obs
        mu = view.decode(value)
        if isinstance(objective, EmbeddingDistance):
            at_start, reached = objective.at(mu_obs, s_obs, every), objective.at(mu, value, dataset)
        else:
            at_start, reached = objective(s_obs, every), objective(value, dataset)
    row = every
    if num_starts > 1:
        best = reached.view(-1, num_starts).nan_to_num(torch.inf).argmin(1)
        row = every * num_starts + best
        value, mu, reached = value[row], mu[row], reached[row]
    improved = reached < at_start
    return Found(
        torch.where(improved[:, None], value, s_obs),
        torch.where(improved[:, None], mu, mu_obs),
        torch.where(improved, reached, at_start),
        at_start,
        improved,
        solution.status[row],
    )


def _objective(
    view: View, options: Search, x: Tensor, z_bar: Tensor, cloud: Cloud | None
) -> Objective:
    if options.divergence == "mmd":
        return view.objective(options, z_bar, cloud)
    density = view.decoder
    assert isinstance(density, DensityDecoder)

    def negative_log_likelihood(s: Tensor, problem: Tensor) -> Tensor:
        return -density.log_prob(x[problem], s).mean(1)

    return negative_log_likelihood


def _solve(
    view: View,
    options: Search,
    objective: Objective,
    candidates: Tensor,
    dataset: Tensor,
    generator: torch.Generator,
) -> Solution:
    """Search from the lowest of the candidates `(n, S, d_s)` of each of n problems.

    The objective of the result may be a noisy or a partial one.
    """
    squares = objective if isinstance(objective, EmbeddingDistance) else None
    starts = _lowest(objective, candidates, dataset)

    def of_start(s: Tensor, problem: Tensor) -> Tensor:
        return objective(s, dataset[problem])

    if squares is not None and options.least_squares:
        return _in_blocks(squares, starts, dataset)
    if options.solver == "lbfgs":
        return lbfgs(of_start, starts)
    if options.solver == "gradient-descent":
        return gradient_descent(of_start, starts)
    noisy, density = of_start, view.decoder
    if squares is not None and isinstance(density, DensityDecoder):
        target = squares.z_bar

        def noisy(s: Tensor, problem: Tensor) -> Tensor:
            return (density.resampled(s, generator) - target[dataset[problem]]).square().sum(-1)

    return adam(noisy, starts, step_size=ADAM_STEP * view.bank.scale.clamp(min=1e-12))


def _lowest(objective: Objective, candidates: Tensor, dataset: Tensor) -> Tensor:
    """Return the candidate with the lowest objective of the `(n, S, d_s)` of each problem."""
    if candidates.shape[1] == 1:
        return candidates[:, 0]
    with torch.no_grad():
        owner = dataset.repeat_interleave(candidates.shape[1])
        value = objective(candidates.flatten(0, 1), owner).view(candidates.shape[:2])
    return candidates[torch.arange(len(value)), value.nan_to_num(torch.inf).argmin(1)]


def _in_blocks(objective: EmbeddingDistance, starts: Tensor, dataset: Tensor) -> Solution:
    """Damped Newton steps over all problems, a bounded number of Jacobians at a time."""
    parts, weight = [], objective.decoder.weight
    size = max(1, BLOCK_BYTES // (starts.shape[1] * sum(weight.shape) * 8))
    for block, owners in zip(starts.split(size), dataset.split(size), strict=True):

        def model(s: Tensor, problem: Tensor, owners: Tensor = owners) -> Quadratic:
            return objective.quadratic(s, owners[problem])

        parts.append(damped_newton(model, block, tolerance=objective.tolerance))
    joined = (torch.cat([getattr(p, f) for p in parts]) for f in Solution.__dataclass_fields__)
    return Solution(*joined)


__all__ = ["Found", "Problem", "search"]
