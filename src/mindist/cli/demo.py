"""`mindist demo`: what this is for, in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mindist.cli import options
from mindist.cli.errors import extra
from mindist.cli.output import print_json, say


def demo(
    out: Annotated[Path, typer.Option(help="The figure: .png, .svg or .pdf.")] = Path(
        "results/demo/figure1.png"
    ),
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Show a contaminated dataset, a wrong posterior, and the right one, in a minute."""
    with extra("demo"):
        from mindist.demo import run
    result = run(seed=seed, figure=out, tell=say if json else print)
    if json:
        rows = [{"epsilon": epsilon, "rmse": row} for epsilon, row in result.table.items()]
        print_json("demo", figure=result.figure, rows=rows, seconds=result.seconds)
