"""Errors as sentences: what a command says when it fails, and with which status it leaves."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from mindist.cli.status import FAILURE, CommandError, StoppedError, UsageError
from mindist.cli.user_code import place_in_user_code
from mindist.cli.wording import in_words_of_the_command

# What mindist and the libraries below it raise with a text that is meant to be read.
MEANT_TO_BE_READ = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError)


@contextmanager
def spoken(*, debug: bool) -> Iterator[None]:
    """Turn every error inside into a message on stderr and a status, or with debug into itself.

    Arguments:
        debug: Let errors through, with their tracebacks.
    """
    try:
        with one_line_warnings():
            yield
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        leave(StoppedError("Stopped."))
    except Exception as error:
        if debug or hasattr(error, "show"):  # Typer's own errors show themselves
            raise
        leave(error)


def leave(error: Exception) -> None:
    """Say what went wrong, and exit."""
    lead = "" if isinstance(error, StoppedError) else "Error: "
    print(f"{lead}{describe(error)}", file=sys.stderr)
    raise typer.Exit(getattr(error, "status", FAILURE)) from None


def describe(error: Exception) -> str:
    """An error as a sentence, and where in the user's own code it arose."""
    text, kind = str(error).strip(), type(error).__name__
    if isinstance(error, CommandError):
        return text
    place = place_in_user_code(error)
    if place is not None:
        said = f"{kind}: {text}" if text else kind
        return f"{place} raised {said}\nThe whole traceback: the same command with --debug."
    if isinstance(error, MEANT_TO_BE_READ) and text:
        return in_words_of_the_command(text)
    return (
        f"{kind}: {text}\nThis may be a fault of mindist. The same command with --debug shows "
        "where it arose; please send that with a report."
    )


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn the failure of an import inside into the name of the extra to install.

    Example:
        >>> with extra("demo"):
        ...     import no_such_library
        Traceback (most recent call last):
            ...
        mindist.cli.status.CommandError: no_such_library is not installed. Install it with: pip ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed. Install it with: pip install 'mindist[{name}]'"
        ) from error


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Say what to do after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"Stopped. {advice}") from None


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings as one line each: where in the code they arose is of no use here."""

    def one_line(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"Note: {in_words_of_the_command(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = one_line
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def check_choice(value: str, known: Sequence[str], what: str) -> None:
    """Raise with the list of what is known, and what may have been meant.

    Example:
        >>> check_choice("gausian", ["gaussian", "sir"], "task")
        Traceback (most recent call last):
            ...
        mindist.cli.status.UsageError: Unknown task 'gausian'. Did you mean 'gaussian'? Known: ...
    """
    if value in known:
        return
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UsageError(f"Unknown {what} '{value}'.{hint} Known: {', '.join(known)}.")


__all__ = ["check_choice", "extra", "interruptible", "spoken"]
