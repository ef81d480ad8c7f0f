r"""From a recipe to a method: what is stored is loaded, what is missing is trained and stored.

Parts are shared by what they depend on. One NPE for all methods with the same training; one fitted
`MinimumDistance` for all searches with it, and one flow for MDS-Dec and MDS-KL. A part that was
just trained is read back from the disk before it is used: results do not depend on whether it was
there already.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor

from mindist import checks, storage
from mindist.decoders.standardise import Standardiser
from mindist.features.bandwidth import median_distance
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.guards import warn_user
from mindist.posteriors.sbi_bridge import EmbeddingSummary
from mindist.posteriors.sbi_storage import load_posterior, save_posterior
from mindist.storage import write_whole
from mindist_paper.baselines import METHODS, Method, NeuralPosterior
from mindist_paper.baselines.mds import robust_method, unfitted
from mindist_paper.baselines.method import Simulations
from mindist_paper.baselines.nnpe import NoisyPosterior, Squash
from mindist_paper.baselines.npe import summary_network
from mindist_paper.baselines.npe_rs import RobustStatistics
from mindist_paper.evaluation.bank import (
    generator,
    leading_datasets,
    make_datasets,
    make_task,
    simulate_bank,
)
from mindist_paper.evaluation.cell import BankSpec, Recipe, TestSpec, address
from mindist_paper.evaluation.recipe import VARIANTS, fit_recipe, needs_npe, options_of, shared_npe
from mindist_paper.evaluation.store import FullDiskError, Store, room_for

T = TypeVar("T")
SECONDS_NAME = "fit_seconds.txt"  # beside a fitted estimator, for the table of decoders


@dataclass(frozen=True)
class Reference:
    """What measurements of all methods on a bank have in common.

    Arguments:
        scale: Standard deviations `(d_s,)` of the simulated summaries.
        bandwidth: The median distance of simulated observations.
    """

    scale: Tensor
    bandwidth: float


def get_npe(store: Store, bank: BankSpec, recipe: Recipe) -> NeuralPosterior:
    """The NPE of a recipe, `recipe.npe`."""
    task, recipe = make_task(bank), recipe.npe
    estimator = options_of(bank, recipe).training.density_estimator

    def make(path: Path) -> None:
        npe = METHODS["npe"](task, simulate_bank(bank), options_of(bank, recipe))
        npe = cast(NeuralPosterior, npe)
        summary = npe.summary if isinstance(npe.summary, EmbeddingSummary) else None
        save_posterior(path, npe.posterior, density_estimator=estimator, summary=summary)

    def load(path: Path) -> NeuralPosterior:
        net = summary_network(task, bank.seed) if recipe.learned_summary else None
        posterior, summary = load_posterior(path, task.prior, summary_net=net)
        return NeuralPosterior(posterior, summary or task.summary, task.event_shape)

    return _stored(store, address(bank, recipe), f"the NPE of {bank.task}", make, load)


def get_noisy(store: Store, bank: BankSpec, recipe: Recipe) -> NoisyPosterior:
    """The NNPE of a recipe."""
    task = make_task(bank)
    npe = get_npe(store, bank, recipe) if recipe.learned_summary else None
    options = options_of(bank, recipe, npe=npe)
    estimator = options.training.density_estimator

    def make(path: Path) -> None:
        noisy = cast(NoisyPosterior, METHODS["nnpe"](task, simulate_bank(bank), options))
        save_posterior(path, noisy.posterior, density_estimator=estimator)

    def load(path: Path) -> NoisyPosterior:
        size = task.dim_summary
        squash = Squash(Standardiser(torch.zeros(size), torch.ones(size)))
        posterior, _ = load_posterior(path, task.prior, embedding_net=squash)
        summary = task.summary if npe is None else npe.summary
        return NoisyPosterior(posterior, summary, task.event_shape)

    return _stored(store, address(bank, recipe), f"the NNPE of {bank.task}", make, load)


def get_estimator(store: Store, bank: BankSpec, recipe: Recipe) -> MinimumDistance:
    """The fitted estimator of a recipe, with the recipe's search."""
    fit = fit_recipe(recipe)
    summary = make_task(bank).summary
    if recipe.learned_summary:
        summary = get_npe(store, bank, recipe).summary

    def make(path: Path) -> None:
        mds, x = unfitted(VARIANTS[fit.method], summary, options_of(bank, fit)), simulate_bank(bank)
        start = time.perf_counter()
        mds.fit(x.x).save(path)
        seconds = f"{time.perf_counter() - start:.3f}\n"
        write_whole(path / SECONDS_NAME, seconds.encode())

    what = f"the {fit.method} of {bank.task}"
    load = MinimumDistance.load
    mds = _stored(store, address(bank, fit), what, make, lambda path: load(path, summary))
    wanted = unfitted(VARIANTS[recipe.method], summary, options_of(bank, recipe))
    mds.search, mds.alpha = wanted.search, wanted.alpha
    mds.seed = int(recipe.options.get("search_seed", bank.seed))
    return mds


