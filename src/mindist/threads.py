"""Threads that share compiled loops, and whether there are any."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise

import torch


def available() -> bool:
    """Whether loops can be compiled here."""
    return find_spec("numba") is not None


def in_slices(work: Callable[[slice], None], count: int, least: int) -> None:
    """Do the work of `count` problems in as many slices as torch has threads.

    Arguments:
        work: Called with each slice, from several threads.
        count: How many problems there are.
        least: How many at least for each thread.
    """
    threads = max(1, min(torch.get_num_threads(), count // max(1, least)))
    if threads == 1:
        work(slice(0, count))
        return
    cuts = [count * i // threads for i in range(threads + 1)]
    first, *others = (slice(*pair) for pair in pairwise(cuts))
    with ThreadPoolExecutor(threads - 1) as pool:
        done = [pool.submit(work, part) for part in others]
        work(first)
        for end in done:
            end.result()


__all__ = ["available", "in_slices"]
