"""Configurations: a cell is one method (recipe) on test datasets, after training on a bank.

They hold JSON values only; the SHA-256 of a cell's canonical text is its address, so that equal
configurations share their results, whichever experiment asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mindist import checks
from mindist_paper.baselines.method import Options, SpikeAndSlab, Training

RESULTS_VERSION = 3  # Part of every address: raise it when a change of the code changes results
# Part of the addresses of one method's fits and cells: raise it when only this method changes
METHOD_VERSIONS: Mapping[str, int] = {"mds": 7}
# The variant of `MinimumDistance` that a method uses
VARIANTS = {"mds": "default", "mds-rf": "rf", "mds-dec": "dec", "mds-kl": "kl", "npe-pfn-mds": "rf"}
SEARCH_OPTIONS = ("starts", "restarts")
PLAIN_OPTIONS = ("bandwidth", "penalty")  # the bandwidth alone is part of the fit of MDS
OPTIONS = (*PLAIN_OPTIONS, *SEARCH_OPTIONS, "search_seed", "error_model", "max_num_epochs")


@dataclass(frozen=True)
class BankSpec:
    """Simulations to train on."""

    task: str  # A key of `mindist_paper.tasks.TASKS`
    num: int  # M, how many datasets
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task, as `{"num_obs": 50}`
    seed: int = 0  # Seed of the simulations, of training and of the test datasets


@dataclass(frozen=True)
class Recipe:
    """A method and everything that was chosen about it."""

    method: str  # a key of `METHODS`, "oracle" (NPE on clean data) or "exact" (exact posterior)
    training: Mapping[str, Any] = field(default_factory=dict)  # fields of `Training` that differ
    learned_summary: bool = False  # Whether the NPE's summary is learned jointly
    options: Mapping[str, Any] = field(default_factory=dict)  # JSON values, see `OPTIONS`

    @property
    def npe(self) -> Recipe:
        """The NPE that this method builds on; that of NPE-RS has a learned summary."""
        learned = self.learned_summary or self.method == "npe-rs"
        return Recipe("npe", self.training, learned)

    @property
    def needs_npe(self) -> bool:
        """Return whether the method builds on the shared NPE."""
        alone = self.method == "exact" or self.method.startswith("npe-pfn")
        return self.learned_summary or not alone

    @property
    def fit(self) -> Recipe:
        """Return the recipe of the fit of MDS, without search and, for a given summary, NPE."""
        method = {"mds-kl": "mds-dec", "npe-pfn-mds": "mds-rf"}.get(self.method, self.method)
        options = {name: self.options[name] for name in ("bandwidth",) if name in self.options}
        training = self.training if self.learned_summary else {}
        return Recipe(method, training, self.learned_summary, options)


@dataclass(frozen=True)
class TestSpec:
    """The datasets that a method is tested on, and what is measured."""

    __test__ = False  # for pytest: no test class, whatever its name

    epsilon: float  # Contaminated fraction
    contamination: Mapping[str, Any] = field(default_factory=dict)  # as `{"delta": 5}`
    num: int = 100  # B, how many test datasets
    num_obs: int | None = None  # N of the test datasets; None for that of the task
    num_samples: int = 1_000  # S, for each dataset; 0 measures detection and summaries only
    num_predictive: int = 500  # observations for each predictive MMD; 0 leaves it out
    keep_samples: int = 0  # How many posterior samples of the first four datasets to keep for plots


@dataclass(frozen=True)
class Cell:
    """One method on the test datasets of one setting: the unit of work that is stored."""

    bank: BankSpec
    recipe: Recipe
    test: TestSpec

    @property
    def address(self) -> str:
        """The SHA-256 of the configuration, 64 hexadecimal digits."""
        return address(self)

    @property
    def training(self) -> str:
        """The address of what the method is trained to: equal for cells that share it."""
        bank, recipe = self.bank, self.recipe
        if recipe.method == "npe-rs":
            setting = replace(self.test, num_samples=0, num_predictive=0, keep_samples=0)
            return address(bank, recipe, setting)
        if recipe.method in VARIANTS:
            return address(bank, recipe.fit)
        return address(bank, recipe.npe if recipe.method in ("npe", "oracle", "exact") else recipe)

    def __str__(self) -> str:
        bank, recipe = self.bank, self.recipe
        task = f"{bank.task} {dict(bank.options)}" if bank.options else bank.task
        method = f"{recipe.method} {dict(recipe.options)}" if recipe.options else recipe.method
        return f"{task}, {method}, epsilon {self.test.epsilon:g}, seed {bank.seed}"


def canonical(spec: Any) -> str:
    """Return the one JSON text of a configuration; 5 and 5.0, lists and tuples are the same."""
    plain = _plain(asdict(spec))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def address(*specs: Any) -> str:
    """Return the content address of configurations, with the versions of their methods."""
    lines = [f"mindist results {RESULTS_VERSION}", *map(canonical, specs)]
    lines += [f"{name} {number}" for name, number in method_versions(specs).items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def method_versions(specs: Iterable[Any]) -> dict[str, int]:
    """Return the versions of the methods of recipes and cells, for methods that have one."""
    recipes = (spec.recipe if isinstance(spec, Cell) else spec for spec in specs)
    methods = dict.fromkeys(recipe.method for recipe in recipes if isinstance(recipe, Recipe))
    return {name: METHOD_VERSIONS[name] for name in methods if name in METHOD_VERSIONS}


def options_of(bank: BankSpec, recipe: Recipe, **others: Any) -> Options:
    """Return a recipe's options as `mindist_paper.baselines` takes them."""
    given = dict(recipe.options)
    for name in given:
        checks.choice(name, OPTIONS, "option")

    def chosen(names: Iterable[str]) -> dict[str, Any]:
        return {name: given[name] for name in names if name in given}

    plain = chosen(PLAIN_OPTIONS)
    if "error_model" in given:
        plain["error_model"] = SpikeAndSlab(**given["error_model"])
    return Options(
        training=Training(**{**recipe.training, **chosen(["max_num_epochs"])}),
        learned_summary=recipe.learned_summary,
        search=chosen(SEARCH_OPTIONS),
        seed=bank.seed,
        **plain,
        **others,
    )
