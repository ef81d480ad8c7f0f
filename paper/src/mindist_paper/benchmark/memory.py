"""The most memory that a call takes beyond what was there before it.

Measured in a process of its own (`mindist_paper.benchmark.child`), whose peak no earlier work has
raised. On Linux the peak is VmHWM of /proc/self/status, which belongs to the process image:
`ru_maxrss` is inherited from the parent. Elsewhere it is `ru_maxrss`; Windows has neither.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEGABYTE = 2**20


def peak_above(run: Callable[[], object]) -> float | None:
    """Megabytes that a call takes at its peak, its result included; None where nobody knows.

    Example:
        >>> peak = peak_above(lambda: bytearray(50 * MEGABYTE))
        >>> peak is None or peak > 40
        True
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc: give back what was freed but kept for later
    with contextlib.suppress(OSError):
        RESET.write_text("5")  # sets the peak to what is resident now
    before = resident()
    if before is None:
        return None
    result = run()
    after = peak()
    del result
    return None if after is None else max(0.0, (after - before) / MEGABYTE)


def limit_memory(share: float) -> None:
    """Let this process have no more than a share of the machine's memory, where that can be set.

    An allocation beyond it is an error in this process, and no other has to be ended for it.
    """
    if not STATUS.exists():
        return
    import resource  # no such module on Windows

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resource.setrlimit(resource.RLIMIT_AS, (int(share * total), resource.RLIM_INFINITY))


def resident() -> int | None:
    """Bytes in memory now; outside Linux the peak so far, which is not below it."""
    return _status("VmRSS") if STATUS.exists() else peak()


def peak() -> int | None:
    """The most bytes that were ever in memory."""
    if STATUS.exists():
        return _status("VmHWM")
    if sys.platform == "win32":
        return None
    import resource  # no such module on Windows

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1_024 * largest  # macOS counts in bytes


def _status(key: str) -> int | None:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1_024 * int(line.split()[1])
    return None


__all__ = ["MEGABYTE", "limit_memory", "peak", "peak_above", "resident"]
