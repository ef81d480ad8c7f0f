r"""The search for the minimum-distance summary: its options, what it sees, and what it finds.

.. math:: s^\star = \arg\min_s \| \mu(s) - \bar z_{obs} \|_2^2 \quad \text{(equation 2)}, \qquad
    \text{or} \quad s^\star = \arg\min_s -\tfrac{1}{N} \textstyle\sum_n \log q(\tilde x_n \mid s)

for the KL variant of the appendix "Choice of Divergence".

**As least squares**, with the term that keeps a summary near simulated ones
(`mindist.adaptation.starts`) as :math:`d_s` residuals more: with :math:`\mu(s) = h(s) W + b` and
the thin SVD :math:`W = U \Sigma V^\top`,

.. math:: \| \mu(s) - \bar z \|^2 = \| h(s) U \Sigma - (\bar z - b) V \|^2 + \text{const} ,

so that least squares runs in as many residuals as :math:`W` has rank, exactly.

**Recovery.** For simulations that the decoder has not seen, the search should end at their own
summaries. What it misses,

.. math:: e_j = \mathbb{E}\, (s^\star_j - s_j)^2 , \qquad \frac1{d_s} \sum_j \log e_j

(the mean without its largest 2%), is the price of going through the embedding, in any units.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation.starts import NAMES, Bank, Cloud, Start, starting_points
from mindist.decoders import RidgeDecoder
from mindist.features.embedding import Embedding
from mindist.features.kernel import FourierFeatures, choose_bandwidth
from mindist.features.representation import candidates, make_representation
from mindist.protocols import Decoder, DensityDecoder
from mindist.result import Status
from mindist.schema import moved
from mindist.solvers import (
    Solution,
    SolverStatus,
    adam,
    damped_newton,
    gauss_newton,
    gradient_descent,
    lbfgs,
)
from mindist.solvers.newton import Model

TOLERANCE = 1e-13  # the largest share of the objective that a last step may be predicted to gain


@dataclass(frozen=True)
class ReducedHead:
    r"""The last layer of a decoder, cut to its rank: :math:`W = (U \Sigma) V^\top`."""

    mixing: Tensor  # :math:`U \Sigma`, `(H, rank)`
    directions: Tensor  # :math:`V`, `(K, rank)`, orthonormal

    @classmethod
    def of(cls, weight: Tensor) -> "ReducedHead":
        """By the thin SVD of a weight `(H, K)`."""
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = int((values > values[0] * torch.finfo(values.dtype).eps * len(left)).sum())
        return cls(left[:, :rank] * values[:rank], right[:rank].T)


@dataclass
class EmbeddingDistance:
    """The squared distance of a decoder's embedding from observed ones, as least squares."""

    decoder: Decoder  # the fitted decoder
    z_bar: Tensor  # observed mean embeddings `(B, K)`, float64
    cloud: Cloud | None = None  # summaries to stay near, if any
    stay: float = 0.0  # the weight of the term that does so

    def __post_init__(self) -> None:
        self.cloud = self.cloud if self.stay else None

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank."""
        return ReducedHead.of(self.decoder.weight)

    @cached_property
    def target(self) -> Tensor:
        """The embeddings less the bias in the directions of the reduced head, `(B, rank)`."""
        return (self.z_bar - self.decoder.bias) @ self.head.directions

    def __call__(self, s: Tensor, problem: Tensor) -> Tensor:
        """Return the objective `(n,)` at summaries `(n, d_s)`, differentiable by autograd."""
        distance = (self.decoder(s) - self.z_bar[problem]).square().sum(-1)
        if self.cloud is None:
            return distance
        penalty: Tensor = self.cloud.residual(s, problem).square().sum(-1)
        return distance + self.stay * penalty

    def model(self, owner: Tensor) -> Model:
        """Return the objective with its model of Gauss and Newton, for `damped_newton`.

        Problem i is that of dataset `owner[i]`.
        """
        return lambda s, problem: gauss_newton(*self.residual(s, owner[problem]))

    def residual(self, s: Tensor, problem: Tensor) -> tuple[Tensor, Tensor]:
        """Residuals `(n, r)` and Jacobians `(n, r, d_s)`; r is the rank, plus d_s with a cloud."""
        h, slope = self.decoder.basis_and_jacobian(s)
        mixing = self.head.mixing
        # One product of all rows is faster than n products.
        J = (slope.mT.flatten(0, 1) @ mixing).view(*slope.mT.shape[:2], -1).mT
        r = h @ mixing - self.target[problem]
        if self.cloud is None:
            return r, J
        root = math.sqrt(self.stay)
        offset, slope = self.cloud.residual(s, problem), self.cloud.whitener[problem]
        return torch.cat([r, root * offset], 1), torch.cat([J, root * slope], 1)


SOLVERS = ("levenberg-marquardt", "lbfgs", "gradient-descent", "adam")
DIVERGENCES = ("mmd", "kl")
STAY = 0.03  # docs/robustness.md has the errors with other values
MOST = 10_000  # starts, restarts: more would not come to an end


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

    def __post_init__(self) -> None:
        checks.choice(self.solver, SOLVERS, "solver")
        checks.choice(self.divergence, DIVERGENCES, "divergence")
        values = {
            "stay": checks.number(self.stay, "stay", "a number of at least 0"),
            "restarts": checks.integer(self.restarts, "restarts"),
            "starts": _frozen(self.starts),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not 0 < len(self.starts) <= MOST or not 0 <= self.restarts <= MOST:
            raise ValueError(
                f"starts, restarts: expected 1 to {MOST:,} starts and 0 to {MOST:,} restarts, got "
                f"{len(self.starts):,} starts and restarts={self.restarts}."
            )
        plain = self.divergence == "kl" or self.solver == "adam"
        if self.stay == -1:
            object.__setattr__(self, "stay", 0.0 if plain else STAY)
        if not 0 <= self.stay < float("inf"):
            raise checks.wrong("stay", "a finite number of at least 0", repr(self.stay))
        if self.divergence == "kl" and self.solver == "levenberg-marquardt":
            raise ValueError(
                "solver: the KL divergence is not a sum of squares; expected 'adam', "
                "'lbfgs' or 'gradient-descent', got 'levenberg-marquardt'."
            )


def _frozen(starts: Any) -> tuple[Start, ...]:
    """Return names and vectors, as tuples."""
    try:
        given = [starts] if isinstance(starts, str) else list(starts)
        found = [start if isinstance(start, str) else tuple(start) for start in given]
    except TypeError:
        said = f"names out of {', '.join(NAMES)}, or vectors of length d_s"
        raise checks.wrong("starts", said, repr(starts), kind=TypeError) from None
    numbers = "names or vectors of numbers, one for each summary"
    return tuple(
        checks.choice(start, NAMES, "starts")
        if isinstance(start, str)
        else tuple(checks.number(value, "starts", numbers) for value in start)
        for start in found
    )


@dataclass(frozen=True)
class View:
    """Decoder, bank and error, learned from simulations through one kernel."""

    decoder: Decoder  # from a summary to the mean embedding of its datasets
    bank: Bank  # simulated summaries and embeddings, to start from and to stay near
    error: float  # mean squared distance of simulations that the decoder has not seen

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer, cut to its rank."""
        return ReducedHead.of(self.decoder.weight)

    @torch.no_grad()
    def decode(self, s: Tensor) -> Tensor:
        """Return the mean embeddings `(B, K)` of summaries `(B, d_s)`, float64."""
        return self.decoder(s.double())

    def objective(self, options: Search, z_bar: Tensor, cloud: Cloud) -> EmbeddingDistance:
        """Return the objective of a search for embeddings `(B, K)` with these clouds."""
        stay = options.stay * max(self.error, 0.0)  # a perfect fit may have an error of -1e-17
        objective = EmbeddingDistance(self.decoder, z_bar, cloud, stay)
        objective.head = self.head
        return objective


