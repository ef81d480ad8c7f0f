"""Threads for one call of compiled loops: work cut into shares, done by threads that hold no lock.

They take the place of numba's own parallel loops, not all of which survive a fork or calls from
several threads. And the opposite: `one_thread`, where operations are many and short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Share = TypeVar("Share")
Result = TypeVar("Result")

_lock = threading.Lock()
_inside: list[int] = []  # for each block that runs now, the number of threads before the first


@dataclass(frozen=True)
class Team:
    """Threads that take one share of a task each.

    Arguments:
        size: How many shares to make of a task.
        pool: The threads; None for the calling thread alone.
    """

    size: int
    pool: Executor | None

    def do(self, task: Callable[[Share], None], shares: Sequence[Share]) -> None:
        """Call the task with each share, and return when all are done."""
        if self.pool is None or len(shares) == 1:
            for share in shares:
                task(share)
        else:
            list(self.pool.map(task, shares))  # `list` waits, and raises what a thread has raised


def each_in_a_thread(work: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
    """The results of larger pieces of work, several at a time, each with one thread of torch.

    Small tensor operations are no faster on two threads: whole pieces side by side are. Where there
    is one piece, or torch has one thread, in the calling thread.

    Example:
        >>> each_in_a_thread(lambda n: n * torch.ones(2), [1, 2])
        [tensor([1., 1.]), tensor([2., 2.])]
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
def team(*, worth: bool) -> Iterator[Team]:
    """As many threads as torch has, or the calling one alone where more are not worth their start.

    They end with the block: a forked process inherits none, and callers in several threads wait for
    nobody.

    Example:
        >>> done = []
        >>> with team(worth=True) as threads:
        ...     threads.do(done.append, [1, 2, 3])
        >>> sorted(done)
        [1, 2, 3]
    """
    size = torch.get_num_threads() if worth else 1
    if size == 1:
        yield Team(1, None)
        return
    with ThreadPoolExecutor(size) as pool:
        yield Team(size, pool)


def ranges(total: int, parts: int, *, multiple: int = 1) -> list[tuple[int, int]]:
    """Cut 0 to `total` into at most `parts` ranges of like length, at multiples of a number.

    Example:
        >>> ranges(7, 2), ranges(100, 3, multiple=16)
        ([(0, 4), (4, 7)], [(0, 48), (48, 96), (96, 100)])
    """
    length = max(1, -(-total // (parts * multiple))) * multiple
    return [(first, min(first + length, total)) for first in range(0, total, length)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run what is inside on one thread, then give back the number of threads there was.

    After each operation that torch splits among threads, they wait for the last one. For
    operations of microseconds a second thread gains little; on a busy machine, where a waiting
    thread may have lost its core, it makes them ten to a hundred times slower. The setting is the
    process's: where blocks of several Python threads overlap, the last one to end gives it back.

    Example:
        >>> before = torch.get_num_threads()
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
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
