"""Samples of a `RobustPosterior` as ArviZ data; no other file knows which ArviZ is installed.

The groups are datasets of xarray. ArviZ 0.23 holds them in its own `InferenceData`, ArviZ 1 (from
Python 3.12) in an `xarray.DataTree`; names, values and NetCDF files are the same.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.queries import Conditions
from mindist.result import Completion
from mindist.simulation.calls import predict_data

VECTOR_FACTS = ("outlier_score", "outliers", "missing", "predicted", "spread")


def export(
    robust: Any,
    data: Tensor,
    num_samples: int,
    names: Sequence[str] | None,
    simulator: Callable[..., Any] | None,
    at: str,
    seed: int | None,
) -> Any:
    """Return what `RobustPosterior.to_arviz` describes."""
    arviz, xarray = (checks.need("ArviZ data", "arviz", name) for name in ("arviz", "xarray"))
    num = robust.num_parameters
    checks.positive(num_samples, "num_samples")
    checks.choice(at, ("adapted", "observed"), "at")
    own = robust.parameter_names if names is None else names
    own = [f"theta_{i}" for i in range(num)] if own is None else list(own)
    if isinstance(names, str) or len(own) != num or len(set(own)) != num:
        said = f"{num} different names, one for each parameter"
        raise checks.wrong("names", said, repr(names))
    result, conditions = robust.adapt(data), robust.conditions(data)
    vectors = isinstance(result, Completion)
    if at == "observed":
        s_obs = (result.x_obs if vectors else result.s_obs).reshape(len(conditions), -1)
        conditions = Conditions.certain(s_obs.to(conditions.s))
    theta = robust.queries.sample((num_samples,), conditions, seed=seed)
    first = ("dataset",) if result.batched else ()
    own_axes = () if vectors else ("observation",)
    events = range(data.dim() - len(first) - len(own_axes))
    axes = (*first, *own_axes, *(f"event_{i}" for i in events))
    dims = dict.fromkeys(("p_value", "misspecified", "adapted"), first)
    if vectors:
        dims |= dict.fromkeys(VECTOR_FACTS, axes)
    else:
        dims |= dict.fromkeys(("s_obs", "s_star"), (*first, "summary")) | {"epsilon": first}
        dims |= dict.fromkeys(("weights", "outlier_score", "outliers"), (*first, "observation"))
    groups: dict[str, dict[str, Any]] = {
        "posterior": {name: _draws(theta[..., i], first) for i, name in enumerate(own)},
        "observed_data": {"x": (axes, np.asarray(data.cpu()))},
        "constant_data": {k: (d, np.asarray(getattr(result, k).cpu())) for k, d in dims.items()},
    }
    with suppress(NotImplementedError), torch.no_grad():  # some can only be sampled
        groups["sample_stats"] = {"lp": _draws(robust.queries.log_prob(theta, conditions), first)}
    if simulator is not None:
        seed = int(torch.randint(2**31, ())) if seed is None else seed
        shape = tuple(data.shape[len(first) :])
        predicted, error = predict_data(simulator, theta.flatten(0, 1), shape, seed)
        if error:
            said = "a dataset as observed for each parameter vector drawn from the posterior"
            raise checks.wrong("simulator", said, f"this: {error}")
        predicted = predicted.reshape(*theta.shape[:2], *shape)
        groups["posterior_predictive"] = {"x": _draws(predicted, axes)}
    about = {"inference_library": "mindist", "inference_library_version": version("mindist")}
    asked = "completed vectors" if vectors else "minimum-distance summaries"
    about["queried_at"] = asked if at == "adapted" else "observed summaries"
    sets = {}
    for name, values in groups.items():
        plain = xarray.Dataset(values, attrs=about)
        sets[name] = plain.assign_coords({d: range(n) for d, n in plain.sizes.items()})
    old = vars(arviz).get("InferenceData")  # ArviZ 1 warns where it is asked for as an attribute
    return old(**sets) if old else xarray.DataTree.from_dict(sets)


def _draws(values: Tensor, dims: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """Turn `(S, B, ...)` into one chain `(1, S, [B,] ...)`, where only a batch has the axis B."""
    values = values if dims[:1] == ("dataset",) else values[:, 0]
    return ("chain", "draw", *dims), np.asarray(values.detach().cpu())[None]
