"""`mindist train`: sbi's NPE on the summaries of a bank, for those who have no posterior yet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mindist.cli.artefacts import open_bank, write_note
from mindist.cli.errors import check_choice, extra
from mindist.cli.options import BankFolder, Json, Prior, Seed
from mindist.cli.output import on_terminal, print_json, prints_to_stderr, waiting
from mindist.cli.posterior import load_prior
from mindist.cli.status import UsageError

MAX_EPOCHS = 2**31 - 1


def train(
    bank: BankFolder,
    out: Annotated[Path, typer.Option(help="Folder of the posterior.")],
    prior: Prior = None,
    density_estimator: Annotated[
        str, typer.Option(help="One of sbi's: nsf, maf, mdn, zuko_nsf, ...")
    ] = "nsf",
    max_epochs: Annotated[
        int | None, typer.Option(help="At most; else until it no longer improves.", min=1)
    ] = None,
    seed: Seed = 0,
    json: Json = False,
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
    with prints_to_stderr():
        posterior = train_npe(
            distribution,
            simulations,
            density_estimator=density_estimator,
            max_num_epochs=max_epochs or MAX_EPOCHS,
            seed=seed,
            show_progress=on_terminal(),
        )
    save_posterior(out, posterior, density_estimator=density_estimator)
    write_note(out, prior=prior, bank=str(bank))
    _print(simulations, out, density_estimator, time.monotonic() - begin, json=json)


def _print(bank: Any, out: Path, estimator: str, seconds: float, *, json: bool) -> None:
    sizes = {"datasets": len(bank), "dim_theta": bank.theta.shape[1], "dim_s": bank.s.shape[1]}
    if json:
        print_json("train", out=out, density_estimator=estimator, **sizes, seconds=seconds)
        return
    print(
        f"Trained on {sizes['datasets']:,} datasets: {sizes['dim_theta']} parameters given "
        f"{sizes['dim_s']} summaries ({estimator}). It is in {out} ({seconds:.0f} s)."
    )


__all__ = ["train"]
