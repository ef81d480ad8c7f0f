"""The user's own code, named as `file.py:attribute` or `module:attribute`: load it, and blame it.

Only what is named on the command line is ever executed. Artefacts remember names as text, for
messages; they are not followed.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from mindist.cli.status import UsageError
from mindist.named import load_named

_named: set[Path] = set()  # files whose errors are the user's


def load_user_code(name: str, option: str) -> Any:
    """The object of that name; it executes the file or imports the module.

    Arguments:
        name: Such as `"model.py:summary"`.
        option: Where it was named, for messages.
    """
    where = name.rpartition(":")[0]
    if where.endswith(".py"):
        _named.add(Path(where).expanduser().resolve())
    try:
        thing = load_named(name, option)
    except ValueError as error:
        if place_in_user_code(error) is not None:
            raise
        raise UsageError(str(error)) from error
    file = getattr(sys.modules.get(where), "__file__", None)
    if file is not None:
        _named.add(Path(file).resolve())
    return thing


def place_in_user_code(error: BaseException) -> str | None:
    """Where in the user's files an error arose, in words; None if it did not arise there."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) in _named:
        return Path(error.filename).name
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in _named]
    if not own:
        return None
    last = own[-1]
    where = f"{Path(last.filename).name}, line {last.lineno},"
    return where if last.name == "<module>" else f"{last.name} ({where[:-1]})"


__all__ = ["load_user_code", "place_in_user_code"]
