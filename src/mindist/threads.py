"""Larger pieces of work side by side, each on one thread, and many short operations on one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Share = TypeVar("Share")
Result = TypeVar("Result")

_lock = threading.Lock()
_inside: list[int] = []  # for each block that runs now, the number of threads before the first


def each_in_a_thread(work: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
    """Return the results of larger pieces of work, several at a time, each on one torch thread.

    Small tensor operations are no faster on two threads: whole pieces side by side are. The threads
    end with the call: a forked process inherits none.
    """
    size = torch.get_num_threads()
    if min(size, len(shares)) < 2:
        return [work(share) for share in shares]
    grad = torch.is_grad_enabled()

    def begin() -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(grad)

    try:
        with ThreadPoolExecutor(min(size, len(shares)), initializer=begin) as pool:
            return list(pool.map(work, shares))
    finally:
        torch.set_num_threads(size)  # of threads to come: that of each thread is its own


@contextmanager
def one_thread() -> Iterator[None]:
    """Run what is inside on one thread, then give back the number of threads there was.

    For operations of microseconds a second thread gains little; on a busy machine it makes them ten
    to a hundred times slower. Where blocks of several threads overlap, the last one gives it back.
    """
    with _lock:
        _inside.append(_inside[0] if _inside else torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                torch.set_num_threads(before)
