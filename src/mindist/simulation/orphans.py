"""Workers that end with the process that started them, even if it was killed."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from functools import cache

SECONDS = 2.0  # between two looks


@cache
def end_with_parent() -> None:
    """In a worker of loky, end this process soon after its parent; elsewhere do nothing.

    loky's own workers finish what they do and wait for five minutes: a chunk may take hours, and
    its outcome would belong to nobody.
    """
    if multiprocessing.current_process().name.startswith("LokyProcess"):
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os._exit(1)


__all__ = ["end_with_parent"]
