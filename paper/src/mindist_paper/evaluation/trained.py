"""From a recipe to a method: what is stored is loaded, what is missing is trained and stored."""

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mindist import checks
from mindist.decoders.ridge import Standardiser
from mindist.features.kernel import median_distance
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.robust import RobustPosterior
from mindist.posteriors.sbi_bridge import EmbeddingSummary
from mindist.posteriors.sbi_storage import load_posterior, save_posterior
from mindist.storage import write_whole
from mindist_paper.baselines import METHODS
from mindist_paper.baselines.mds import MinimumDistanceMethod, unfitted
from mindist_paper.baselines.method import Method
from mindist_paper.baselines.npe import NeuralPosterior, Squash, summary_network
from mindist_paper.baselines.npe_rs import RobustStatistics
from mindist_paper.evaluation import bank as banks
from mindist_paper.evaluation.bank import make_datasets, make_task, simulate_bank
from mindist_paper.evaluation.cell import VARIANTS, BankSpec, Recipe, TestSpec, address, options_of
from mindist_paper.evaluation.store import Store

SECONDS_NAME = "fit_seconds.txt"  # beside a fitted estimator, for the table of decoders


@dataclass(frozen=True)
class Reference:
    """The parts that measurements of all methods on a bank share."""

    scale: Tensor  # Standard deviations `(d_s,)` of the simulated summaries
    bandwidth: float  # The median distance of simulated observations


def get_npe(store: Store, bank: BankSpec, recipe: Recipe) -> NeuralPosterior:
    """Return the NPE that a recipe builds on."""
    return _posterior(store, bank, recipe.npe)


def _posterior(store: Store, bank: BankSpec, recipe: Recipe) -> NeuralPosterior:
    task, noisy = make_task(bank), recipe.method == "nnpe"
    npe = get_npe(store, bank, recipe) if noisy and recipe.learned_summary else None
    options = options_of(bank, recipe, npe=npe)
    more: dict[str, Any] = {}
    if noisy:
        size = task.dim_summary
        more["embedding_net"] = Squash(Standardiser(torch.zeros(size), torch.ones(size)))
    elif recipe.learned_summary:
        more["summary_net"] = summary_network(task, bank.seed)

    def make(path: Path) -> None:
        trained = cast(NeuralPosterior, METHODS[recipe.method](task, simulate_bank(bank), options))
        estimator, found = options.training.density_estimator, trained.summary
        summary = found if isinstance(found, EmbeddingSummary) and not noisy else None
        save_posterior(path, trained.posterior, density_estimator=estimator, summary=summary)

    def load(path: Path) -> NeuralPosterior:
        posterior, learned = load_posterior(path, task.prior, **more)
        summary = learned or (task.summary if npe is None else npe.summary)
        return NeuralPosterior(posterior, summary, task.event_shape)

    what = f"the {recipe.method.upper()} of {bank.task}"
    return store.part(address(bank, recipe), what, make, load)


def get_estimator(store: Store, bank: BankSpec, recipe: Recipe) -> tuple[MinimumDistance, float]:
    """Return the fitted estimator of a recipe, with its search, and the seconds its fit took."""
    fit, summary = recipe.fit, make_task(bank).summary
    if recipe.learned_summary:
        summary = get_npe(store, bank, recipe).summary

    def make(path: Path) -> None:
        mds, x = unfitted(VARIANTS[fit.method], summary, options_of(bank, fit)), simulate_bank(bank)
        start = time.perf_counter()
        mds.fit(x.x).save(path)
        write_whole(path / SECONDS_NAME, f"{time.perf_counter() - start:.3f}\n".encode())

    def load(path: Path) -> tuple[MinimumDistance, float]:
        note = path / SECONDS_NAME  # a run that was killed may not have written it
        seconds = float(note.read_text()) if note.is_file() else math.nan
        return MinimumDistance.load(path, summary), seconds

    what = f"the {fit.method} of {bank.task}"
    mds, seconds = store.part(address(bank, fit), what, make, load)
    wanted = unfitted(VARIANTS[recipe.method], summary, options_of(bank, recipe))
    mds.search, mds.seed = wanted.search, int(recipe.options.get("search_seed", bank.seed))
    return mds, seconds


def get_method(
    store: Store, bank: BankSpec, recipe: Recipe, test: TestSpec | None = None
) -> Method | None:
    """Return a method, ready to be queried with raw datasets."""
    name, task = recipe.method, make_task(bank)
    checks.choice(name, ("oracle", "exact", *METHODS), "method")
    if name == "exact":
        return None
    if name in ("npe", "oracle"):
        return get_npe(store, bank, recipe)
    if name == "nnpe":
        return _posterior(store, bank, recipe)
    npe = get_npe(store, bank, recipe) if recipe.needs_npe else None
    if name.startswith("npe-pfn"):
        options = options_of(bank, recipe, npe=npe)
        npe = cast(NeuralPosterior, METHODS["npe-pfn"](task, simulate_bank(bank), options))
    if name in VARIANTS:
        mds, seconds = get_estimator(store, bank, recipe)
        posterior = cast(NeuralPosterior, npe).posterior
        return MinimumDistanceMethod(RobustPosterior(posterior, mds), seconds)
    if name == "npe-pfn":
        return npe
    simulations, x_obs = simulate_bank(bank), None
    if name == "npe-rs":
        if test is None:
            raise ValueError("test: NPE-RS is trained for the observed datasets, got None.")
        x_obs = make_datasets(bank, test).x_obs
    return METHODS[name](task, simulations, options_of(bank, recipe, npe=npe, x_obs=x_obs))


def get_reference(
    store: Store, bank: BankSpec, recipe: Recipe, method: Method | None = None
) -> Reference:
    """Return scale and bandwidth of a bank; the scale of NPE-RS is that of its own summary."""
    learned = replace(recipe.npe, method="reference")
    key = address(bank, learned if recipe.learned_summary else Recipe("reference"))

    def make(path: Path) -> None:
        s = simulate_bank(bank).s
        if recipe.learned_summary:
            s = simulate_bank(bank).summaries(get_npe(store, bank, recipe).summary)
        source = banks.generator("bandwidth", task=bank.task, seed=bank.seed)
        bandwidth = median_distance(banks.leading_datasets(bank), source)
        scale = cast(Tensor, s).double().std(0, correction=0)
        write_whole(path, json.dumps({"bandwidth": bandwidth, "scale": scale.tolist()}).encode())

    def load(path: Path) -> Reference:
        content = json.loads(path.read_text())
        scale = torch.tensor(content["scale"], dtype=torch.float64)
        return Reference(scale, float(content["bandwidth"]))

    reference = store.part(key, f"the scales of {bank.task}", make, load)
    if isinstance(method, RobustStatistics):
        s = simulate_bank(bank).summaries(method.summary)
        return replace(reference, scale=s.double().std(0, correction=0))
    return reference
