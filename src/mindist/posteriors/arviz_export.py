"""Posterior samples and all that belongs to them as ArviZ data, to be plotted or saved as NetCDF.

This file is the only one that imports ArviZ, when it is asked for. The groups are ArviZ's own:

- `posterior`: the parameters by name, `(chain, draw)`
- `sample_stats`: `lp`, the log-probability of each draw, where the posterior has one
- `observed_data`: `x`, `(observation, ...)`
- `posterior_predictive`: `x`, `(chain, draw, observation, ...)`, where a simulator is given
- `constant_data`: the summaries before and after, `s_obs` and `s_star`; `p_value`, `misspecified`,
  `adapted`, `epsilon`; and `weights`, `outlier_score`, `outliers` of each observation

A batch of datasets has one more axis, `dataset`, before the others of each variable.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks
from mindist.adaptation import Adaptation
from mindist.posteriors.predictive import predict
from mindist.posteriors.rejection import Budget
from mindist.posteriors.uncertain import Conditions
from mindist.protocols import Array

if TYPE_CHECKING:
    from mindist.posteriors.robust import RobustPosterior

AT = ("adapted", "observed")
Variable = tuple[tuple[str, ...], NDArray[Any]]
"""Names of the axes, and values."""


@dataclass(frozen=True)
class Export:
    """What to put into ArviZ data.

    Arguments:
        num_samples: Draws from the posterior.
        names: Of the parameters; by default those that BayesFlow has, else `theta_0`, ...
        simulator: As of `mindist.simulate`, for the posterior predictive.
        at: Where the posterior is asked: at the `"adapted"` summaries, or at the `"observed"` ones,
            as the wrapped posterior alone would.
        seed: Of all draws; None draws from torch's global generator.

    Example:
        >>> Export(num_samples=500, names=["rate"]).at
        'adapted'
    """

    num_samples: int = 1_000
    names: Sequence[str] | None = None
    simulator: Callable[..., Any] | None = None
    at: str = "adapted"
    seed: int | None = None

    def __post_init__(self) -> None:
        checks.positive(self.num_samples, "num_samples")
        checks.choice(self.at, AT, "at")


def to_inference_data(robust: RobustPosterior, x: Array | None = None, **options: Any) -> Any:
    """An `arviz.InferenceData` of a posterior given observed datasets.

    Arguments:
        robust: The posterior.
        x: One dataset `(N, *event)` or a batch `(B, N, *event)`; by default `default_x`.
        options: As of `Export`.

    Example:
        >>> from mindist import MinimumDistance, RobustPosterior
        >>> x = torch.randn(500, 1, 1) + 0.1 * torch.randn(500, 30, 1)
        >>> mds = MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> robust = RobustPosterior(lambda s, n: s + 0.02 * torch.randn(n, 1), mds)
        >>> data = to_inference_data(robust, x[0], num_samples=50, names=["centre"], seed=0)
        >>> dict(data.posterior["centre"].sizes)
        {'chain': 1, 'draw': 50}
    """
    _need("arviz")
    export = Export(**options)
    names = _names(robust, export.names)
    result, conditions = robust.adapt(x), robust.conditions(x)
    if export.at == "observed":
        conditions = Conditions.certain(result.s_obs.reshape(len(conditions), -1).to(conditions.s))
    budget = Budget(robust.queries.max_draws)
    theta = robust.queries.sample((export.num_samples,), conditions, budget, seed=export.seed)
    data = checks.as_tensor(robust.default_x if x is None else x, "x")
    first = ("dataset",) if result.batched else ()
    axes = (*first, "observation", *(f"event_{i}" for i in range(data.dim() - len(first) - 1)))
    groups = {
        "posterior": {n: _draws(theta[..., i], first) for i, n in enumerate(names)},
        "observed_data": {"x": (axes, _array(data))},
        "constant_data": _constants(result, first),
    }
    log_prob = _log_prob(robust, theta, conditions)
    if log_prob is not None:
        groups["sample_stats"] = {"lp": _draws(log_prob, first)}
    if export.simulator is not None:
        shape = tuple(data.shape[len(first) :])
        predicted = _predictive(export.simulator, theta, shape, export.seed)
        groups["posterior_predictive"] = {"x": _draws(predicted, axes)}
    return _inference_data(groups, export)


def _predictive(
    simulator: Callable[..., Any], theta: Tensor, shape: tuple[int, ...], seed: int | None
) -> Tensor:
    """Datasets `(S, B, N, *event)`, one for each draw `(S, B, d_theta)`."""
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    x = predict(simulator, theta.flatten(0, 1), shape, seed)
    return x.reshape(*theta.shape[:2], *shape)


def _log_prob(robust: RobustPosterior, theta: Tensor, conditions: Conditions) -> Tensor | None:
    """Log-probabilities `(S, B)`, or None where the wrapped posterior has none."""
    try:
        with torch.no_grad():
            return robust.queries.log_prob(theta, conditions)
    except NotImplementedError:
        return None


def _draws(values: Tensor, dims: tuple[str, ...]) -> Variable:
    """From `(S, B, ...)` to one chain `(1, S, [B,] ...)`, where only a batch has the axis B."""
    values = values if dims[:1] == ("dataset",) else values[:, 0]
    return ("chain", "draw", *dims), _array(values)[None]


def _constants(result: Adaptation, first: tuple[str, ...]) -> dict[str, Variable]:
    """What was found about the data."""
    axes = {
        **dict.fromkeys(("s_obs", "s_star"), ("summary",)),
        **dict.fromkeys(("p_value", "misspecified", "adapted", "epsilon"), ()),
        **dict.fromkeys(("weights", "outlier_score", "outliers"), ("observation",)),
    }
    return {name: ((*first, *own), _array(getattr(result, name))) for name, own in axes.items()}


def _inference_data(groups: Mapping[str, Mapping[str, Variable]], export: Export) -> Any:
    """Each group as a dataset of xarray, whose axes are numbered from 0."""
    arviz, xarray = _need("arviz"), _need("xarray")
    queried = "minimum-distance summaries" if export.at == "adapted" else "observed summaries"
    attributes = {
        "inference_library": "mindist",
        "inference_library_version": version("mindist"),
        "queried_at": queried,
    }
    datasets = {}
    for group, variables in groups.items():
        plain = xarray.Dataset(variables, attrs=attributes)
        datasets[group] = plain.assign_coords({d: range(n) for d, n in plain.sizes.items()})
    return arviz.InferenceData(**datasets)


def _names(robust: RobustPosterior, given: Sequence[str] | None) -> list[str]:
    """A name for each parameter."""
    num = robust.num_parameters
    names = given if given is not None else robust.parameter_names
    names = [f"theta_{i}" for i in range(num)] if names is None else list(names)
    if isinstance(given, str) or len(names) != num or len(set(names)) != num:
        raise ValueError(f"names: expected {num} different names, one for each parameter, got "
                         f"{given!r}.")  # fmt: skip
    return names


def _array(values: Tensor) -> NDArray[Any]:
    return np.asarray(values.detach().cpu().numpy())


def _need(name: str) -> Any:
    """A library, without ArviZ's daily notice, or a message that names the extra."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "\nArviZ is undergoing", FutureWarning)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"ArviZ data need {error.name}. Install it with: pip install 'mindist[arviz]'"
        ) from error


__all__ = ["Export", "to_inference_data"]
