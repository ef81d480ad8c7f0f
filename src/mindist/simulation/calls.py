"""One call of the simulator, whatever comes of it: data of the right shape, or a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from mindist import checks
from mindist.simulation.failure import WRONG_SHAPE, Problem
from mindist.simulation.sources import simulate


@dataclass(frozen=True)
class Data:
    """What a simulator returned.

    Arguments:
        x: `(N, *event)`, or `(B, N, *event)` of a vectorised one, in float32 or float64.
        numpy: Whether the simulator gave it as a NumPy array.
    """

    x: np.ndarray[Any, Any]
    numpy: bool


class Caller(Protocol):
    """Calls the simulator, here or in a process that can be ended."""

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        """Call it with one theta `(d_theta,)`, or a batch `(B, d_theta)`."""
        ...


@dataclass(frozen=True)
class Call:
    """A simulator and what is expected of it.

    Arguments:
        simulator: The user's function.
        n_obs: N.
        event: The shape of one observation; None while it is not known.

    Example:
        >>> call = Call(lambda theta: np.zeros((2, 3)), n_obs=3, event=())
        >>> call(np.zeros((2, 1)), seed=0, batch=2).x.shape
        (2, 3)
        >>> call(np.zeros((4, 1)), seed=0, batch=4)
        Problem(kind='wrong shape', error='expected shape (4, 3), got (2, 3)')
    """

    simulator: Callable[..., Any]
    n_obs: int
    event: tuple[int, ...] | None = None

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        """Seed the global generators, call, check."""
        try:
            value = simulate(self.simulator, theta, self.n_obs, seed)
        except Exception as error:
            return Problem.of(error)
        return self._checked(value, () if batch is None else (batch,))

    def _checked(self, value: Any, batch: tuple[int, ...]) -> Data | Problem:
        try:
            x: Tensor = checks.as_tensor(value, "simulator (its result)").detach().cpu()
        except TypeError as error:
            return Problem(WRONG_SHAPE, str(error))
        known = (*batch, self.n_obs)
        if tuple(x.shape[: len(known)]) != known or (
            self.event is not None and tuple(x.shape[len(known) :]) != self.event
        ):
            rest = ("*event",) if self.event is None else self.event
            expected = str((*known, *rest)).replace("'", "")
            return Problem(WRONG_SHAPE, f"expected shape {expected}, got {tuple(x.shape)}")
        return Data(x.numpy(), isinstance(value, np.ndarray))


__all__ = ["Call", "Caller", "Data"]
