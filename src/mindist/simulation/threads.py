"""One core for one chunk: the last bits of a sum depend on how many threads share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from mindist.threads import one_thread


@contextmanager
def one_core() -> Iterator[None]:
    """Keep torch, and the libraries behind NumPy where threadpoolctl is there, on one thread.

    Example:
        >>> import torch
        >>> with one_core():
        ...     torch.get_num_threads()
        1
    """
    controller = _controller()
    limited = nullcontext() if controller is None else controller.limit(limits=1)
    with one_thread(), limited:
        yield


@cache
def _controller() -> Any:
    """Of the libraries that are loaded at the first call; looking for them takes a while."""
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return None
    return ThreadpoolController()


__all__ = ["one_core"]
