"""Randomness that can be repeated without disturbing anybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


__all__ = ["seeded"]
