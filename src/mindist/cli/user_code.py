"""The user's own code, named as `file.py:attribute` or `module:attribute`: load it.

Only what is named on the command line is ever executed. Artefacts remember names as text, for
messages; they are not followed.
"""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from mindist.cli.errors import USER_FILES, UsageError, place_in_user_code


def load_user_code(name: str, option: str) -> Any:
    """Return the object of that name; executes the file or imports the module.

    Arguments:
        name: Such as `"model.py:summary"`.
        option: Where it was named, for messages.
    """
    where = name.rpartition(":")[0]
    if where.endswith(".py"):
        USER_FILES.add(Path(where).expanduser().resolve())
    try:
        thing = load_named(name, option)
    except ValueError as error:
        if place_in_user_code(error) is not None:
            raise
        raise UsageError(str(error)) from error
    file = getattr(sys.modules.get(where), "__file__", None)
    if file is not None:
        USER_FILES.add(Path(file).resolve())
    return thing


def load_named(name: str, argument: str) -> Any:
    """Return the object that a name of the command line stands for; its code is executed.

    Functions of a file are not importable elsewhere: they are sent to other processes by value.

    Arguments:
        name: Such as `"package.model:simulator"` or `"model.py:task.simulate"`.
        argument: Of the command, for error messages.

    Example:
        >>> load_named("math:pi", "PRIOR")
        3.141592653589793
        >>> load_named("math", "PRIOR")
        Traceback (most recent call last):
            ...
        ValueError: PRIOR: expected module:attribute or file.py:attribute, got 'math'.
    """
    where, colon, attribute = name.rpartition(":")
    if not (where and colon and attribute):
        raise ValueError(
            f"{argument}: expected module:attribute or file.py:attribute, got {name!r}."
        )
    module = _run(Path(where), argument) if where.endswith(".py") else _import(where, argument)
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        raise ValueError(f"{argument}: {where} has no {attribute!r}. {_known(module)}") from None


def _known(module: ModuleType) -> str:
    """Say what a module defines; what it has imported as a whole is left out."""
    mine = [k for k, v in vars(module).items() if k[0] != "_" and not isinstance(v, ModuleType)]
    return f"It has {', '.join(sorted(mine)[:20])}." if mine else "It defines nothing."


_files: dict[Path, ModuleType] = {}  # each is executed once: its parts may belong together


def _run(path: Path, argument: str) -> ModuleType:
    path = path.expanduser().resolve()
    if path in _files:
        return _files[path]
    if not path.is_file():
        raise ValueError(f"{argument}: there is no file {path}.")
    # Not in sys.modules: its functions are pickled by value. Its neighbours can be imported.
    module = ModuleType(f"{path.stem} (named on the command line)")
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), module.__dict__)
    _files[path] = module
    return module


def _import(name: str, argument: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise ValueError(f"{argument}: no module named {name!r}; a file ends in .py.") from None
