"""Randomness that can be repeated without disturbing anybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from mindist import checks
from mindist.posteriors.turns import my_turn


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Draw from torch's global generators as if freshly seeded, and restore them afterwards.

    Libraries such as sbi draw from the global generators and take no other, so a seed for one call
    means borrowing them. With `seed=None` nothing happens: the global generators are used as they
    are, and `torch.manual_seed` decides. Threads take turns (`mindist.posteriors.turns`), so that
    a seed means the same in each of them, unless a thread draws from the global generators by other
    means meanwhile.

    Arguments:
        seed: The seed, or None.
        device: A CUDA device whose generator is borrowed as well.

    Example:
        >>> state = torch.get_rng_state()
        >>> with seeded(1):
        ...     a = torch.rand(2)
        >>> with seeded(1):
        ...     b = torch.rand(2)
        >>> torch.equal(a, b), torch.equal(state, torch.get_rng_state())
        (True, True)
    """
    if seed is None:
        with my_turn():
            yield
        return
    cuda = [device] if device is not None and device.type == "cuda" else []
    with my_turn(), torch.random.fork_rng(devices=cuda):
        # Not torch.manual_seed, which would reseed devices that were not forked.
        torch.default_generator.manual_seed(checks.seed(seed))
        for borrowed in cuda:
            with torch.cuda.device(borrowed):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def seed_for_others() -> Iterator[int]:
    """A seed for code that does not draw from torch's global generator, but that it decides.

    Right after `torch.manual_seed(n)` or `seeded(n)` it is n itself, so that a library which takes
    seeds gives what it would give for n; later it is drawn. NumPy's global generator is seeded with
    it too, and restored. Torch's own is left where it was for those who draw from it; where nobody
    did, it moves on, so that the next seed is another.

    Example:
        >>> _ = torch.manual_seed(5)
        >>> with seed_for_others() as first, seed_for_others() as same:
        ...     pass
        >>> with seed_for_others() as later:
        ...     pass
        >>> first, same, later == first
        (5, 5, False)
    """
    state = torch.get_rng_state()
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    seed = torch.initial_seed() % 2**32
    if not torch.equal(state, fresh.get_state()):
        fresh.set_state(state)
        seed = int(torch.randint(2**31, (), generator=fresh))
    numpy_state = np.random.get_state()  # noqa: NPY002  (foreign code draws from it)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield seed
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch.equal(torch.get_rng_state(), state):
            torch.rand(())


__all__ = ["seed_for_others", "seeded"]
