"""With which status a command leaves, and the errors that say so."""

from __future__ import annotations

WELL_SPECIFIED, FAILURE, USAGE_ERROR, MISSPECIFIED, INTERRUPTED = 0, 1, 2, 3, 130


class CommandError(Exception):
    """Something went wrong: status 1."""

    status = FAILURE


class UsageError(CommandError):
    """The command line asks for something that cannot be: status 2, and nothing was done."""

    status = USAGE_ERROR


class StoppedError(CommandError):
    """Ctrl-C, with what to do next: status 130."""

    status = INTERRUPTED


__all__ = [
    "FAILURE",
    "INTERRUPTED",
    "MISSPECIFIED",
    "USAGE_ERROR",
    "WELL_SPECIFIED",
    "CommandError",
    "StoppedError",
    "UsageError",
]
