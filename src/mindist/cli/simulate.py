"""`mindist simulate`: prior, simulator and summary into a bank of simulations."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from mindist.cli import options
from mindist.cli.artefacts import need_summary
from mindist.cli.errors import UsageError, extra, interruptible
from mindist.cli.output import print_json
from mindist.cli.user_code import load_user_code

Sources = tuple[Any, Any, Any]  # prior, simulator, summary
A_SIMULATOR = "One theta to a dataset (N, ...)."


def simulate(
    prior: Annotated[
        str, Argument(metavar="PRIOR", help=f"{options.NAME} or module:name. {options.A_PRIOR}")
    ],
    simulator: Annotated[str, Argument(metavar="SIMULATOR", help=f"{options.NAME}. {A_SIMULATOR}")],
    num: Annotated[int, Option(help="How many datasets.", min=1)],
    n_obs: Annotated[int, Option(help="Observations of each.", min=1)],
    summary: options.Summary = None,
    out: Annotated[Path | None, Option(help="Folder of the bank.")] = None,
    workers: Annotated[int, Option(help="Processes.", min=1)] = 1,
    seed: options.Seed = 0,
    keep: Annotated[
        Literal["embedding", "data"],
        Option(help="What is kept of the data; `data` is all, and can be large."),
    ] = "embedding",
    bandwidth: Annotated[
        str, Option(help="Of the kernel: median, '0.5 median', '95% efficient', a number.")
    ] = "median",
    representation: Annotated[
        str, Option(help="What the kernel sees: auto, raw, standardised, signed-log, ...")
    ] = "auto",
    chunk: Annotated[int | None, Option(help="Datasets in a chunk.", min=1)] = None,
    time_limit: Annotated[float | None, Option(help="Seconds for a simulation.")] = None,
    failures: Annotated[
        Literal["redraw", "report", "raise"], Option(help="What becomes of draws that fail.")
    ] = "redraw",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what it takes: time, memory, disk.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Simulate datasets into a bank on disk, or go on with one. Executes the files it names."""
    if out is None and not dry_run:
        raise UsageError("Say where to: --out FOLDER, or what it takes: --dry-run.")
    function = need_summary(summary)
    loaded = load_user_code(prior, "PRIOR"), load_user_code(simulator, "SIMULATOR")
    sources = (*loaded, load_user_code(function, "--summary"))
    from mindist import MinimumDistance

    # The estimator that the bank is for decides how data are embedded.
    width = number_or_word(bandwidth)
    mds = MinimumDistance(sources[2], bandwidth=width, representation=representation)
    settings: dict[str, Any] = {"n_obs": n_obs, "workers": workers, "seed": seed, "keep": keep}
    settings |= {"failures": failures, "chunk": chunk, "time_limit": time_limit, "mds": mds}
    if out is None or dry_run:
        _estimate(sources, num, settings, json)
    else:
        _build(sources, num, settings, out, json)


def number_or_word(text: str) -> float | str:
    """Return a bandwidth: a number, or a rule in words such as `0.5 median`."""
    try:
        return float(text)
    except ValueError:
        return text


def _estimate(sources: Sources, num: int, settings: dict[str, Any], json: bool) -> None:
    """Say what a bank would take."""
    from mindist.simulation import build as banks

    expected = banks.estimate(*sources, num, **settings)
    if json:
        schema, took = expected.schema, {"seconds_each": expected.each, "timed": expected.timed}
        sizes = {"memory_bytes": int(expected.memory), "disk_bytes": int(expected.disk)}
        size = {"datasets": schema.num, "n_obs": settings["n_obs"], "chunks": schema.num_chunks}
        print_json("simulate", dry_run=True, **size, seconds=expected.seconds, **took, **sizes)
    else:
        print(expected)


def _build(sources: Sources, num: int, settings: dict[str, Any], out: Path, json: bool) -> None:
    """Simulate, and say what is there."""
    from mindist.simulation import build as banks

    begin = time.monotonic()
    with interruptible("The same command goes on from here."), extra("bank"):
        bank = banks.simulate(*sources, num, out=out, **settings)
    seconds = time.monotonic() - begin
    if not json:
        print(f"{bank.report()} They are in {out} ({seconds:.0f} s).")
        return
    failed = Counter(failure.kind for failure in bank.failures)
    there = int(bank.valid[:].sum())
    shapes = {"theta": bank.theta.shape[1:], "s": bank.s.shape[1:]}
    sizes = {"datasets": there, "n_obs": bank.num_obs, "shapes": shapes}
    print_json("simulate", dry_run=False, out=out, **sizes, failed=dict(failed), seconds=seconds)
