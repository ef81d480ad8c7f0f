"""`mindist simulate`, `fit` and `train`: from a simulator to a bank, an estimator, a posterior."""

import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import mindist
from mindist.cli import options
from mindist.cli.errors import UsageError, check_choice, extra, interruptible
from mindist.cli.options import load_user_code, need_summary
from mindist.cli.output import number, on_terminal, say, tell, waiting

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
    from mindist.simulation import build

    # The estimator that the bank is for decides how data are embedded.
    width = number_or_word(bandwidth)
    mds = mindist.MinimumDistance(sources[2], bandwidth=width, representation=representation)
    settings: dict[str, Any] = {"n_obs": n_obs, "workers": workers, "seed": seed, "keep": keep}
    settings |= {"failures": failures, "chunk": chunk, "time_limit": time_limit, "mds": mds}
    values: dict[str, Any] = {"dry_run": out is None or dry_run}
    if out is None or dry_run:
        expected = build.estimate(*sources, num, **settings)
        values |= {"datasets": num, "n_obs": n_obs, "chunks": expected.schema.num_chunks}
        values |= {"seconds": expected.seconds, "seconds_each": expected.each}
        values |= {"timed": expected.timed, "memory_bytes": int(expected.memory)}
        tell("simulate", expected, json, **values, disk_bytes=int(expected.disk))
        return
    begin = time.monotonic()
    with interruptible("The same command goes on from here."), extra("bank"):
        bank = build.simulate(*sources, num, out=out, **settings)
    seconds = time.monotonic() - begin
    values |= {"out": out, "datasets": int(bank.valid[:].sum()), "n_obs": bank.num_obs}
    values["shapes"] = {"theta": bank.theta.shape[1:], "s": bank.s.shape[1:]}
    values["failed"] = dict(Counter(failure.kind for failure in bank.failures))
    words = f"{bank.report()} They are in {out} ({seconds:.0f} s)."
    tell("simulate", words, json, **values, seconds=seconds)


def number_or_word(text: str) -> float | str:
    """Return a bandwidth: a number, or a rule in words such as `0.5 median`."""
    try:
        return float(text)
    except ValueError:
        return text


MAX_EPOCHS = 2**31 - 1
ANOTHER = "Another than the bank was simulated with."
PRESET = "The best we know, or the paper to the letter (--keep data)."
ALPHA, SEED = f"{options.LEVEL}0.05 by default.", f"{options.RANDOM}; else as of the bank."
ESTIMATOR = "One of sbi's: nsf, maf, mdn, zuko_nsf, ..."
SELFTESTED = "Test it on contaminated simulations; say what it mends."
EPOCHS = "At most; else until it no longer improves."
EMBEDDING = ("bandwidth", "representation", "num_features", "frequencies", "seed")


