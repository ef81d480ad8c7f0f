r"""The search for the minimum-distance summary.

.. math:: s^\star = \arg\min_s \| \mu(s) - \bar z_{obs} \|_2^2 \quad \text{(equation 2)}, \qquad
    \text{or} \quad s^\star = \arg\min_s -\tfrac{1}{N} \textstyle\sum_n \log q(\tilde x_n \mid s)

for the KL variant of the appendix "Choice of Divergence". With :math:`\mu(s) = h(s) W + b` and
the thin SVD :math:`W = U \Sigma V^\top`,

.. math:: \| \mu(s) - \bar z \|^2 = \| h(s) U \Sigma - (\bar z - b) V \|^2 + \text{const} ,

so that least squares runs in as many residuals as :math:`W` has rank, exactly. A decoder in a
basis of cosines needs fewer yet, and compiled loops search (`mindist.solvers.cosine`). A term that
keeps the summary near simulated ones (`mindist.adaptation.cloud`) adds :math:`d_s` residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation.cloud import Cloud
from mindist.adaptation.result import Status
from mindist.adaptation.starts import NAMES, Bank, Start, starting_points
from mindist.protocols import Decoder, DensityDecoder
from mindist.solvers import (
    REPEATS,
    CosineLeastSquares,
    Solution,
    SolverStatus,
    adam,
    gradient_descent,
    lbfgs,
    levenberg_marquardt,
)

SOLVERS = ("levenberg-marquardt", "lbfgs", "gradient-descent", "adam")
DIVERGENCES = ("mmd", "kl")
STAY, REWEIGHT = 0.03, 6  # docs/robustness.md has the errors with other values
# Contaminated Gaussian data have a feedback of .5 (95%: .66), those with half as much noise again
# as the model .78, OUP .02 and SIR .13 (docs/robustness.md).
FEEDBACK = 0.7
ADAM_STEP = 0.05  # in standard deviations of the simulated summaries
BLOCK_BYTES = 2**27  # of Jacobians held at once


@dataclass(frozen=True)
class Search:
    """How to search for the adapted summary.

    Arguments:
        solver: `"levenberg-marquardt"` (all datasets and starts at once), `"lbfgs"` (the paper's),
            `"gradient-descent"` (Algorithm 1) or `"adam"` (the paper's for density decoders, with
            fresh draws at every step).
        starts: Any of `"cloud"`, `"observed"`, `"nearest"`, `"mean"`, `"perturbed"`, or vectors of
            length d_s.
        restarts: How many perturbed copies of the first start to search from as well.
        divergence: `"mmd"`, or `"kl"` for the maximum-likelihood variant, which needs a density
            decoder and is not robust.
        stay: Weight of the term that keeps the summary near those of simulations with similar
            embeddings, in units of the decoder's held-out error; 0 leaves it out (the paper). By
            default 0.03; 0 with Adam and with the KL divergence.
        reweight: Rounds of weighing observations by the ratio of the model's density to the data's
            own and searching again; 0 for none (the paper). By default 6; 0 with Adam and with the
            KL divergence.
        feedback: The largest feedback of weights on the summary with which they are used
            (`mindist.adaptation.response`).
        distinct: Whether copies of one observation count as one in a search with weights, where
            simulations have none and they are few (`mindist.adaptation.weights.copies`).

    Example:
        >>> Search(solver="newton")
        Traceback (most recent call last):
        ...
        ValueError: solver: expected one of 'levenberg-marquardt', 'lbfgs', ..., got 'newton'.
    """

    solver: str = "levenberg-marquardt"
    starts: tuple[Start, ...] = ("cloud",)
    restarts: int = 0
    divergence: str = "mmd"
    stay: float = -1.0
    reweight: int = -1
    feedback: float = FEEDBACK
    distinct: bool = True

    def __post_init__(self) -> None:
        checks.choice(self.solver, SOLVERS, "solver")
        checks.choice(self.divergence, DIVERGENCES, "divergence")
        given: Any = self.starts
        starts: tuple[Start, ...] = (given,) if isinstance(given, str) else tuple(given)
        if not starts or self.restarts < 0:
            raise ValueError(
                "starts: expected at least one start and restarts of at least 0, got "
                f"starts={self.starts!r}, restarts={self.restarts}."
            )
        for start in starts:
            if isinstance(start, str):
                checks.choice(start, NAMES, "starts")
        frozen = (s if isinstance(s, str) else tuple(float(v) for v in s) for s in starts)
        object.__setattr__(self, "starts", tuple(frozen))
        plain = self.divergence == "kl" or self.solver == "adam"
        if self.stay == -1:
            object.__setattr__(self, "stay", 0.0 if plain else STAY)
        if self.reweight == -1:
            object.__setattr__(self, "reweight", 0 if plain else REWEIGHT)
        if not (0 <= self.stay < float("inf") and self.reweight >= 0 and self.feedback >= 0):
            raise ValueError(
                "stay, reweight, feedback: expected numbers of at least 0, got "
                f"stay={self.stay!r}, reweight={self.reweight!r}, feedback={self.feedback!r}."
            )
        if self.divergence == "kl" and self.solver == "levenberg-marquardt":
            raise ValueError(
                "solver: the KL divergence is not a sum of squares; expected 'adam', "
                "'lbfgs' or 'gradient-descent', got 'levenberg-marquardt'."
            )

    @property
    def compiled(self) -> bool:
        """Whether compiled loops may do it, given a decoder for them."""
        return self.solver == "levenberg-marquardt"


@dataclass(frozen=True)
class ReducedHead:
    r"""The last layer of a decoder, cut to its rank: :math:`W = (U \Sigma) V^\top`.

    Arguments:
        mixing: :math:`U \Sigma`, `(H, rank)`.
        directions: :math:`V`, `(K, rank)`, orthonormal.

    Example:
        >>> W = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]]).double()
        >>> head = ReducedHead.of(W)
        >>> head.mixing.shape, torch.allclose(head.mixing @ head.directions.T, W)
        (torch.Size([2, 1]), True)
    """

    mixing: Tensor
    directions: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> ReducedHead:
        """By the thin SVD of a weight `(H, K)`."""
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = int((values > values[0] * torch.finfo(values.dtype).eps * len(left)).sum())
        return cls(left[:, :rank] * values[:rank], right[:rank].T)


class EmbeddingDistance:
    """The squared distance of a decoder's embedding from observed ones, as least squares.

    Arguments:
        decoder: The fitted decoder.
        z_bar: Observed mean embeddings `(B, K)`, float64.
        cloud: Summaries to stay near, if any.
        stay: The weight of the term that does so.
        head: The decoder's last layer cut to its rank, if it is at hand.
    """

    def __init__(
        self,
        decoder: Decoder,
        z_bar: Tensor,
        cloud: Cloud | None = None,
        stay: float = 0.0,
        head: ReducedHead | None = None,
    ) -> None:
        self.decoder, self.z_bar = decoder, z_bar
        self.cloud, self.stay = (cloud, stay) if stay else (None, 0.0)
        self._given_head = head

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank."""
        return self._given_head or ReducedHead.of(self.decoder.weight)

    @cached_property
    def target(self) -> Tensor:
        """What the reduced last layer should give, `(B, rank)`."""
        return (self.z_bar - self.decoder.bias) @ self.head.directions

    def __call__(self, s: Tensor, problem: Tensor) -> Tensor:
        """The objective `(n,)` at summaries `(n, d_s)`, differentiable by autograd."""
        distance = (self.decoder(s) - self.z_bar[problem]).square().sum(-1)
        if self.cloud is None:
            return distance
        penalty: Tensor = self.cloud.residual(s, problem).square().sum(-1)
        return distance + self.stay * penalty

    def at(self, mu: Tensor, s: Tensor) -> Tensor:
        """The objective `(B,)` at summaries `(B, d_s)` whose embeddings are known, `(B, K)`."""
        distance = (mu - self.z_bar).square().sum(-1)
        if self.cloud is None:
            return distance
        every = torch.arange(len(s), device=s.device)
        return distance + self.stay * self.cloud.residual(s, every).square().sum(-1)

    def compiled(
        self,
        cosines: CosineLeastSquares,
        candidates: Tensor,
        problem: Tensor | None = None,
        *,
        repeats: int = REPEATS,
    ) -> Solution:
        """The compiled search from the lowest of candidates `(n, S, d_s)`.

        Arguments:
            cosines: The decoder, prepared for it.
            candidates: Where to begin.
            problem: Which problem is searched, `(n,)`; by default all of them.
            repeats: As in `CosineLeastSquares.solve`.
        """
        target, cloud = self.z_bar - self.decoder.bias, self.cloud
        if problem is not None:
            target, cloud = target[problem], None if cloud is None else cloud[problem]
        return cosines.solve(
            target,
            candidates,
            None if cloud is None else cloud.centre,
            None if cloud is None else math.sqrt(self.stay) * cloud.whitener,
            repeats=repeats,
        )

    def residual(self, s: Tensor, problem: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals `(n, r)` and Jacobians `(n, r, d_s)`; r is the rank, plus d_s with a cloud."""
        h, jacobian = self.decoder.basis_and_jacobian(s)
        mixing = self.head.mixing
        r, J = h @ mixing - self.target[problem], mixing.T @ jacobian
        if self.cloud is None:
            return r, J
        root = math.sqrt(self.stay)
        offset, slope = self.cloud.residual(s, problem), self.cloud.whitener[problem]
        return torch.cat([r, root * offset], 1), torch.cat([J, root * slope], 1)


@dataclass(frozen=True)
class Found:
    """Where the search of each dataset ended.

    Arguments:
        s_star: The best summaries `(B, d_s)`, float64.
        objective_star: What was minimised, there, `(B,)`; never above `objective_obs`.
        objective_obs: The same at the observed summaries, `(B,)`.
        improved: Whether the objective fell, `(B,)`.
        code: How the solver ended, `(B,)`, a `SolverStatus`.
    """

    s_star: Tensor
    objective_star: Tensor
    objective_obs: Tensor
    improved: Tensor
    code: Tensor

    @property
    def status(self) -> tuple[Status, ...]:
        """How each search ended, for people."""
        return tuple(
            Status.KEPT_OBSERVED
            if not improved or code == SolverStatus.NONFINITE
            else Status[SolverStatus(code).name]
            for code, improved in zip(self.code.tolist(), self.improved.tolist(), strict=True)
        )

    def updated(self, index: Tensor, other: Found) -> Found:
        """The same with the datasets at `index` replaced by those of another search."""
        names = self.__dataclass_fields__
        return Found(*(getattr(self, n).index_copy(0, index, getattr(other, n)) for n in names))


def search(
    decoder: Decoder,
    options: Search,
    bank: Bank,
    *,
    x: Tensor,
    s_obs: Tensor,
    z_bar: Tensor,
    generator: torch.Generator,
    error: float = 0.0,
    head: ReducedHead | None = None,
    cosines: CosineLeastSquares | None = None,
    cloud: Cloud | None = None,
    mu_obs: Tensor | None = None,
    near: Tensor | None = None,
) -> Found:
    """Search from every start of every dataset and keep the best of each dataset.

    Arguments:
        decoder: The fitted decoder.
        options: Solver, starts and divergence.
        bank: Simulated datasets to start from.
        x: Observed datasets `(B, N, *event)`; only the KL divergence looks at them.
        s_obs: Observed summaries `(B, d_s)`.
        z_bar: Observed mean embeddings `(B, K)`.
        generator: Draws perturbations and samples of a density decoder.
        error: The decoder's mean held-out squared distance, the unit of `options.stay`.
        head: The decoder's last layer cut to its rank, if it is at hand.
        cosines: The decoder prepared for the compiled search, if it has a basis of cosines.
        cloud: The clouds of the datasets, if they are known already.
        mu_obs: The decoder's embeddings at `s_obs`, `(B, K)`, if they are known already.
        near: Where an earlier search ended, `(B, d_s)`; a start that lies higher gives way to it.

    Returns:
        For each dataset the best summary; `s_obs` where nothing better was found.
    """
    s_obs, z_bar = s_obs.double(), z_bar.double()
    stay = options.stay * max(error, 0.0)  # a perfect fit may have an error of -1e-17
    if cloud is None and (stay or "cloud" in options.starts):
        cloud = bank.cloud(z_bar)
    starts = starting_points(options.starts, options.restarts, s_obs, z_bar, bank, generator, cloud)
    num_starts = starts.shape[1]
    every = torch.arange(len(s_obs), device=s_obs.device)
    dataset = every.repeat_interleave(num_starts)
    candidates = starts.flatten(0, 1)[:, None]
    if near is not None:
        candidates = torch.cat([candidates, near[dataset, None]], dim=1)
    objective = _objective(decoder, options, x, z_bar, cloud, stay, head)
    solution = _solve(decoder, options, objective, candidates, dataset, bank, generator, cosines)
    with torch.no_grad():
        reached = solution.objective.view(-1, num_starts).nan_to_num(torch.inf)
        best = reached.argmin(1)
        if mu_obs is None or not isinstance(objective, EmbeddingDistance):
            at_start = objective(s_obs, every)
        else:
            at_start = objective.at(mu_obs, s_obs)
        improved = reached[every, best] < at_start
    row = every * num_starts + best
    s_star = torch.where(improved[:, None], solution.value[row], s_obs)
    objective_star = torch.where(improved, reached[every, best], at_start)
    return Found(s_star, objective_star, at_start, improved, solution.status[row])


def _objective(
    decoder: Decoder,
    options: Search,
    x: Tensor,
    z_bar: Tensor,
    cloud: Cloud | None,
    stay: float,
    head: ReducedHead | None,
) -> Callable[[Tensor, Tensor], Tensor]:
    if options.divergence == "mmd":
        return EmbeddingDistance(decoder, z_bar, cloud, stay, head)
    assert isinstance(decoder, DensityDecoder)
    density = decoder

    def negative_log_likelihood(s: Tensor, problem: Tensor) -> Tensor:
        return -density.log_prob(x[problem], s).mean(1)

    return negative_log_likelihood


def _solve(
    decoder: Decoder,
    options: Search,
    objective: Callable[[Tensor, Tensor], Tensor],
    candidates: Tensor,
    dataset: Tensor,
    bank: Bank,
    generator: torch.Generator,
    cosines: CosineLeastSquares | None,
) -> Solution:
    """Search from the lowest of the candidates `(n, S, d_s)` of each of n problems."""
    squares = objective if isinstance(objective, EmbeddingDistance) else None
    plain = squares is not None and options.solver == "levenberg-marquardt"
    if squares is not None and plain and cosines is not None:
        return squares.compiled(cosines, candidates, dataset)
    starts = _lowest(objective, candidates, dataset)

    def of_start(s: Tensor, problem: Tensor) -> Tensor:
        return objective(s, dataset[problem])

    if squares is not None and plain:
        size = starts.shape[1] * (len(decoder.weight) + squares.head.mixing.shape[1]) * 8
        solution = _in_blocks(squares, starts, dataset, max(1, BLOCK_BYTES // size))
    elif options.solver == "lbfgs":
        solution = lbfgs(of_start, starts)
    elif options.solver == "gradient-descent":
        solution = gradient_descent(of_start, starts)
    else:
        noisy = of_start
        if squares is not None and isinstance(decoder, DensityDecoder):
            density, target = decoder, squares.z_bar

            def noisy(s: Tensor, problem: Tensor) -> Tensor:
                return (density.resampled(s, generator) - target[dataset[problem]]).square().sum(-1)

        solution = adam(noisy, starts, step_size=ADAM_STEP * bank.scale.clamp(min=1e-12))
    with torch.no_grad():
        return replace(solution, objective=objective(solution.value, dataset))


def _lowest(
    objective: Callable[[Tensor, Tensor], Tensor], candidates: Tensor, dataset: Tensor
) -> Tensor:
    """Of the candidates `(n, S, d_s)` of each problem the one with the lowest objective."""
    if candidates.shape[1] == 1:
        return candidates[:, 0]
    with torch.no_grad():
        owner = dataset.repeat_interleave(candidates.shape[1])
        value = objective(candidates.flatten(0, 1), owner).view(candidates.shape[:2])
    return candidates[torch.arange(len(value)), value.nan_to_num(torch.inf).argmin(1)]


def _in_blocks(
    objective: EmbeddingDistance, starts: Tensor, dataset: Tensor, size: int
) -> Solution:
    """Levenberg-Marquardt over all problems, a bounded number of Jacobians at a time."""
    parts = []
    for block, owners in zip(starts.split(size), dataset.split(size), strict=True):

        def residual(s: Tensor, problem: Tensor, owners: Tensor = owners) -> tuple[Tensor, Tensor]:
            return objective.residual(s, owners[problem])

        parts.append(levenberg_marquardt(residual, block))
    joined = (torch.cat([getattr(p, f) for p in parts]) for f in Solution.__dataclass_fields__)
    return Solution(*joined)
