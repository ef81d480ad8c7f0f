"""What a recipe means: which trained parts it needs, and its options for a baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindist import checks
from mindist_paper.baselines import Options, SpikeAndSlab, Training
from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, address

VARIANTS = {
    "mds": "default",
    "mds-rf": "rf",
    "mds-dec": "dec",
    "mds-kl": "kl",
    "npe-pfn-mds": "rf",
}
"""The variant of `MinimumDistance` that a method uses."""

ESTIMATOR_OPTIONS = ("representation", "local", "detector", "decoder", "frequencies")
FIT_OPTIONS = ("bandwidth", "num_features", *ESTIMATOR_OPTIONS)  # the others leave the fit alone
SEARCH_OPTIONS = ("solver", "starts", "restarts", "stay", "reweight", "feedback", "distinct")
QUERY_OPTIONS = ("uncertainty", "force")
PLAIN_OPTIONS = ("bandwidth", "num_features", "alpha", "penalty", *QUERY_OPTIONS)
OPTIONS = (
    *FIT_OPTIONS,
    *SEARCH_OPTIONS,
    *QUERY_OPTIONS,
    "alpha",
    "search_seed",
    "penalty",
    "error_model",
    "max_num_epochs",
    "num_simulations",
)


def training_of(cell: Cell) -> str:
    """The address of what a cell's method is trained to: equal for cells that share it."""
    bank, recipe = cell.bank, cell.recipe
    if recipe.method == "npe-rs":
        setting = replace(cell.test, num_samples=0, num_predictive=0, keep_samples=0)
        return address(bank, recipe, setting)
    if recipe.method in VARIANTS:
        return address(bank, fit_recipe(recipe))
    return address(bank, recipe.npe if recipe.method in ("npe", "oracle", "exact") else recipe)


def needs_npe(recipe: Recipe) -> bool:
    """Whether a method builds on the shared NPE."""
    alone = recipe.method == "exact" or recipe.method.startswith("npe-pfn")
    return recipe.learned_summary or not alone


def shared_npe(recipe: Recipe) -> Recipe:
    """The NPE that a method builds on; NPE-RS needs one whose summary is learned."""
    return replace(recipe.npe, learned_summary=recipe.learned_summary or recipe.method == "npe-rs")


def options_of(bank: BankSpec, recipe: Recipe, **others: Any) -> Options:
    """A recipe's options as `mindist_paper.baselines` takes them."""
    given = dict(recipe.options)
    for name in given:
        checks.choice(name, OPTIONS, "option")
    own = {"max_num_epochs"} & given.keys()
    training = {**recipe.training, **{name: given[name] for name in own}}
    chosen = {name: given[name] for name in PLAIN_OPTIONS if name in given}
    if "error_model" in given:
        chosen["error_model"] = SpikeAndSlab(**given["error_model"])
    return Options(
        training=Training(**training),
        learned_summary=recipe.learned_summary,
        estimator={name: given[name] for name in ESTIMATOR_OPTIONS if name in given},
        search={name: given[name] for name in SEARCH_OPTIONS if name in given},
        seed=bank.seed,
        **chosen,
        **others,
    )


def fit_recipe(recipe: Recipe) -> Recipe:
    """What the fit of MDS depends on: neither the search nor, for a given summary, the NPE."""
    method = {"mds-kl": "mds-dec", "npe-pfn-mds": "mds-rf"}.get(recipe.method, recipe.method)
    options = {name: recipe.options[name] for name in FIT_OPTIONS if name in recipe.options}
    training = recipe.training if recipe.learned_summary else {}
    return Recipe(method, training, recipe.learned_summary, options)


__all__ = [
    "OPTIONS",
    "VARIANTS",
    "fit_recipe",
    "needs_npe",
    "options_of",
    "shared_npe",
    "training_of",
]
