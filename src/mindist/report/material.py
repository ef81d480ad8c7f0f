"""Compute the contents of a report: samples, data replicated from them, the parts of the test."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.queries import Conditions
from mindist.posteriors.robust import RobustPosterior
from mindist.posteriors.truncation import Budget
from mindist.protocols import Array
from mindist.report.style import numbered
from mindist.result import Adaptation
from mindist.schema import moved
from mindist.simulation.calls import NAN, predict_data

PATIENCE = 60.0  # seconds for the samples of one posterior
REPLICATIONS = 200
MAX_BYTES = 2**28  # of replicated data
NOTHING = torch.empty(0)


@dataclass(frozen=True)
class Draws:  # samples of one posterior, and data simulated from them if there is a simulator
    theta: Tensor  # `(n, d_theta)`; n may be less than was asked for, or 0
    said: tuple[str, ...] = ()  # warnings meanwhile
    replicated: Tensor = NOTHING  # `(n, N, *event)`
    asked: int = 0  # for so many datasets
    error: str = ""  # what the first failure said
    summaries: Tensor = NOTHING  # of the replicated data, `(n, d_s)`
    fit: float | None = None  # share that differ from another one by as much as the data do
    fit_weighted: float | None = None  # the same of the data as weighted by the adaptation


@dataclass(frozen=True)
class Material:
    result: Adaptation  # of one dataset, on the CPU
    x: Tensor  # `(N, *event)`
    mds: MinimumDistance
    summary_names: Sequence[str]
    theta_names: Sequence[str]  # none without a posterior
    tests: Mapping[str, float]  # p-value of each statistic of the test
    draws: Mapping[str, Draws]  # "before" at the observed summary, "after" at the adapted one

    @property
    def adapted(self) -> bool:
        return bool(self.result.adapted)

    @property
    def null_size(self) -> int:
        """Return how many simulated datasets the p-value is calibrated on."""
        fitted = self.mds.fitted_
        return len(fitted.procedure.test.null if fitted.procedure else fitted.null.noise)

    @property
    def scale(self) -> Tensor:
        """Return the standard deviations of simulated summaries `(d_s,)`; 1 where all are equal."""
        scale = self.mds.fitted_.bank.scale.cpu()
        return torch.where(scale > 0, scale, 1.0)

    @property
    def shift(self) -> Tensor:
        """Return how far the summary moved, in standard deviations of simulated ones, `(d_s,)`."""
        return (self.result.s_star - self.result.s_obs).double() / self.scale

    @property
    def moved_most(self) -> int:
        return int(self.shift.abs().argmax())


def one_dataset(result: Adaptation, x: Array, mds: MinimumDistance) -> tuple[Adaptation, Tensor]:
    """Return adaptation and data of one dataset, or of a batch of one; raise if they disagree."""
    if not isinstance(result, Adaptation):
        raise TypeError(
            f"result: expected an Adaptation, got {type(result).__name__}. Make one with "
            "mds.adapt(x_obs)."
        )
    batch, _ = checks.observed(x, mds.event_shape)
    if (result.batched and len(result) != 1) or len(batch) != 1:
        num = len(result) if result.batched else 1
        then = "For the first of a batch pass result[0] and x[0]."
        got = f"results of {num} and data of {len(batch)}"
        raise checks.wrong("result, x", "one dataset", got, then)
    one = result[0] if result.batched else result
    x_obs = batch[0].to(mds.fitted_.probe.dtype)
    own = mds.fitted_.summarise(x_obs[None].to(mds.device))[0].cpu()
    if len(one.weights) != len(x_obs) or not checks.agree(own, one.s_obs.cpu()):
        got = f"one of {len(one.weights)} observations whose summary is not that of x"
        then = f"x has {len(x_obs)} observations. Pass mds.adapt(x)."
        raise checks.wrong("result, x", "the adaptation of this dataset", got, then)
    return moved(one, torch.device("cpu")), x_obs.cpu()


def gather(
    result: Adaptation,
    x: Tensor,
    mds: MinimumDistance,
    posterior: RobustPosterior | None,
    simulator: Callable[..., Any] | None,
    *,
    num: int,
    seed: int,
    names: Mapping[str, Sequence[str] | None],
) -> Material:
    """Compute what takes time: tests, samples, replicated data."""
    summaries = names_of(names["summary_names"], len(result.s_obs), "s", "summary_names")
    given = mds.fitted_.p_values(x[None].to(mds.device))
    tests = {name: float(p[0]) for name, p in given.items()}
    if posterior is None:
        return Material(result, x, mds, summaries, [], tests, {})
    backend = posterior.queries.backend
    parameters = names_of(names["theta_names"], backend.num_parameters, "θ", "theta_names")
    s_obs = result.s_obs[None].to(backend.device, torch.float32)
    asked = {"before": Conditions.certain(s_obs)}
    if result.adapted:
        asked["after"] = posterior.conditions_of(moved(result, mds.device))
    draws = {}
    for name, conditions in asked.items():
        budget = Budget(posterior.queries.max_draws, max_seconds=PATIENCE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            theta = posterior.queries.sample((num,), conditions, budget, seed=seed)
        theta = theta.squeeze(-2).detach().cpu()
        said = tuple(dict.fromkeys(str(warning.message) for warning in caught))
        draws[name] = Draws(theta[theta.isfinite().all(1)], said)
        if simulator is not None and len(draws[name].theta):
            draws[name] = predict(draws[name], simulator, x, result.weights, mds, seed)
    return Material(result, x, mds, summaries, parameters, tests, draws)


def predict(
    drawn: Draws, simulator: Callable[..., Any], x: Tensor, weights: Tensor, mds: Any, seed: int
) -> Draws:
    theta = drawn.theta[: min(REPLICATIONS, max(1, MAX_BYTES // (4 * x.numel())))]
    made, error = predict_data(simulator, theta, tuple(x.shape), seed)
    finite = made.flatten(1).isfinite().all(1)
    error = error or ("" if finite.all() else NAN.error)
    drawn = replace(drawn, replicated=made[finite], asked=len(theta), error=error)
    if len(made[finite]) < 2:
        return drawn
    fitted = mds.fitted_
    seen = made[finite].to(mds.device, fitted.probe.dtype)
    s = fitted.summarise(seen).cpu()
    replicated = fitted.embedding.mean(seen).double()
    z, weights = fitted.embedding(x.to(mds.device)).double(), weights.to(mds.device)
    means = ((w[:, None] * z).sum(0) / w.sum() for w in (torch.ones_like(weights), weights))
    fit, fit_weighted = (predictive_p_value(replicated, mean) for mean in means)
    return replace(drawn, summaries=s[s.isfinite().all(1)], fit=fit, fit_weighted=fit_weighted)


def predictive_p_value(replicated: Tensor, observed: Tensor) -> float:
    r"""Return a posterior-predictive p-value; discrepancy: squared distance of two embeddings.

    .. math:: p = \frac{1 + \#\{i : \|z_i - z_{i+1}\|^2 \ge \|z_i - z_{obs}\|^2\}}{n + 1}
    """
    apart = (replicated - replicated.roll(-1, 0)).square().sum(1)
    reached = (apart >= (replicated - observed).square().sum(1)).sum()
    return (1 + int(reached)) / (1 + len(replicated))


def names_of(given: Sequence[str] | None, num: int, letter: str, argument: str) -> list[str]:
    if given is None:
        return numbered(letter, num)
    names = [str(name) for name in ([given] if isinstance(given, str) else given)]
    if len(names) != num:
        raise ValueError(f"{argument}: expected {num} names, one for each, got {len(names)}.")
    return names