def fit(
    bank: options.BankFolder,
    out: Annotated[Path, Option(help="Folder of the fitted estimator.")],
    summary: options.Summary = None,
    preset: Annotated[Literal["default", "paper"], Option(help=PRESET)] = "default",
    bandwidth: Annotated[str | None, Option(help=ANOTHER)] = None,
    representation: Annotated[str | None, Option(help=ANOTHER)] = None,
    alpha: Annotated[float | None, Option(min=0, max=1, help=ALPHA)] = None,
    seed: Annotated[int | None, Option(min=0, help=SEED)] = None,
    selftest: Annotated[bool, Option("--selftest", help=SELFTESTED)] = False,
    json: options.Json = False,
) -> None:
    """Fit a minimum-distance estimator to a bank of simulations: it can then check any data."""
    with waiting("Opening the bank"), extra("bank"):
        simulations = options.open_bank(bank)
    known = simulations.config.get("functions", {}).get("summary")  # its file is not known
    own = f"file.py:{known}" if isinstance(known, str) and known.isidentifier() else None
    name = need_summary(summary, own, bank)
    function = load_user_code(name, "--summary")
    width = None if bandwidth is None else number_or_word(bandwidth)
    asked = {"bandwidth": width, "representation": representation, "seed": seed, "alpha": alpha}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if preset == "paper":
        if "representation" in given:
            raise UsageError("--representation: the paper's preset has its own. Leave it out.")
        mds = mindist.MinimumDistance.paper(function, **given)
    else:  # embed as the bank's embeddings were made, unless told not to
        stored = simulations.config.get("embedding", {})
        given = {k: stored[k] for k in EMBEDDING if k in stored} | given
        mds = mindist.MinimumDistance(function, **given)
    begin = time.monotonic()
    if on_terminal():
        say("Fitting: choosing what the kernel sees, reading the bank, calibrating ...")
    mds.fit(simulations, progress=on_terminal())
    mds.save(out)
    options.write_note(out, summary=name, bank=str(bank))
    tested = {}
    if selftest:
        with waiting("Contaminating simulations on purpose"):
            tested["selftest"] = mds.selftest().to_dict()
        options.write_note(out, options.SELFTEST, **tested["selftest"])
    seconds, num, dim = time.monotonic() - begin, len(simulations), simulations.s.shape[1]
    n_obs, shape = mds.fitted_.num_obs, tuple(mds.event_shape)
    width = float(mds.fitted_.features.bandwidth)
    words = (
        f"Fitted to {num:,} datasets of {n_obs} observations of shape {shape}, with summaries of "
        f"length {dim}; bandwidth {number(width)}. It is in {out} ({seconds:.0f} s)."
    )
    words += f"\n\n{mds.selftest_}" if selftest else ""
    sizes = {"datasets": num, "n_obs": n_obs, "event_shape": shape, "dim_summary": dim}
    level = {"alpha": mds.alpha, "threshold": mds.fitted_.null.threshold(mds.alpha, n_obs)}
    kernel = {"bandwidth": width, "seed": mds.seed}
    tell("fit", words, json, out=out, **sizes, **level, **kernel, seconds=seconds, **tested)


def train(
    bank: options.BankFolder,
    out: Annotated[Path, Option(help="Folder of the posterior.")],
    prior: options.Prior = None,
    density_estimator: Annotated[str, Option(help=ESTIMATOR)] = "nsf",
    max_epochs: Annotated[int | None, Option(help=EPOCHS, min=1)] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Train a neural posterior (sbi's NPE) on the summaries of a bank."""
    if prior is None:
        raise UsageError("Name the prior that the bank was simulated with: --prior file.py:name.")
    with waiting("Loading sbi"), extra("cli"):
        from mindist.posteriors.sbi_storage import ESTIMATORS, save_posterior
        from mindist.posteriors.sbi_training import check_prior, train_npe
    check_choice(density_estimator, ESTIMATORS, "density estimator")
    simulations = options.open_bank(bank)
    distribution = options.load_prior(prior)
    check_prior(distribution, simulations.theta.shape[1:], "bank")
    begin = time.monotonic()
    how: Any = {"density_estimator": density_estimator, "seed": seed}
    how |= {"max_num_epochs": max_epochs or MAX_EPOCHS, "show_progress": on_terminal()}
    with redirect_stdout(sys.stderr):  # sbi prints; stdout is for the result
        posterior = train_npe(distribution, simulations, **how)
    save_posterior(out, posterior, density_estimator=density_estimator)
    options.write_note(out, prior=prior, bank=str(bank))
    seconds, num = time.monotonic() - begin, len(simulations)
    dim_theta, dim_s = simulations.theta.shape[1], simulations.s.shape[1]
    words = (
        f"Trained on {num:,} datasets: {dim_theta} parameters given {dim_s} summaries "
        f"({density_estimator}). It is in {out} ({seconds:.0f} s)."
    )
    sizes = {"datasets": num, "dim_theta": dim_theta, "dim_s": dim_s, "seconds": seconds}
    tell("train", words, json, out=out, density_estimator=density_estimator, **sizes)