ADAM_STEP = 0.05  # in standard deviations of the simulated summaries
BLOCK_BYTES = 2**27  # of Jacobians held at once

Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """Observed datasets, as a search sees them."""

    x: Tensor  # the datasets `(B, N, *event)`; only the KL divergence looks at them
    s_obs: Tensor  # their summaries `(B, d_s)`
    z_bar: Tensor  # their mean embeddings `(B, K)`
    # where datasets with such embeddings have their summaries, if it is known already
    cloud: Cloud | None = None


@dataclass(frozen=True)
class Found:
    """Hold where the search of each dataset ended."""

    s_star: Tensor  # the best summaries `(B, d_s)`, float64, rounded as the observed ones are
    objective_star: Tensor  # what was minimised, there, `(B,)`; never above `objective_obs`
    objective_obs: Tensor  # the same at the observed summaries, `(B,)`
    improved: Tensor  # whether the objective fell, `(B,)`
    code: Tensor  # how the solver ended, `(B,)`, a `SolverStatus`

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
    tolerance: float = TOLERANCE,
) -> Found:
    """Search from every start of every dataset; return the best of each, or `s_obs`.

    The generator draws perturbations and samples of a density decoder; the tolerance is that of
    least squares.
    """
    s_obs, z_bar = problem.s_obs.double(), problem.z_bar.double()
    cloud = view.bank.cloud(z_bar) if problem.cloud is None else problem.cloud
    start = options.starts, options.restarts
    starts = starting_points(*start, s_obs, z_bar, view.bank, generator, cloud)
    num_starts = starts.shape[1]
    every = torch.arange(s_obs.shape[0], device=s_obs.device)
    dataset = every.repeat_interleave(num_starts)
    objective = _objective(view, options, problem.x, z_bar, cloud)
    how = starts.flatten(0, 1), dataset, generator, tolerance
    solution = _solve(view, options, objective, *how)
    # In the precision of the summaries: rounding may undo a tiny gain.
    value = solution.value.to(problem.s_obs.dtype).double()
    with torch.no_grad():
        at_start, reached = objective(s_obs, every), objective(value, dataset)
    best = reached.view(-1, num_starts).nan_to_num(torch.inf).argmin(1)
    row = every * num_starts + best
    improved = reached[row] < at_start
    return Found(
        torch.where(improved[:, None], value[row], s_obs),
        torch.where(improved, reached[row], at_start),
        at_start,
        improved,
        solution.status[row],
    )


