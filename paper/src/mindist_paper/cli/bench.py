"""`mindist bench`: how fast it is."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mindist.cli.errors import check_choice, interruptible
from mindist.cli.options import Json
from mindist.cli.output import console, print_json, say

if TYPE_CHECKING:
    from mindist_paper.benchmark.record import Record


def bench(
    profile: Annotated[str, typer.Option(help="smoke or full.")] = "full",
    only: Annotated[
        list[str] | None, typer.Option(help="A group of rows; may be given several times.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; by default results/bench/PROFILE.")
    ] = None,
    json: Json = False,
) -> None:
    """How fast it is: ratios to other ways of doing the same, measured side by side."""
    from mindist_paper.benchmark.material import PROFILES
    from mindist_paper.benchmark.record import GROUPS, RECORD
    from mindist_paper.benchmark.record import run as run_benchmark

    check_choice(profile, tuple(PROFILES), "profile")
    for group in only or ():
        check_choice(group, GROUPS, "group")
    folder = Path("results/bench") / profile if out is None else out
    tell = say if json else lambda line: console().print(line, markup=False)
    with interruptible(f"Groups that were finished are in {folder}."):
        record = run_benchmark(profile, folder, only or GROUPS, tell)
    if json:
        content = json_module.loads((folder / RECORD).read_text(encoding="utf-8"))
        print_json("bench", out=folder, record=content)
        return
    _print_record(record)
    console().print(f"Written to {folder}: bench.json, table.md", markup=False)


def _print_record(record: Record) -> None:
    from rich.table import Table

    from mindist_paper.benchmark.record import HEADER, TITLES, cells

    for group, rows in record.groups.items():
        table = Table(title=TITLES.get(group, group), title_justify="left", box=None)
        for name in HEADER:
            right = name in ("threads", "value", "spread")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(cell.replace("**", "") for cell in cells(row)))
        console().print(table)
    console().print(record.about(), markup=False)
