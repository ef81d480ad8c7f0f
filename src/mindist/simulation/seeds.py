r"""Seeds that depend on what is drawn, never on who draws it or when.

Chunk i of a bank with seed S has the stream `SeedSequence(S, spawn_key=(i, ...))`; each attempt at
a draw has a seed of its own in it, so that a dataset is the same whoever simulates it, and a draw
that follows a failure is the same on every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def draw_seed(seed: int, *key: int) -> int:
    """One seed of 63 bits, of which every generator here can be made.

    Arguments:
        seed: Of the bank.
        key: Where in the bank: chunk, attempt, and what is drawn.

    Example:
        >>> draw_seed(0, 3, 0) == draw_seed(0, 3, 0), draw_seed(0, 3, 0) == draw_seed(0, 3, 1)
        (True, False)
    """
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002  (what simulators may draw from)
    # Not torch.manual_seed, which would also initialise generators of devices that nobody uses.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def borrowed_globals() -> Iterator[None]:
    """Give the global generators back as they were.

    Example:
        >>> state = torch.get_rng_state()
        >>> with borrowed_globals():
        ...     seed_globals(1)
        >>> torch.equal(state, torch.get_rng_state())
        True
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


__all__ = ["borrowed_globals", "draw_seed", "seed_globals"]
