"""What commands print: words or a JSON document on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console
from rich.table import Table

DELAY = 2.0  # seconds before a bar is shown: what is quicker needs none
PLAIN_WIDTH = 160  # of tables in a file or a pipe


def say(text: str) -> None:
    """A line for people who wait, on stderr."""
    print(text, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


def print_json(command: str, **values: Any) -> None:
    """One JSON document: what the command was, the version, and the result; NaN becomes null."""
    from mindist import __version__

    document = {"command": command, "mindist": __version__, **values}
    print(json.dumps(_plain(document), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """Values that JSON has, of tensors, arrays, paths and whatever else."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool) or value is None else str(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None
) -> None:
    """A table on stdout; all columns but the first are numbers, to the right."""
    if title is not None:
        print(title)
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)


def console() -> Console:
    """Stdout, as wide as the terminal, or wide enough for a file."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def bar(total: int, what: str) -> Any:
    """A bar with the time left, on a terminal, if it takes more than two seconds."""
    from tqdm.auto import tqdm

    return tqdm(desc=what, total=total, delay=DELAY, disable=not on_terminal(), leave=False)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A moving sign on a terminal, for steps of which nobody knows how long they take."""
    if not on_terminal():
        yield
        return
    with Console(stderr=True).status(f"{what} ..."):
        yield


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Send what libraries print to stderr: stdout is for the result."""
    with redirect_stdout(sys.stderr):
        yield


def number(value: Any) -> str:
    """Four digits.

    Example:
        >>> number(0.123456), number(1234567)
        ('0.1235', '1.235e+06')
    """
    return f"{float(value):.4g}"


def vector(values: Any) -> str:
    """A few numbers in brackets.

    Example:
        >>> vector([1.0, 0.25])
        '[1, 0.25]'
    """
    return f"[{', '.join(number(value) for value in values)}]"


__all__ = [
    "bar",
    "console",
    "number",
    "on_terminal",
    "print_json",
    "print_table",
    "prints_to_stderr",
    "say",
    "vector",
    "waiting",
]
