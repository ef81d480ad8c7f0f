"""What a bridge puts around foreign code: silence, an end, and copies that really are copies."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

from torch import nn

Thing = TypeVar("Thing")

# Evaluations of a vector field in one solution of its ODE: 4096 steps (diffrax's default limit)
# of 7 evaluations. zuko's solver has no limit of its own, and where the field is not finite it
# shrinks its step for ever. Usual solutions take tens of steps.
MAX_ODE_EVALUATIONS = 7 * 4096


@contextmanager
def quiet(*messages: str, stdout: bool = False) -> Iterator[None]:
    """Ignore the user warnings that begin with these patterns, and what is printed as well.

    Example:
        >>> with quiet("known", stdout=True):
        ...     warnings.warn("known and harmless", stacklevel=1)
        ...     print("not seen")
    """
    with warnings.catch_warnings():
        for message in messages:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        if not stdout:
            yield
            return
        with redirect_stdout(io.StringIO()):
            yield


@contextmanager
def bounded_evaluations(net: nn.Module, limit: int | None = None) -> Iterator[None]:
    """Raise, rather than integrate for ever, once a net was evaluated too often.

    Example:
        >>> import torch
        >>> net = nn.Identity()
        >>> with bounded_evaluations(net, 2):
        ...     for _ in range(3):
        ...         _ = net(torch.zeros(1))
        Traceback (most recent call last):
            ...
        RuntimeError: posterior: its ODE was not solved in 2 evaluations of the vector field...
    """
    count, limit = 0, MAX_ODE_EVALUATIONS if limit is None else limit

    def check(*_: object) -> None:
        nonlocal count
        count += 1
        if count > limit:
            raise RuntimeError(
                f"posterior: its ODE was not solved in {limit} evaluations of the vector field, "
                "which is stiff or not finite at this summary. The query is far from the summaries "
                "that the posterior was trained on: look at adapt(x).s_star, or build it with "
                "sample_with='sde'."
            )

    handle = net.register_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package from which it was entered."""
    package, frame, level = __name__.rpartition(".")[0], sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def shallow_copy(thing: Thing) -> Thing:
    """A copy with attributes of its own, whatever the class does when it is copied or pickled.

    `copy.copy` of an sbi posterior, whose `__getstate__` returns its `__dict__`, is no copy: what
    is set on one is set on the other.
    """
    twin: Thing = object.__new__(type(thing))
    twin.__dict__.update(thing.__dict__)
    return twin


class NoTracker:
    """A tracker of training statistics that drops them; sbi's default makes a folder for them."""

    log_dir = None

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    log_metric = log_metrics = log_params = add_figure = flush = _ignore


__all__ = [
    "MAX_ODE_EVALUATIONS",
    "NoTracker",
    "bounded_evaluations",
    "quiet",
    "shallow_copy",
    "warn_user",
]
