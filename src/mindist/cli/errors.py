"""Errors as sentences: what a command says when it fails, and with which status it leaves."""

import difflib
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

FAILURE, MISSPECIFIED = 1, 3  # 0: fine, or well specified

# What mindist and the libraries below it raise with a text that is meant to be read.
MEANT_TO_BE_READ = (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError)

USER_FILES: set[Path] = set()  # named on the command line: their errors are the user's

# The Python argument at the head of a message, and what a command calls it; "" where the sentence
# that follows says it all.
SAME = ("alpha", "bandwidth", "columns", "key", "names", "out", "posterior", "representation")
HEADS = dict.fromkeys(("path", "missing", "trust", "x"), "")
HEADS |= {name: f"--{name}: " for name in (*SAME, "summary")}
HEADS |= {"dataset": "--dataset-column: ", "theta_names": "--names: "}
HEADS |= {"prior": "PRIOR: ", "simulator": "SIMULATOR: "}
PHRASES = {
    "Pass missing='drop' to leave": "Use --missing drop to leave",
    "Choose it with columns=[...]": "Choose it with --columns NAME",
    "with columns=[...]": "with --columns NAME,NAME",
    "; say which of the two it takes by vectorised=True or False": "",
    "pass a larger max_bytes": "read it in Python with a larger max_bytes",
    "pass trust=True": "add --trust",
    "prior: expected one of parameters": "--prior: expected one of parameters",
    "keep='data'": "--keep data",
    "time_limit": "--time-limit",
    "he same call": "he same command",
    "Call mindist.simulate again with the same arguments: it continues": (
        "Run the `mindist simulate` that began it again: it continues"
    ),
    "The call of mindist.simulate that wrote it": "The `mindist simulate` that wrote it",
}


class CommandError(Exception):
    status = 1


class UsageError(CommandError):  # the command line asks for what cannot be; nothing was done
    status = 2


class StoppedError(CommandError):  # Ctrl-C, with what to do next
    status = 130


@contextmanager
def spoken(*, debug: bool) -> Iterator[None]:
    """Turn errors inside into a message on stderr and a status (debug lets them through)."""
    try:
        with warnings.catch_warnings():  # where in the code they arose is of no use here
            warnings.showwarning = lambda message, *_, **__: print(
                f"Note: {in_words_of_the_command(str(message))}", file=sys.stderr
            )
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", category=DeprecationWarning)
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
    lead = "" if isinstance(error, StoppedError) else "Error: "
    print(f"{lead}{describe(error)}", file=sys.stderr)
    raise typer.Exit(getattr(error, "status", FAILURE)) from None


def describe(error: Exception) -> str:
    text, kind = str(error).strip(), type(error).__name__
    if isinstance(error, CommandError):
        return text
    if place := place_in_user_code(error):
        said = f"{kind}: {text}" if text else kind
        return f"{place} raised {said}\nThe whole traceback: the same command with --debug."
    if isinstance(error, MEANT_TO_BE_READ) and text:
        return in_words_of_the_command(text)
    then = "The same command with --debug shows where it arose; please send that with a report."
    return f"{kind}: {text}\nThis may be a fault of mindist. {then}"


def place_in_user_code(error: BaseException) -> str | None:
    """Say where in the user's files an error arose; None if it did not arise there."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) in USER_FILES:
        return Path(error.filename).name
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in USER_FILES]
    if not own:
        return None
    where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}"
    return f"{where}," if own[-1].name == "<module>" else f"{own[-1].name} ({where})"


def in_words_of_the_command(text: str) -> str:
    for phrase, words in PHRASES.items():
        text = text.replace(phrase, words)
    head, _, rest = text.partition(": ")
    return HEADS[head] + rest if head in HEADS else text


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn the failure of an import inside into the name of the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        install = f"pip install 'mindist[{name}]'"
        raise CommandError(f"{error.name} is not installed. Install it with: {install}") from error


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"Stopped. {advice}") from None


def check_choice(value: str, known: Sequence[str], what: str) -> None:
    """Raise with the list of what is known, and what may have been meant."""
    if value in known:
        return
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UsageError(f"Unknown {what} '{value}'.{hint} Known: {', '.join(known)}.")
