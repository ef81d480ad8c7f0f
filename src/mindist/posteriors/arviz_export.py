"""Posterior samples and all that belongs to them as ArviZ data, to be plotted or saved as NetCDF.

The groups are ArviZ's own: `posterior`, the parameters by name; `sample_stats`, with `lp` where the
posterior has log-probabilities; `observed_data` and, with a simulator, `posterior_predictive`, with
`x`; `constant_data`, the summaries before and after and what was found about each observation. A
batch of datasets has one more axis, `dataset`, before the others of each variable.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks
from mindist.adaptation import Adaptation
from mindist.posteriors.queries import Conditions
from mindist.protocols import Array
from mindist.simulation.calls import predict_data

if TYPE_CHECKING:
    from mindist.posteriors.robust import RobustPosterior

Variable = tuple[tuple[str, ...], NDArray[Any]]  # names of the axes, and values


def to_inference_data(
    robust: RobustPosterior,
    x: Array | None = None,
    num_samples: int = 1_000,
    *,
    names: Sequence[str] | None = None,
    simulator: Callable[..., Any] | None = None,
    at: str = "adapted",
    seed: int | None = None,
) -> Any:
    """Return an `arviz.InferenceData`; arguments as in `RobustPosterior.to_arviz`."""
    arviz, xarray = _need("arviz"), _need("xarray")
    checks.positive(num_samples, "num_samples")
    checks.choice(at, ("adapted", "observed"), "at")
    names = _names(robust, names)
    result, conditions = robust.adapt(x), robust.conditions(x)
    if at == "observed":
        conditions = Conditions.certain(result.s_obs.reshape(len(conditions), -1).to(conditions.s))
    theta = robust.queries.sample((num_samples,), conditions, seed=seed)
    data = checks.as_tensor(robust.default_x if x is None else x, "x")
    first = ("dataset",) if result.batched else ()
    axes = (*first, "observation", *(f"event_{i}" for i in range(data.dim() - len(first) - 1)))
    groups = {
        "posterior": {n: _draws(theta[..., i], first) for i, n in enumerate(names)},
        "observed_data": {"x": (axes, np.asarray(data.cpu()))},
        "constant_data": _constants(result, first),
    }
    with contextlib.suppress(NotImplementedError), torch.no_grad():  # some can only be sampled
        log_prob = robust.queries.log_prob(theta, conditions)
        groups["sample_stats"] = {"lp": _draws(log_prob, first)}
    if simulator is not None:
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        shape = tuple(data.shape[len(first) :])
        predicted, error = predict_data(simulator, theta.flatten(0, 1), shape, seed)
        if error:
            raise ValueError(
                "simulator: expected a dataset as observed for each parameter vector drawn from "
                f"the posterior, got: {error}"
            )
        predicted = predicted.reshape(*theta.shape[:2], *shape)
        groups["posterior_predictive"] = {"x": _draws(predicted, axes)}
    attributes = {"inference_library": "mindist", "inference_library_version": version("mindist")}
    attributes["queried_at"] = f"{'minimum-distance' if at == 'adapted' else 'observed'} summaries"
    datasets = {}
    for group, variables in groups.items():
        plain = xarray.Dataset(variables, attrs=attributes)
        datasets[group] = plain.assign_coords({d: range(n) for d, n in plain.sizes.items()})
    return arviz.InferenceData(**datasets)


def _draws(values: Tensor, dims: tuple[str, ...]) -> Variable:
    """Turn `(S, B, ...)` into one chain `(1, S, [B,] ...)`, where only a batch has the axis B."""
    values = values if dims[:1] == ("dataset",) else values[:, 0]
    return ("chain", "draw", *dims), np.asarray(values.detach().cpu())[None]


def _constants(result: Adaptation, first: tuple[str, ...]) -> dict[str, Variable]:
    """Return what was found about the data."""
    axes = {
        **dict.fromkeys(("s_obs", "s_star"), ("summary",)),
        **dict.fromkeys(("p_value", "misspecified", "adapted", "epsilon"), ()),
        **dict.fromkeys(("weights", "outlier_score", "outliers"), ("observation",)),
    }
    values = {name: np.asarray(getattr(result, name).cpu()) for name in axes}
    return {name: ((*first, *own), values[name]) for name, own in axes.items()}


def _names(robust: RobustPosterior, given: Sequence[str] | None) -> list[str]:
    """Return a different name for each parameter."""
    num = robust.num_parameters
    names = given if given is not None else robust.parameter_names
    names = [f"theta_{i}" for i in range(num)] if names is None else list(names)
    if isinstance(given, str) or len(names) != num or len(set(names)) != num:
        said = f"{num} different names, one for each parameter"
        raise checks.wrong("names", said, repr(given))
    return names


def _need(name: str) -> Any:
    """Import a library, without ArviZ's daily notice, or say which extra has it."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "\nArviZ is undergoing", FutureWarning)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"ArviZ data need {error.name}. Install it with: pip install 'mindist[arviz]'"
        ) from error


__all__: list[str] = []  # for users there is RobustPosterior.to_arviz
