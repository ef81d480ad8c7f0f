"""Posteriors, as they are named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindist.cli.artefacts import check_artefact, noted
from mindist.cli.errors import extra
from mindist.cli.output import say
from mindist.cli.status import UsageError
from mindist.cli.user_code import load_user_code

KINDS = "a folder that `mindist train` wrote, file.py:name, or a pickle of sbi's with --trust"


def load_posterior(posterior: str | None, prior: str | None, *, trust: bool) -> Any:
    """A posterior over summaries.

    Arguments:
        posterior: A folder, a name of Python code, or a pickle.
        prior: The prior of a folder's posterior.
        trust: Whether to unpickle.
    """
    if posterior is None:
        raise UsageError(f"Name the posterior: --posterior, {KINDS}.")
    path = Path(posterior)
    if path.is_dir():
        return _trained(path, prior)
    if path.is_file():
        return _pickled(path, trust=trust)
    if ":" in posterior:
        return load_user_code(posterior, "--posterior")
    raise UsageError(f"--posterior: expected {KINDS}; there is no {posterior}.")


def load_prior(name: str) -> Any:
    """A prior that sbi takes, of whatever the user has."""
    thing = load_user_code(name, "--prior")
    with extra("sbi"):
        from mindist.posteriors.sbi_training import as_distribution
    prior, bounded = as_distribution(thing)
    if not bounded:
        say(
            "Note: the prior is a function, of which the bounds are not known: posterior samples "
            "are not cut off at them. A torch distribution as the prior would do that."
        )
    return prior


def _trained(path: Path, prior: str | None) -> Any:
    check_artefact(path, "--posterior", "mindist train")
    if prior is None:
        known = noted(path, "prior")
        hint = f" {path} was trained with --prior {known}." if known else ""
        raise UsageError(f"Name the prior of the posterior: --prior file.py:name.{hint}")
    loaded = load_prior(prior)
    with extra("sbi"):
        from mindist.posteriors.sbi_storage import load_posterior as load
    return load(path, loaded)[0]


def _pickled(path: Path, *, trust: bool) -> Any:
    from mindist.posteriors.pickled import load_pickled_posterior

    if not trust:
        raise UsageError(
            f"--posterior: {path} is a pickle, and to load one is to run the program in it: "
            "whoever wrote the file can do with it all that you can do on this machine. If you "
            "made it yourself, or trust whoever did and the way it came, add --trust."
        )
    return load_pickled_posterior(path, trust=True)


__all__ = ["load_posterior", "load_prior"]
