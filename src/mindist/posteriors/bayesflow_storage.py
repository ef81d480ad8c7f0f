r"""Trained BayesFlow workflows on disk, as tensors and JSON.

.. math:: q_\psi(\theta \mid h_\phi(x_{1:N})) \quad \text{is } \psi, \phi \text{ and the moments
    of the standardiser.}

Nothing is pickled, and nothing that is read decides what runs: the workflow is built again by
whoever loads it, as for training, and the stored weights are put into it. Stored beside them is one
row of each variable, from which the adapter and the networks learn how wide they are.

Keras has files of its own (`approximator.save("model.keras")`), which also describe the objects to
build. What `keras.saving.load_model` makes of them, with its `safe_mode` left on, can be wrapped
just as well; here no such description is read.

Like `bayesflow_bridge.py`, this file imports BayesFlow's objects through Keras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import storage
from mindist.posteriors.bayesflow_bridge import input_shapes, trained

KIND = "BayesFlowPosterior"


def save_posterior(path: str | os.PathLike[str], posterior: Any) -> None:
    """Write the weights of a trained workflow or approximator to a folder.

    Arguments:
        path: A folder that does not exist yet, is empty, or holds an older artefact.
        posterior: What `RobustPosterior` takes, with or without a summary network.
    """
    approximator = trained(posterior)
    shapes = input_shapes(approximator)
    tensors = {f"weight.{i}": _value(v) for i, v in enumerate(approximator.weights)}
    for name, row in _example(approximator, shapes).items():
        tensors[f"example.{name}"] = torch.as_tensor(row).clone()
    config = {"inference_network": type(approximator.inference_network).__name__}
    storage.write_artefact(path, KIND, config, tensors)


def load_posterior(path: str | os.PathLike[str], posterior: Any) -> Any:
    """Read what `save_posterior` wrote; equal seeds give the draws of what was saved, bit by bit.

    Arguments:
        path: The folder that was passed to `save_posterior`.
        posterior: A workflow or approximator made as the saved one was, trained or not: same
            networks, same adapter, same `standardize`. Its weights are replaced.

    Returns:
        The given workflow or approximator.
    """
    _, tensors = storage.read_artefact(path, KIND)
    approximator = getattr(posterior, "approximator", posterior)
    prefix = "example."
    rows = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    try:
        adapted = approximator.adapter({name: row.numpy() for name, row in rows.items()})
        if not approximator.built:
            approximator.build({kind: tuple(row.shape) for kind, row in adapted.items()})
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise _other(path, f"its adapter or networks cannot be built for it: {error}") from error
    _fill(path, approximator, tensors)
    trained(posterior)
    return posterior


def _example(approximator: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """One row of each of the user's variables, at the mean of those of training."""
    rows: dict[str, Any] = {}
    for kind, shape in shapes.items():
        zero = torch.zeros(1, *shape[1:])
        mean = approximator.standardizer.maybe_standardize(
            zero, key=kind, stage="inference", forward=False
        )
        rows |= approximator.adapter({kind: mean.detach().cpu().numpy()}, inverse=True)
    return {name: np.ascontiguousarray(row) for name, row in rows.items()}


def _fill(path: str | os.PathLike[str], approximator: Any, tensors: dict[str, Tensor]) -> None:
    stored = [tensors[f"weight.{i}"] for i in range(len(tensors)) if f"weight.{i}" in tensors]
    wanted = [tuple(variable.shape) for variable in approximator.weights]
    if [tuple(value.shape) for value in stored] != wanted:
        raise _other(path, f"{len(wanted)} weights for the {len(stored)} stored, or other shapes")
    for variable, value in zip(approximator.weights, stored, strict=True):
        variable.assign(value)


def _value(variable: Any) -> Tensor:
    value: Tensor = variable.value.detach().clone()
    return value


def _other(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(
        "posterior: expected a workflow made like the one whose weights are in "
        f"{os.fspath(path)}, got another one: {why}"
    )


__all__ = ["load_posterior", "save_posterior"]
