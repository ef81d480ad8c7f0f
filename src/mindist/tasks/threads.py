"""Keep torch on one thread where its operations are many and short."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside: list[int] = []  # for each block that runs now, the number of threads before the first


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
