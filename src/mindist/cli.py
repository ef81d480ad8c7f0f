"""The command line: parse, call, print.

Nothing heavy is imported before a command needs it, so that `mindist --help` is quick.
"""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as error:  # the message is all that a user of the command wants to see
    raise SystemExit(
        f"The command needs {error.name}, which is not installed. Install it with: "
        "pip install 'mindist[reproduce]'"
    ) from None

if TYPE_CHECKING:
    from mindist.benchmark.record import Record
    from mindist.experiments.experiment import Experiment

USAGE_ERROR = 2
FAILURE = 1
INTERRUPTED = 130

app = typer.Typer(
    help="Minimum-distance summaries: robust amortised inference, and the paper reproduced.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """Minimum-distance summaries: robust amortised inference, and the paper reproduced."""


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment of --list, or 'all'.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="Name every experiment.")] = False,
    profile: Annotated[str, typer.Option(help="smoke, quick or paper.")] = "quick",
    seeds: Annotated[int, typer.Option(help="Repetitions with other data.", min=1)] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; by default results/reproduce/PROFILE.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; by default one for each core.", min=1)
    ] = None,
) -> None:
    """Run an experiment of the paper, or all: rows, figure, table, configuration."""
    quieten()
    try:
        from mindist.experiments.experiment import PROFILES
        from mindist.experiments.registry import EXPERIMENTS
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed. Install it with: pip install 'mindist[reproduce]'")
    if list_:
        print_list(list(EXPERIMENTS.values()), PROFILES)
        return
    if not name:
        usage_error(f"Name an experiment, or 'all'. Known: {', '.join(EXPERIMENTS)}.")
    check_choice(name, (*EXPERIMENTS, "all"), "experiment")
    check_choice(profile, PROFILES, "profile")
    names = list(EXPERIMENTS) if name == "all" else [name]
    run(names, profile, seeds, out, workers or os.cpu_count() or 1, everything=name == "all")


def run(
    names: Sequence[str],
    profile: str,
    seeds: int,
    out: Path | None,
    workers: int,
    *,
    everything: bool,
) -> None:
    """Run experiments, with every foreseeable error as a message."""
    from mindist.evaluation.runner import FailedCellsError
    from mindist.experiments.output import OutputError
    from mindist.experiments.reproduce import Request, default_folder
    from mindist.experiments.reproduce import reproduce as run_all

    console = Console(highlight=False)
    folder = default_folder(profile) if out is None else out
    request = Request(names, profile, seeds, folder, workers, everything)
    try:
        run_all(request, lambda line: console.print(line, markup=False))
    except OutputError as error:
        usage_error(str(error))
    except (FailedCellsError, ImportError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def demo() -> None:
    """A contaminated dataset, a wrong posterior, and the right one, in two minutes."""
    quieten()
    try:
        from mindist.experiments.demo import main as run_demo
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed. Install it with: pip install 'mindist[demo]'")
    run_demo()


@app.command()
def bench(
    profile: Annotated[str, typer.Option(help="smoke or full.")] = "full",
    only: Annotated[
        list[str] | None, typer.Option(help="A group of rows; may be given several times.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; by default results/bench/PROFILE.")
    ] = None,
) -> None:
    """How fast it is: ratios to other ways of doing the same, measured side by side."""
    quieten()
    try:
        from mindist.benchmark.run import GROUPS
        from mindist.benchmark.run import run as run_benchmark
        from mindist.benchmark.sizes import PROFILES
    except ModuleNotFoundError as error:
        fail(f"{error.name} is not installed. Install it with: pip install 'mindist[reproduce]'")
    check_choice(profile, tuple(PROFILES), "profile")
    for group in only or ():
        check_choice(group, GROUPS, "group")
    folder = Path("results/bench") / profile if out is None else out
    console = Console(highlight=False)
    try:
        record = run_benchmark(
            profile, folder, only or GROUPS, lambda line: console.print(line, markup=False)
        )
    except (ImportError, OSError, RuntimeError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print(f"Stopped. Groups that were finished are in {folder}.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    print_record(record)
    console.print(f"Written to {folder}: bench.json, table.md, growth-*.png", markup=False)


@app.command()
def simulate(
    prior: Annotated[str, typer.Argument(help="module:attribute or file.py:attribute.")],
    simulator: Annotated[str, typer.Argument(help="One theta, or a batch, to data.")],
    summary: Annotated[str, typer.Argument(help="Datasets to summaries.")],
    num: Annotated[int, typer.Option(help="Datasets.", min=1)],
    n_obs: Annotated[int, typer.Option(help="Observations of each.", min=1)],
    out: Annotated[Path | None, typer.Option(help="Folder of the bank.")] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of everything random.", min=0)] = 0,
    keep: Annotated[str, typer.Option(help="embedding or data.")] = "embedding",
    chunk: Annotated[int | None, typer.Option(help="Datasets in a chunk.", min=1)] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for a simulation.")] = None,
    failures: Annotated[str, typer.Option(help="redraw, report or raise.")] = "redraw",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it takes: time, memory, disk.")
    ] = False,
) -> None:
    """Simulate datasets into a bank on disk, or go on with one; it executes the files it names."""
    quieten()
    if out is None and not dry_run:
        usage_error("Say where to: --out FOLDER, or what it takes: --dry-run.")
    from mindist import simulating
    from mindist.named import load_named

    settings: dict[str, Any] = {"n_obs": n_obs, "workers": workers, "seed": seed, "keep": keep}
    settings |= {"chunk": chunk, "time_limit": time_limit, "failures": failures}
    names = {"PRIOR": prior, "SIMULATOR": simulator, "SUMMARY": summary}
    try:
        p, x, s = (load_named(name, argument) for argument, name in names.items())
        if dry_run or out is None:
            print(simulating.estimate(p, x, s, num, **settings))
        else:
            print(simulating.simulate(p, x, s, num, out=out, **settings).report())
    except (ValueError, TypeError) as error:
        usage_error(str(error))
    except (ImportError, OSError, RuntimeError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def print_record(record: Record) -> None:
    """A table of ratios for each group."""
    from mindist.benchmark.table import HEADER, TITLES, cells, origin

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    for group, rows in record.groups.items():
        table = Table(title=TITLES.get(group, group), title_justify="left", box=None)
        for name in HEADER:
            right = name in ("threads", "value", "spread")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell.replace("**", "") for cell in cells(row)))
        console.print(table)
    console.print(origin(record), markup=False)


def quieten() -> None:
    """Show warnings as one line each: where in the code they arose is of no use here."""

    def one_line(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"Note: {message}", file=sys.stderr)

    warnings.showwarning = one_line
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)


def print_list(experiments: Sequence[Experiment], profiles: Sequence[str]) -> None:
    """What can be run, and how long it takes."""
    table = Table(
        title="Experiments; minutes on two cores, in this order (equal parts are computed once); "
        "~: estimated",
        title_justify="left",
        box=None,
    )
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it shows (where in the paper)", overflow="fold")
    for profile in profiles:
        table.add_column(profile, justify="right", no_wrap=True)
    for experiment in experiments:
        minutes = [
            "~" * (p in experiment.estimated) + f"{experiment.minutes[p]:g}" for p in profiles
        ]
        what = f"{experiment.shows} ({experiment.source})"
        table.add_row(experiment.name, what, *minutes)
    totals = [
        "~" * any(p in e.estimated for e in experiments)
        + f"{sum(e.minutes[p] for e in experiments):.3g}"
        for p in profiles
    ]
    table.add_row("all", "everything, and one page with all of it", *totals)
    width = None if sys.stdout.isatty() else 160
    Console(width=width).print(table)


def check_choice(value: str, known: Sequence[str], what: str) -> None:
    """Leave with the list of what is known, and what may have been meant."""
    if value in known:
        return
    close = difflib.get_close_matches(value, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    usage_error(f"Unknown {what} '{value}'.{hint} Known: {', '.join(known)}.")


def usage_error(message: str) -> NoReturn:
    """Leave with status 2."""
    print(message, file=sys.stderr)
    raise typer.Exit(USAGE_ERROR)


def fail(message: str) -> NoReturn:
    """Leave with status 1."""
    print(message, file=sys.stderr)
    raise typer.Exit(FAILURE)


if __name__ == "__main__":
    app()
