"""Public names that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def importer(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Arguments:
        package: Its name.
        homes: For each of its modules, the public names that are defined there.

    Example:
        >>> get, names = importer("json", {"decoder": ["JSONDecoder"]})
        >>> get("JSONDecoder")
        <class 'json.decoder.JSONDecoder'>
        >>> get("Coder")
        Traceback (most recent call last):
            ...
        AttributeError: module 'json' has no attribute 'Coder'
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names


__all__ = ["importer"]
