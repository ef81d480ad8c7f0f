"""The command line: parse, call, print, and no mathematics.

May import: everything, but within the functions of commands, so that `mindist --help` is quick.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError as error:  # the message is all that a user of the command wants to see
    install = "pip install 'mindist[cli]'"
    said = f"The command needs {error.name}, which is not installed. Install it with: {install}"
    raise SystemExit(said) from None

from typer import Option
from typer.core import TyperGroup

import mindist
from mindist.cli.commands import adapt, check, fit, report, sample, simulate, train
from mindist.cli.errors import UsageError, extra, spoken
from mindist.cli.options import Json, Seed
from mindist.cli.output import print_json, say

DATA, PAPER = "Your model and your data, in this order", "The paper"
FIGURE, VERSION = Path("results/demo/figure1.png"), "Say which, and exit."
ELSEWHERE = {  # the commands of mindist-paper
    "tasks": "List the paper's tasks.",
    "reproduce": "Run an experiment of the paper, or all.",
    "bench": "Measure how fast mindist is, in ratios.",
}


def _installed(name: str, explained: str) -> Any:
    """Return a command of mindist-paper, or one that says how to get it."""
    for entry in entry_points(group="mindist.commands", name=name):
        return entry.load()

    def missing(ctx: typer.Context) -> None:
        install = "pip install -c constraints.txt -e '.[cli,demo]' -e paper"
        said = f"`mindist {name}` belongs to mindist-paper, which is not installed."
        raise UsageError(f"{said} In a clone of the repository: {install}")

    missing.__doc__ = f"{explained} (Needs mindist-paper, which is not installed.)"
    return missing


class Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; --debug may stand anywhere, such as at the end of a line that failed."""
        rest = [word for word in args if word != "--debug"]
        return super().parse_args(ctx, ["--debug"] * (len(rest) < len(args)) + rest)

    def invoke(self, ctx: Any) -> Any:
        with spoken(debug=ctx.params.get("debug", False)):
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    epilog="Status: 0 fine, 1 an error, 2 a mistake in the command line, 3 (check) misspecified.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mindist {mindist.__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[bool, Option("--version", help=VERSION, callback=_version)] = False,
) -> None:
    """Minimum-distance summaries: check and repair amortised inference on suspicious data."""


def demo(
    out: Annotated[Path, Option(help="The figure: .png, .svg or .pdf.")] = FIGURE,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show a contaminated dataset, a wrong posterior, and the right one, in a minute."""
    with extra("demo"):
        from mindist.cli.demo import run
    result = run(seed=seed, figure=out, tell=say if json else print)
    if json:
        print_json("demo", **result)


for function in (simulate, fit, train, check, adapt, sample, report, demo):
    app.command(rich_help_panel=PAPER if function is demo else DATA)(function)
for name, explained in ELSEWHERE.items():
    app.command(name, rich_help_panel=PAPER)(_installed(name, explained))

__all__ = ["app"]
