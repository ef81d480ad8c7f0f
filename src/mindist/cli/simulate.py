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

A_SIMULATOR = "One theta to a dataset (N, ...)."
KEEP = "What is kept of the data; `data` is all, and can be large."
BANDWIDTH = "Of the kernel: median, '0.5 median', a number."
REPRESENTATION = "What the kernel sees: auto, raw, standardised, signed-log, ..."
FAILURES = "What becomes of draws that fail."
DRY_RUN = "Only say what it takes: time, memory, disk."


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
    keep: Annotated[Literal["embedding", "data"], Option(help=KEEP)] = "embedding",
    bandwidth: Annotated[str, Option(help=BANDWIDTH)] = "median",
    representation: Annotated[str, Option(help=REPRESENTATION)] = "auto",
    chunk: Annotated[int | None, Option(help="Datasets in a chunk.", min=1)] = None,
    time_limit: Annotated[float | None, Option(help="Seconds for a simulation.")] = None,
    failures: Annotated[Literal["redraw", "report", "raise"], Option(help=FAILURES)] = "redraw",
    dry_run: Annotated[bool, Option("--dry-run", help=DRY_RUN)] = False,
    json: options.Json = False,
) -> None:
    """Simulate datasets into a bank on disk, or go on with one. Executes the files it names."""
    if out is None and not dry_run:
        raise UsageError("Say where to: --out FOLDER, or what it takes: --dry-run.")
    function = need_summary(summary)
    loaded = load_user_code(prior, "PRIOR"), load_user_code(simulator, "SIMULATOR")
    sources = (*loaded, load_user_code(function, "--summary"))
    from mindist import MinimumDistance
    from mindist.simulation import build

    # The estimator that the bank is for decides how data are embedded.
    width = number_or_word(bandwidth)
    mds = MinimumDistance(sources[2], bandwidth=width, representation=representation)
    settings: dict[str, Any] = {"n_obs": n_obs, "workers": workers, "seed": seed, "keep": keep}
    settings |= {"failures": failures, "chunk": chunk, "time_limit": time_limit, "mds": mds}
    if out is None or dry_run:
        _print_estimate(build.estimate(*sources, num, **settings), n_obs, json)
        return
    begin = time.monotonic()
    with interruptible("The same command goes on from here."), extra("bank"):
        bank = build.simulate(*sources, num, out=out, **settings)
    _print_bank(bank, out, time.monotonic() - begin, json)


def number_or_word(text: str) -> float | str:
    """Return a bandwidth: a number, or a rule in words such as `0.5 median`."""
    try:
        return float(text)
    except ValueError:
        return text


def _print_estimate(expected: Any, n_obs: int, json: bool) -> None:
    """Say what a bank would take."""
    if json:
        schema, took = expected.schema, {"seconds_each": expected.each, "timed": expected.timed}
        sizes = {"memory_bytes": int(expected.memory), "disk_bytes": int(expected.disk)}
        size = {"datasets": schema.num, "n_obs": n_obs, "chunks": schema.num_chunks}
        print_json("simulate", dry_run=True, **size, seconds=expected.seconds, **took, **sizes)
    else:
        print(expected)


def _print_bank(bank: Any, out: Path, seconds: float, json: bool) -> None:
    """Say what is there."""
    if not json:
        print(f"{bank.report()} They are in {out} ({seconds:.0f} s).")
        return
    failed = Counter(failure.kind for failure in bank.failures)
    shapes = {"theta": bank.theta.shape[1:], "s": bank.s.shape[1:]}
    sizes = {"datasets": int(bank.valid[:].sum()), "n_obs": bank.num_obs, "shapes": shapes}
    print_json("simulate", dry_run=False, out=out, **sizes, failed=dict(failed), seconds=seconds)
