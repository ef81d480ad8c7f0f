r"""Data replicated from a posterior: parameters drawn from it, data from the simulator.

A simulator is called as `mindist.simulate` calls it: with a batch of parameters or with one vector,
as tensors or as NumPy arrays, whichever works, from seeds of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.simulation.calls import Call, Data
from mindist.simulation.failure import Problem
from mindist.simulation.seeds import borrowed_globals

MAX_BYTES = 2**28
"""Of replicated data."""


@dataclass(frozen=True)
class Replicated:
    """Replicated datasets.

    Arguments:
        x: Datasets `(n, N, *event)`; n may be less than was asked for, or 0.
        asked: For how many.
        error: What the first failure said, if any.
    """

    x: Tensor
    asked: int
    error: str = ""


def replicate(
    simulator: Callable[..., Any], theta: Tensor, shape: tuple[int, ...], seed: int
) -> Replicated:
    """A dataset for each parameter vector; those that fail are left out.

    Arguments:
        simulator: The user's function.
        theta: Parameters `(n, d_theta)`.
        shape: Of one dataset, `(N, *event)`.
        seed: Of the simulator's randomness.

    Example:
        >>> from mindist.report.dataset.replicate import replicate
        >>> simulator = lambda theta: theta + torch.randn(20, 2)
        >>> replicate(simulator, torch.zeros(5, 2), (20, 2), seed=0).x.shape
        torch.Size([5, 20, 2])
    """
    numbers = torch.Size(shape).numel()
    theta = theta[: max(1, MAX_BYTES // (4 * max(1, numbers)))].detach().cpu()
    call = Call(simulator, shape[0], tuple(shape[1:]))
    with borrowed_globals(), torch.no_grad():
        data, error = _batch(call, theta, seed)
        if data is None:
            data, error = _one_by_one(call, theta, seed)
    finite = data.flatten(1).isfinite().all(1)
    if not error and not finite.all():
        error = "the data hold NaN or infinite values"
    return Replicated(data[finite], len(theta), error)


def _batch(call: Call, theta: Tensor, seed: int) -> tuple[Tensor | None, str]:
    """All at once, if the simulator takes a batch."""
    # As many as N or d_theta might be taken for one theta by chance.
    num = next(
        n for n in range(len(theta), len(theta) + 3) if n not in (call.n_obs, theta.shape[1])
    )
    padded = torch.cat([theta, theta[:1].expand(num - len(theta), -1)])
    for given in (padded, padded.numpy()):
        result = call(given, seed, num)
        if isinstance(result, Data):
            return torch.from_numpy(result.x)[: len(theta)], ""
    return None, ""


def _one_by_one(call: Call, theta: Tensor, seed: int) -> tuple[Tensor, str]:
    rows, error = [], ""
    for i, one in enumerate(theta):
        first = result = call(one, seed + i, None)
        if isinstance(first, Problem):
            result = call(one.numpy(), seed + i, None)
        if isinstance(result, Data):
            rows.append(torch.from_numpy(result.x))
        elif isinstance(first, Problem):
            error = error or first.error
    shape = (0, call.n_obs, *(call.event or ()))
    return torch.stack(rows) if rows else torch.empty(shape), error


__all__ = ["Replicated", "replicate"]
