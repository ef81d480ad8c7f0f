"""`mindist reproduce`: the experiments of the paper."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mindist.cli.errors import UsageError, check_choice, interruptible
from mindist.cli.options import Json
from mindist.cli.output import console, on_terminal, print_json, print_table, say

if TYPE_CHECKING:
    from mindist_paper.experiments.experiment import Experiment

    List = Sequence[Experiment]


def reproduce(
    name: Annotated[str, typer.Argument(help="One of --list, or 'all' of the paper.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="Name every experiment.")] = False,
    profile: Annotated[str, typer.Option(help="smoke, quick or paper.")] = "quick",
    seeds: Annotated[
        int, typer.Option(help="Repetitions with other data: seeds 0, 1, ...", min=1)
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; by default results/reproduce/PROFILE.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; by default one for each core.", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Run an experiment of the paper, or all: rows, figure, table, configuration."""
    from mindist_paper.experiments.experiment import PROFILES
    from mindist_paper.experiments.registry import EXPERIMENTS, OTHERS
    from mindist_paper.experiments.reproduce import Request, default_folder

    known = (*EXPERIMENTS, *OTHERS)
    if list_:
        show = _list_json if json else _print_list
        show([*EXPERIMENTS.values()], [*OTHERS.values()], PROFILES)
        return
    if not name:
        raise UsageError(f"Name an experiment, or 'all'. Known: {', '.join(known)}.")
    check_choice(name, (*known, "all"), "experiment")
    check_choice(profile, PROFILES, "profile")
    names = list(EXPERIMENTS) if name == "all" else [name]
    folder = default_folder(profile) if out is None else out
    if name in OTHERS:
        _run_other(name, folder / name, profile, json)
        return
    processes = workers or os.cpu_count() or 1
    request = Request(names, profile, seeds, folder, processes, everything=name == "all")
    results = _run(request, say if json else _print_line)
    if json:
        print_json("reproduce", profile=profile, out=folder, experiments=results)


def _print_line(line: str) -> None:
    console().print(line, markup=False)


def _run(request: Any, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run experiments; return what became of each as JSON values."""
    from mindist_paper.experiments.reproduce import OutputError
    from mindist_paper.experiments.reproduce import reproduce as run_all

    with interruptible("The same command goes on from here."):
        try:
            results = run_all(request, tell, progress=on_terminal())
        except OutputError as error:
            raise UsageError(str(error)) from error
    return [
        {
            "name": name,
            "folder": None if result.folder is None else str(result.folder),
            "verdict": None if result.skipped else result.section.verdict,
            "seconds": result.section.seconds,
            "skipped": result.skipped,
        }
        for name, result in zip(request.names, results, strict=True)
    ]


def _run_other(name: str, folder: Path, profile: str, json: bool) -> None:
    """Run the zoo or a published benchmark, and show the verdict."""
    from mindist_paper.zoo.run import PROFILES, run_benchmark, run_zoo

    settings, tell = PROFILES[profile], say if json else _print_line
    with interruptible("The same command goes on from here."):
        if name == "zoo":
            verdict = run_zoo(folder, settings, tell=tell)
        else:
            verdict = run_benchmark(folder, name, settings, tell)
    if json:
        print_json("reproduce", profile=profile, out=folder, verdict=verdict)
    else:
        print("\n".join(verdict))


def _list_json(all_: List, others: List, profiles: Sequence[str]) -> None:
    rows = []
    for e in [*all_, *others]:
        minutes = dict(zip(profiles, e.minutes, strict=True))
        rows.append({"name": e.name, "shows": e.shows, "source": e.source, "minutes": minutes})
    print_json("reproduce", experiments=rows)


def _print_list(all_: List, others: List, profiles: Sequence[str]) -> None:
    rows, totals = [], []
    for index, profile in enumerate(profiles):
        guess = any(profile in e.estimated for e in all_)
        totals.append("~" * guess + f"{sum(e.minutes[index] for e in all_):.3g}")
    for e in [*all_, *others]:
        pairs = zip(profiles, e.minutes, strict=True)
        minutes = ["~" * (profile in e.estimated) + f"{number:g}" for profile, number in pairs]
        rows.append([f"{e.name}: {e.shows} ({e.source})", *minutes])
    rows.append(["all: everything of the paper, and one page with all of it", *totals])
    title = "Experiments; minutes on two cores, equal parts are computed once; ~: estimated"
    print_table(("name: what it shows (where in the paper)", *profiles), rows, title=title)
