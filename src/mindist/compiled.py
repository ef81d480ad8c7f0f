"""Loops compiled by numba, which is imported here and by nobody else.

Imported only by files of compiled loops, which are themselves imported when they are first called:
`import mindist` does not pay for numba. A loop is compiled at its first call in an installation,
kept on disk until a file of loops changes, and holds no lock while it runs (`mindist.threads`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])
# What the compiler may do: fuse a product and a sum, and where the order of a sum does not matter
# reorder it, without which a sum is no vector instruction. NaN and infinity are always kept.
LITERAL: set[str] = set()
EXACT = {"contract"}
REORDERED = {"arcp", "contract", "nsz", "reassoc"}


def jit_literal(function: Function) -> Function:
    """Compile a function of arrays and numbers, each operation rounded as it is in any library."""
    return _compile(function, LITERAL)


def jit(function: Function) -> Function:
    """Compile a function of arrays and numbers; each sum is in the order of the code."""
    return _compile(function, EXACT)


def jit_reordered(function: Function) -> Function:
    """Compile a function of arrays and numbers; sums are in any order, the same at every call."""
    return _compile(function, REORDERED)


def _compile(function: Function, licence: set[str]) -> Function:
    options: dict[str, Any] = {"nogil": True, "fastmath": licence, "error_model": "numpy"}
    try:
        loop = numba.njit(cache=True, **options)(function)
        # Of what is kept numba asks whether the function's own file has changed, but the loops that
        # it calls are compiled into it: code of two versions together corrupts memory.
        kept: Any = getattr(getattr(loop, "_cache", None), "_cache_file", None)
        if hasattr(kept, "_source_stamp"):
            kept._source_stamp = _sources()
        return cast(Function, loop)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        return cast(Function, numba.njit(**options)(function))


@cache
def _sources() -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every file that is compiled."""
    folder = Path(__file__).parent
    own = [Path(__file__), *(folder / "features" / name for name in ("spans.py", "waves.py"))]
    files = sorted([*own, *folder.rglob("*_loops.py")])
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
