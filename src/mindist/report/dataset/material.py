"""All that the report says, computed: samples, replicated data, the parts of the test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import Adaptation
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.queries import Conditions
from mindist.posteriors.robust import RobustPosterior
from mindist.posteriors.truncation import Budget
from mindist.protocols import Array
from mindist.report.dataset.replicate import Replicated, replicate
from mindist.report.style import numbered

PATIENCE = 60.0
"""Seconds for the samples of one posterior."""

REPLICATIONS = 200


@dataclass(frozen=True)
class Draws:
    """Of one posterior.

    Arguments:
        theta: Samples `(n, d_theta)`; n may be less than was asked for, or 0.
        said: Warnings meanwhile.
        replicated: Data simulated from them, if there is a simulator.
        summaries: Of those data, `(n, d_s)`, if there are any.
        fit: Share of the replications that differ from another one by as much as the data do.
        fit_weighted: The same of the data as weighted by the adaptation.
    """

    theta: Tensor
    said: tuple[str, ...] = ()
    replicated: Replicated | None = None
    summaries: Tensor | None = None
    fit: float | None = None
    fit_weighted: float | None = None


@dataclass(frozen=True)
class Material:
    """What the page is made of.

    Arguments:
        result: The adaptation of one dataset, on the CPU.
        x: The observations `(N, *event)`.
        mds: The fitted estimator.
        summary_names: Of the d_s summaries.
        theta_names: Of the parameters, if there is a posterior.
        tests: p-value of each statistic of the test.
        before: At the observed summary, if there is a posterior.
        after: At the adapted one, if there is a posterior and the data were adapted.
    """

    result: Adaptation
    x: Tensor
    mds: MinimumDistance
    summary_names: Sequence[str]
    theta_names: Sequence[str]
    tests: dict[str, float]
    before: Draws | None = None
    after: Draws | None = None

    @property
    def adapted(self) -> bool:
        """Whether the summary was moved."""
        return bool(self.result.adapted)

    @property
    def cloud(self) -> Tensor:
        """Simulated summaries `(m, d_s)`."""
        return self.mds.fitted_.bank.s.cpu()

    @property
    def scale(self) -> Tensor:
        """Standard deviations of simulated summaries `(d_s,)`; 1 where all are the same."""
        scale = self.mds.fitted_.bank.scale.cpu()
        return torch.where(scale > 0, scale, 1.0)

    @property
    def shift(self) -> Tensor:
        """How far the summary was moved, in standard deviations of simulated ones, `(d_s,)`."""
        return (self.result.s_star - self.result.s_obs).double() / self.scale

    @property
    def draws(self) -> dict[str, Draws]:
        """Both posteriors, as far as there are any."""
        both = {"before": self.before, "after": self.after}
        return {name: drawn for name, drawn in both.items() if drawn is not None}


def one_dataset(result: Adaptation, x: Array, mds: MinimumDistance) -> tuple[Adaptation, Tensor]:
    """The adaptation and the data of one dataset, which belong together.

    Arguments:
        result: Of one dataset, or of a batch of one.
        x: That dataset, `(N, *event)` or `(1, N, *event)`.
        mds: The estimator that gave the result.
    """
    if not isinstance(result, Adaptation):
        raise TypeError(
            f"result: expected an Adaptation, got {type(result).__name__}. Make one with "
            "mds.adapt(x_obs)."
        )
    batch, _ = checks.observed(x, mds.event_shape)
    if (result.batched and len(result) != 1) or len(batch) != 1:
        num = len(result) if result.batched else 1
        raise ValueError(
            f"result, x: expected one dataset, got results of {num} and data of {len(batch)}. For "
            "the first of a batch pass result[0] and x[0]."
        )
    one = result[0] if result.batched else result
    x_obs = batch[0].to(mds.fitted_.probe.dtype)
    own = mds.fitted_.summarise(x_obs[None].to(mds.device))[0].cpu()
    if len(one.weights) != len(x_obs) or not checks.agree(own, one.s_obs.cpu()):
        raise ValueError(
            f"result, x: expected the adaptation of this dataset, got one of {len(one.weights)} "
            f"observations whose summary is not that of x, which has {len(x_obs)}. Pass "
            "mds.adapt(x)."
        )
    return _on_cpu(one), x_obs.cpu()


def gather(
    result: Adaptation,
    x: Tensor,
    mds: MinimumDistance,
    *,
    posterior: RobustPosterior | None,
    simulator: Callable[..., Any] | None,
    num_samples: int,
    seed: int,
) -> dict[str, Any]:
    """The parts of `Material` that take time: tests, samples, replicated data."""
    given = mds.fitted_.p_values(x[None].to(mds.device))
    parts: dict[str, Any] = {"tests": {name: float(p[0]) for name, p in given.items()}}
    if posterior is None:
        return parts
    device = posterior.queries.backend.device
    s_obs = Conditions.certain(result.s_obs[None].to(device, torch.float32))
    asked = {"before": s_obs}
    if result.adapted:
        asked["after"] = posterior.conditions_of(_batch_of_one(result, mds.device))
    for name, conditions in asked.items():
        drawn = draw(posterior, conditions, num_samples, seed)
        if simulator is not None:
            drawn = predict(drawn, simulator, x, result.weights.to(mds.device), mds, seed)
        parts[name] = drawn
    return parts


def draw(posterior: RobustPosterior, conditions: Conditions, num: int, seed: int) -> Draws:
    """Samples for one dataset, and what was said meanwhile."""
    budget = Budget(posterior.queries.max_draws, max_seconds=PATIENCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        theta = posterior.queries.sample((num,), conditions, budget, seed=seed)
    said = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    theta = theta.squeeze(-2).detach().cpu()
    return Draws(theta[theta.isfinite().all(1)], said)


def predict(
    drawn: Draws,
    simulator: Callable[..., Any],
    x: Tensor,
    weights: Tensor,
    mds: MinimumDistance,
    seed: int,
) -> Draws:
    """The same, with data replicated from the samples."""
    if not len(drawn.theta):
        return drawn
    data = replicate(simulator, drawn.theta[:REPLICATIONS], tuple(x.shape), seed)
    if len(data.x) < 2:
        return Draws(drawn.theta, drawn.said, data)
    fitted = mds.fitted_
    seen = data.x.to(mds.device, fitted.probe.dtype)
    s = fitted.summarise(seen).cpu()
    replicated = fitted.embedding.split(fitted.embedding.mean(seen))[0].double()
    z = fitted.embedding(x.to(mds.device)).double()
    shares = [
        predictive_p_value(replicated, (w[:, None] * z).sum(0) / w.sum())
        for w in (torch.ones_like(weights), weights)
    ]
    return Draws(drawn.theta, drawn.said, data, s[s.isfinite().all(1)], *shares)


def predictive_p_value(replicated: Tensor, observed: Tensor) -> float:
    r"""A posterior-predictive p-value, with the squared distance of two embeddings as discrepancy.

    .. math:: p = \frac{1 + \#\{i : \|z_i - z_{i+1}\|^2 \ge \|z_i - z_{obs}\|^2\}}{n + 1}

    Arguments:
        replicated: Mean embeddings of replicated datasets `(n, K)`.
        observed: That of the observed one, `(K,)`.

    Example:
        >>> z = torch.tensor([[0.0], [1.0], [0.0], [1.0]])
        >>> predictive_p_value(z, torch.tensor([0.5])), predictive_p_value(z, torch.tensor([9.0]))
        (1.0, 0.2)
    """
    apart = (replicated - replicated.roll(-1, 0)).square().sum(1)
    reached = (apart >= (replicated - observed).square().sum(1)).sum()
    return (1 + int(reached)) / (1 + len(replicated))


def names_of(given: Sequence[str] | None, num: int, letter: str, argument: str) -> list[str]:
    """Names of the parts of a vector, as given or numbered.

    Example:
        >>> names_of(None, 2, "s", "summary_names")
        ['s₁', 's₂']
        >>> names_of(["mean"], 2, "s", "summary_names")
        Traceback (most recent call last):
            ...
        ValueError: summary_names: expected 2 names, one for each, got 1.
    """
    if given is None:
        return numbered(letter, num)
    names = [str(name) for name in ([given] if isinstance(given, str) else given)]
    if len(names) != num:
        raise ValueError(f"{argument}: expected {num} names, one for each, got {len(names)}.")
    return names


def _on_cpu(result: Adaptation) -> Adaptation:
    moved = {k: v.cpu() for k, v in vars(result).items() if isinstance(v, Tensor)}
    return Adaptation(**{**vars(result), **moved})


def _batch_of_one(result: Adaptation, device: torch.device) -> Adaptation:
    moved = {k: v[None].to(device) for k, v in vars(result).items() if isinstance(v, Tensor)}
    return Adaptation(**{**vars(result), **moved, "status": (result.status,)})


__all__ = ["Draws", "Material", "gather", "names_of", "one_dataset"]
