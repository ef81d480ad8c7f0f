"""The command line: parse, call, print; one file for each command, and no mathematics.

May import: everything, but within the functions of commands, so that `mindist --help` is quick.
"""

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ModuleNotFoundError as error:  # the message is all that a user of the command wants to see
    raise SystemExit(
        f"The command needs {error.name}, which is not installed. Install it with: "
        "pip install 'mindist[cli]'"
    ) from None

from mindist.cli.app import app

__all__ = ["app"]
