"""`mindist fit` and `mindist train`: from a bank of simulations to an estimator and a posterior."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from mindist.cli import options
from mindist.cli.artefacts import SELFTEST, load_prior, need_summary, open_bank, write_note
from mindist.cli.errors import UsageError, check_choice, extra
from mindist.cli.output import number, on_terminal, print_json, say, waiting
from mindist.cli.simulate import number_or_word
from mindist.cli.user_code import load_user_code

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
        simulations = open_bank(bank)
    known = simulations.config.get("functions", {}).get("summary")  # its file is not known
    own = f"file.py:{known}" if isinstance(known, str) and known.isidentifier() else None
    name = need_summary(summary, own, bank)
    function = load_user_code(name, "--summary")
    width = None if bandwidth is None else number_or_word(bandwidth)
    given = {"bandwidth": width, "representation": representation, "seed": seed, "alpha": alpha}
    given = {option: value for option, value in given.items() if value is not None}
    mds = _estimator(function, simulations, preset, given)
    begin = time.monotonic()
    if on_terminal():
        say("Fitting: choosing what the kernel sees, reading the bank, calibrating ...")
    mds.fit(simulations, progress=on_terminal())
    mds.save(out)
    write_note(out, summary=name, bank=str(bank))
    if selftest:
        with waiting("Contaminating simulations on purpose"):
            write_note(out, SELFTEST, **mds.selftest().to_dict())
    _print_fit(mds, simulations, out, time.monotonic() - begin, json=json)


def _estimator(summary: Any, bank: Any, preset: str, given: dict[str, Any]) -> Any:
    """Make an estimator that embeds as the bank's embeddings were made unless told not to."""
    from mindist import MinimumDistance

    if preset == "paper":
        if "representation" in given:
            raise UsageError("--representation: the paper's preset has its own. Leave it out.")
        return MinimumDistance.paper(summary, **given)
    stored = bank.config.get("embedding", {})
    return MinimumDistance(summary, **{k: stored[k] for k in EMBEDDING if k in stored} | given)


def _print_fit(mds: Any, bank: Any, out: Path, seconds: float, *, json: bool) -> None:
    n_obs, shape, dim = mds.fitted_.num_obs, tuple(mds.event_shape), bank.s.shape[1]
    bandwidth = float(mds.fitted_.features.bandwidth)
    if json:
        sizes = {"datasets": len(bank), "n_obs": n_obs, "event_shape": shape, "dim_summary": dim}
        level = {"alpha": mds.alpha, "threshold": mds.fitted_.null.threshold(mds.alpha, n_obs)}
        kernel = {"bandwidth": bandwidth, "seed": mds.seed}
        tested = {"selftest": mds.selftest_.to_dict()} if mds.selftest_ else {}
        print_json("fit", out=out, **sizes, **level, **kernel, seconds=seconds, **tested)
        return
    print(
        f"Fitted to {len(bank):,} datasets of {n_obs} observations of shape {shape}, with "
        f"summaries of length {dim}; bandwidth {number(bandwidth)}. It is in {out} "
        f"({seconds:.0f} s)."
    )
    if mds.selftest_ is not None:
        print(f"\n{mds.selftest_}")


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
    simulations = open_bank(bank)
    distribution = load_prior(prior)
    check_prior(distribution, simulations.theta.shape[1:], "bank")
    begin = time.monotonic()
    how: Any = {"density_estimator": density_estimator, "seed": seed}
    how |= {"max_num_epochs": max_epochs or MAX_EPOCHS, "show_progress": on_terminal()}
    with redirect_stdout(sys.stderr):  # sbi prints; stdout is for the result
        posterior = train_npe(distribution, simulations, **how)
    save_posterior(out, posterior, density_estimator=density_estimator)
    write_note(out, prior=prior, bank=str(bank))
    seconds, num = time.monotonic() - begin, len(simulations)
    dim_theta, dim_s = simulations.theta.shape[1], simulations.s.shape[1]
    if json:
        sizes = {"datasets": num, "dim_theta": dim_theta, "dim_s": dim_s, "seconds": seconds}
        print_json("train", out=out, density_estimator=density_estimator, **sizes)
        return
    print(
        f"Trained on {num:,} datasets: {dim_theta} parameters given {dim_s} summaries "
        f"({density_estimator}). It is in {out} ({seconds:.0f} s)."
    )