def fit_seconds(store: Store, bank: BankSpec, recipe: Recipe) -> float:
    """How long the fit of a stored estimator took, NaN where nobody has noted it."""
    try:
        return float((store.trained / address(bank, fit_recipe(recipe)) / SECONDS_NAME).read_text())
    except (OSError, ValueError):
        return math.nan


def get_method(
    store: Store, bank: BankSpec, recipe: Recipe, test: TestSpec | None = None
) -> Method:
    """A method, ready to be queried with raw datasets.

    Arguments:
        store: Where trained parts are kept.
        bank: What it is trained on.
        recipe: How. "oracle" is the NPE, to be queried with clean data; "exact" is none.
        test: For NPE-RS the datasets that it is trained for.
    """
    name, task = recipe.method, make_task(bank)
    checks.choice(name, ("oracle", *METHODS), "method")
    if name in ("npe", "oracle"):
        return get_npe(store, bank, recipe)
    if name == "nnpe":
        return get_noisy(store, bank, recipe)
    npe = get_npe(store, bank, shared_npe(recipe)) if needs_npe(recipe) else None
    if name.startswith("npe-pfn"):
        npe = cast(
            NeuralPosterior,
            METHODS["npe-pfn"](task, simulate_bank(bank), options_of(bank, recipe, npe=npe)),
        )
    if name in VARIANTS:
        posterior = cast(NeuralPosterior, npe).posterior
        mds = get_estimator(store, bank, recipe)
        seconds = fit_seconds(store, bank, recipe)
        return robust_method(posterior, mds, options_of(bank, recipe), seconds)
    if name == "npe-pfn":
        return cast(NeuralPosterior, npe)
    simulations, x_obs = simulate_bank(bank), None
    if name == "npe-rs":
        if test is None:
            raise ValueError("test: NPE-RS is trained for the observed datasets, got None.")
        simulations, x_obs = _some(simulations, recipe), make_datasets(bank, test).x_obs
    return METHODS[name](task, simulations, options_of(bank, recipe, npe=npe, x_obs=x_obs))


def get_reference(
    store: Store, bank: BankSpec, recipe: Recipe, method: Method | None = None
) -> Reference:
    """Scale and bandwidth of a bank; the scale of NPE-RS is that of its own summary."""
    learned = replace(recipe.npe, method="reference")
    key = address(bank, learned if recipe.learned_summary else Recipe("reference"))

    def make(path: Path) -> None:
        s = simulate_bank(bank).s
        if recipe.learned_summary:
            s = simulate_bank(bank).summaries(get_npe(store, bank, recipe).summary)
        source = generator("bandwidth", task=bank.task, seed=bank.seed)
        bandwidth = median_distance(leading_datasets(bank), source)
        scale = cast(Tensor, s).double().std(0, correction=0)
        storage.write_artefact(path, "Reference", {"bandwidth": bandwidth}, {"scale": scale})

    def load(path: Path) -> Reference:
        config, tensors = storage.read_artefact(path, "Reference")
        return Reference(tensors["scale"], config["bandwidth"])

    reference = _stored(store, key, f"the scales of {bank.task}", make, load)
    if isinstance(method, RobustStatistics):
        s = _some(simulate_bank(bank), recipe).summaries(method.summary)
        return replace(reference, scale=s.double().std(0, correction=0))
    return reference


def _some(simulations: Simulations, recipe: Recipe) -> Simulations:
    """The leading simulations, as many as the recipe says."""
    num = min(recipe.options.get("num_simulations", len(simulations.theta)), len(simulations.theta))
    parts, size = [], 0
    for chunk in simulations.chunks():
        parts.append(chunk[: num - size])
        size += len(parts[-1])
        if size == num:
            break
    s = None if simulations.s is None else simulations.s[:num]
    return Simulations(simulations.theta[:num], torch.cat(parts), s)


def _stored(
    store: Store, key: str, what: str, make: Callable[[Path], None], load: Callable[[Path], T]
) -> T:
    """Load a part, after making it where it is missing or damaged."""
    path = store.trained / key
    if path.exists():
        try:
            return load(path)
        except (ValueError, KeyError, OSError, RuntimeError) as error:
            warn_user(f"{path}: {error} Now {what} is trained again.")
            shutil.rmtree(path, ignore_errors=True)
    try:
        with room_for(store.folder, what):
            make(path)
    except FullDiskError:
        raise
    except OSError:
        if not path.exists():  # else another process has stored the same in the meantime
            raise
    return load(path)


__all__ = ["Reference", "fit_seconds", "get_estimator", "get_method", "get_npe", "get_reference"]
