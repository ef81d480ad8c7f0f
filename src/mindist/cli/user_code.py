"""Load the user's code, `file.py:attribute` or `module:attribute`; none but what is named runs."""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from mindist.cli.errors import USER_FILES, UsageError


def load_user_code(name: str, option: str) -> Any:
    """Return the object called so, such as `model.py:task.simulate`; `option` is for messages."""
    where, _, attribute = name.rpartition(":")
    if not (where and attribute):
        raise UsageError(f"{option}: expected module:attribute or file.py:attribute, got {name!r}.")
    module = _run(Path(where), option) if where.endswith(".py") else _import(where, option)
    if getattr(module, "__file__", None):
        USER_FILES.add(Path(str(module.__file__)).resolve())
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError:
        own = [k for k, v in vars(module).items() if k[0] != "_" and not isinstance(v, ModuleType)]
        known = f"It has {', '.join(sorted(own)[:20])}." if own else "It defines nothing."
        raise UsageError(f"{option}: {where} has no {attribute!r}. {known}") from None


_files: dict[Path, ModuleType] = {}  # each is executed once: its parts may belong together


def _run(path: Path, option: str) -> ModuleType:
    path = path.expanduser().resolve()
    if path in _files:
        return _files[path]
    if not path.is_file():
        raise UsageError(f"{option}: there is no file {path}.")
    # Not in sys.modules: its functions are pickled by value. Its neighbours can be imported.
    module = ModuleType(f"{path.stem} (named on the command line)")
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    USER_FILES.add(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), module.__dict__)
    _files[path] = module
    return module


def _import(name: str, option: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise UsageError(f"{option}: no module named {name!r}; a file ends in .py.") from None
