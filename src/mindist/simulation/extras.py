"""Libraries that only a bank needs, imported when it does, with a message that names the extra."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def need(name: str, extra: str = "bank") -> Any:
    """Import a module, or say what to install.

    Example:
        >>> need("no_such_library")
        Traceback (most recent call last):
            ...
        ImportError: Simulation banks need no_such_library. Install it with: pip install
        'mindist[bank]'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        raise ImportError(
            f"Simulation banks need {missing}. Install it with: pip install 'mindist[{extra}]'"
            + (
                " (Python 3.11 or newer)"
                if missing == "zarr" and sys.version_info < (3, 11)
                else ""
            )
        ) from error


__all__ = ["need"]
