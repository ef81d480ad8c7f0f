r"""Datasets that a simulator makes of posterior draws.

.. math:: \theta_i \sim p(\theta \mid s^\star), \qquad x^{(i)}_{1:N} \sim p_{\theta_i} .
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mindist.simulation.calls import Call, Data
from mindist.simulation.failure import Problem
from mindist.simulation.seeds import borrowed_globals, draw_seed

PREDICTIVE = 2**30  # the first number of these seeds, which no chunk of a bank has


def predict(
    simulator: Callable[..., Any], theta: Tensor, shape: tuple[int, ...], seed: int
) -> Tensor:
    """One dataset for each parameter vector.

    Arguments:
        simulator: As of `mindist.simulate`: one theta `(d_theta,)` to a dataset `(N, *event)`, or
            a batch `(S, d_theta)` to `(S, N, *event)`.
        theta: Parameters `(S, d_theta)`.
        shape: `(N, *event)`.
        seed: Of the datasets; the global generators are borrowed and given back.

    Returns:
        Datasets `(S, N, *event)`.

    Example:
        >>> theta = torch.tensor([[0.0], [100.0]])
        >>> x = predict(lambda theta, rng: rng.normal(theta, size=(5, 1)), theta, (5, 1), seed=0)
        >>> x.shape, bool(x[0].max() < x[1].min())
        (torch.Size([2, 5, 1]), True)
    """
    call = Call(simulator, shape[0], tuple(shape[1:]))
    theta = theta.detach().cpu()
    with borrowed_globals(), torch.no_grad():
        together = call(theta, draw_seed(seed, PREDICTIVE), len(theta))
        if isinstance(together, Data):
            return torch.from_numpy(together.x)
        seeds = (draw_seed(seed, PREDICTIVE, index) for index in range(len(theta)))
        return torch.stack([_one(call(t, s, None)) for t, s in zip(theta, seeds, strict=True)])


def _one(made: Data | Problem) -> Tensor:
    if isinstance(made, Problem):
        raise ValueError(
            "simulator: expected a dataset as observed for each parameter vector drawn from the "
            f"posterior, got: {made.error}"
        )
    return torch.from_numpy(made.x)


__all__ = ["predict"]
