"""`mindist bench`: how fast it is."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from mindist.cli.errors import check_choice, interruptible
from mindist.cli.options import Json
from mindist.cli.output import console, print_json, print_table, say


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
    from mindist_paper.benchmark.record import GROUPS, HEADER, RECORD, TITLES, cells
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
    for group, rows in record.groups.items():
        plain = [[cell.replace("**", "") for cell in cells(row)] for row in rows]
        print_table(HEADER, plain, title=TITLES.get(group, group))
    print(record.about())
    print(f"Written to {folder}: bench.json, table.md")
