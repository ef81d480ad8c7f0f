"""One thread at a time asks a posterior.

A fitted `MinimumDistance` may be used by any number of threads at once. The library behind a
posterior may not: it draws from torch's global generator, which all threads share, keeps the
condition of a query in the posterior, and what silences its warnings is shared as well. So threads
take turns there, and each gets what it would get alone. Adapting, which is most of the work, takes
no turn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Turns:
    """A lock that its holder may take again, and that a forked process finds free."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.RLock()


_TURNS = _Turns()


@contextmanager
def my_turn() -> Iterator[None]:
    """Wait until no other thread asks a posterior, and keep others waiting.

    Example:
        >>> with my_turn(), my_turn():  # a query may be part of another
        ...     print("asking")
        asking
    """
    with _TURNS.lock:
        yield


__all__ = ["my_turn"]
