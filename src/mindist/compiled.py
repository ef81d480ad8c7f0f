"""Loops compiled by numba.

Imported only by files of compiled loops, which are themselves imported when they are first called:
`import mindist` does not pay for numba. A loop is compiled at its first call in an installation
and kept on disk. It releases Python's lock, and threads over slices (`mindist.threads`) take the
place of numba's own parallel loops, not all of which survive a fork or calls from several threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])
# Sums may be reordered and products fused, so that loops vectorise; NaN and infinity are kept.
FAST = {"arcp", "contract", "nsz", "reassoc"}


def jit(function: Function) -> Function:
    """Compile a function of arrays and numbers, and keep it on disk where that is allowed."""
    options: dict[str, Any] = {"nogil": True, "fastmath": FAST, "error_model": "numpy"}
    try:
        compiled: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        compiled = numba.njit(**options)(function)
    return compiled


__all__ = ["jit"]