def _objective(view: View, options: Search, x: Tensor, z_bar: Tensor, cloud: Cloud) -> Objective:
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
    starts: Tensor,
    dataset: Tensor,
    generator: torch.Generator,
    tolerance: float,
) -> Solution:
    """Search from a start `(n, d_s)` for each of n problems.

    The objective of the result may be a noisy or a partial one.
    """
    squares = objective if isinstance(objective, EmbeddingDistance) else None

    def of_start(s: Tensor, problem: Tensor) -> Tensor:
        return objective(s, dataset[problem])

    if squares is not None and options.solver == "levenberg-marquardt":
        return _in_blocks(squares, starts, dataset, tolerance)
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


def _in_blocks(
    objective: EmbeddingDistance, starts: Tensor, dataset: Tensor, tolerance: float
) -> Solution:
    """Damped Newton steps over all problems, a bounded number of Jacobians at a time."""
    parts, weight = [], objective.decoder.weight
    size = max(1, BLOCK_BYTES // (starts.shape[1] * sum(weight.shape) * 8))
    for block, owner in zip(starts.split(size), dataset.split(size), strict=True):
        parts.append(damped_newton(objective.model(owner), block, tolerance=tolerance))
    joined = (torch.cat([getattr(p, f) for p in parts]) for f in Solution.__dataclass_fields__)
    return Solution(*joined)


HELD_OUT = 0.25
NUM_FEATURES = 256
NUM_BASIS = 200
TRIMMED = 0.02  # of the held-out datasets
MARGIN = 0.5  # of mean log squared errors: by less, errors of 1,000 simulations may differ by luck


def recovery_error(embedding: Embedding, x: Tensor, s: Tensor, generator: torch.Generator) -> float:
    """Return the mean over summaries of the log mean squared error of finding them again.

    A decoder learns from three quarters of the simulations; the rest are searched for unaided.
    """
    order = torch.randperm(len(s), generator=generator).to(s.device)
    z_bar, s = embedding.mean(x)[order], s[order].double()
    num = max(1, round(HELD_OUT * len(s)))
    decoder = RidgeDecoder(NUM_BASIS).fit(s[num:], z_bar[num:], generator=generator)
    view = View(decoder, Bank.of(s[num:], z_bar[num:], generator), decoder.held_out_error)
    no_hint = s.mean(0).expand_as(s[:num])
    # In the place of the datasets, which the squared distance does not look at, the summaries.
    found = search(view, Search(), Problem(s[:num], no_hint, z_bar[:num]), generator)
    variance = s.var(0)
    varies = variance > 0
    squared = (found.s_star - s[:num]).square()[:, varies] / variance[varies]
    # A single dataset at the edge of the simulations would decide a plain mean.
    kept = squared.sort(0).values[: max(1, round((1 - TRIMMED) * len(squared)))]
    return float(kept.mean(0).clamp(min=1e-30).log().mean())


def choose_representation(
    x: Tensor, s: Tensor, bandwidth: float | str, generator: torch.Generator | None = None
) -> str:
    """The representation that suits the shape of observations, unless another is clearly better.

    Better means that simulated summaries are found again with less error, `recovery_error`.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        s: Their summaries `(M, d_s)`.
        bandwidth: The rule for the bandwidth, which is applied to each representation.
        generator: Draws features; by default from a fixed seed.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> centre = torch.randn(300, 1, 2, generator=generator)
        >>> x = centre + torch.randn(300, 20, 2, generator=generator)
        >>> choose_representation(x, x.mean(1), "median")
        'identity'
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    names = candidates(tuple(x.shape[2:]))
    if len(names) == 1:
        return names[0]
    if not isinstance(bandwidth, str):
        return "identity"  # a number is in the units of the data
    errors = {}
    for name in names:
        representation = make_representation(name, x)
        seen = representation(x)
        errors[name] = math.inf
        try:
            sigma = choose_bandwidth(bandwidth, seen, torch.Generator().manual_seed(0))
        except ValueError:  # most represented observations are equal
            continue
        features = FourierFeatures.draw(
            tuple(seen.shape[2:]),
            NUM_FEATURES,
            bandwidth=sigma,
            generator=torch.Generator().manual_seed(0),
        )
        features = features if x.is_cpu else moved(features, x.device)
        embedding = Embedding(features, representation)
        errors[name] = recovery_error(embedding, x, s, generator)
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < errors[names[0]] - MARGIN else names[0]
