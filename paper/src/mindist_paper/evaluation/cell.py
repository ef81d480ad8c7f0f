r"""What is computed: a cell is one method on the test datasets of one setting.

.. math::
    \text{cell} = \underbrace{(\text{task}, M, \text{seed})}_{\text{bank}}
    \times \underbrace{(\text{method}, \text{options})}_{\text{recipe}}
    \times \underbrace{(\epsilon, \text{contamination}, B)}_{\text{test}}

All three are frozen and hold nothing but JSON values, so that a configuration has one canonical
text and the SHA-256 of it is its address: equal configurations share their results, whatever
experiment asks for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

RESULTS_VERSION = 2
"""Part of every address: raise it when a change of the code changes results."""

METHOD_VERSIONS: Mapping[str, int] = {"mds": 4}
"""Part of the addresses of one method's fits and cells alone: raise it when only this method
changes. A method that is not here has the version 1, which stands in no address.

mds: 3 has a representation, a local kernel, weights, a combined detector and the uncertainty of its
summary; 4 has orthogonal frequencies in more than 64 dimensions, no ridge below 1e-9, one basis for
both decoders and a null of 5,000 simulations."""


@dataclass(frozen=True)
class BankSpec:
    """Simulations to train on.

    Arguments:
        task: A key of `mindist_paper.tasks.TASKS`.
        num: M, how many datasets.
        options: Of the task's constructor, such as `{"num_obs": 50}`.
        seed: Of the simulations, of training and of the test datasets.
    """

    task: str
    num: int
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """A method and everything that was chosen about it.

    Arguments:
        method: A key of `mindist_paper.baselines.METHODS`, or "oracle": the NPE at the summary of
            the clean data, or "exact": the task's exact posterior at the observed summary.
        training: Fields of `mindist_paper.baselines.Training` that differ from its defaults.
        learned_summary: Whether the NPE's summary is learned jointly.
        options: Of the method, JSON values: "bandwidth" (a number or a string), "penalty",
            "error_model" ({"rho": ..., "tau": ...}), "starts" (list of names or vectors),
            "restarts", "alpha", "num_features", "solver", "search_seed"; of the default MDS also
            "representation", "local", "detector", "decoder", "frequencies", "stay", "reweight",
            "feedback", "distinct", "uncertainty" and "force" (adapt every dataset, detected or
            not); "max_num_epochs" (of what the method trains itself, beside the shared NPE);
            "num_simulations" (NPE-RS: how many of the bank's simulations it trains on).
    """

    method: str
    training: Mapping[str, Any] = field(default_factory=dict)
    learned_summary: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def npe(self) -> Recipe:
        """The NPE that this method builds on, shared by all methods with the same training."""
        return replace(self, method="npe", options={})


@dataclass(frozen=True)
class TestSpec:
    """The datasets that a method is tested on, and what is measured.

    Arguments:
        epsilon: Contaminated fraction.
        contamination: Other arguments of the task's `contaminate`, such as `{"delta": 5.0}`; or,
            with a "kind", one of `mindist_paper.tasks.contaminations` and its options.
        num: B, how many test datasets. Clean test datasets depend on the bank's task, options and
            seed only: all methods, fractions and contaminations are compared on the same ones.
        num_obs: N of the test datasets; None for that of the task.
        num_samples: S, posterior samples for each dataset; 0 measures detection and summaries only.
        num_predictive: Observations simulated for each dataset for the posterior-predictive MMD;
            0 leaves it out.
        keep_samples: Of the first four datasets, how many posterior samples to keep for plots.
    """

    __test__ = False  # for pytest: no test class, whatever its name

    epsilon: float
    contamination: Mapping[str, Any] = field(default_factory=dict)
    num: int = 100
    num_obs: int | None = None
    num_samples: int = 1_000
    num_predictive: int = 500
    keep_samples: int = 0


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


def canonical(spec: Any) -> str:
    """The one JSON text of a configuration; 5 and 5.0, lists and tuples are the same.

    Example:
        >>> canonical(BankSpec("oup", 10))
        '{"num":10,"options":{},"seed":0,"task":"oup"}'
    """
    plain = _plain(asdict(spec))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """The same value with whole numbers as integers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def address(*specs: Any) -> str:
    """The content address of one or several configurations, with the versions of their methods.

    Example:
        >>> address(BankSpec("oup", 10))[:8], address(Recipe("npe"))[:8], address(Recipe("mds"))[:8]
        ('e463f85c', '22a540e0', '1a91f033')
    """
    lines = [f"mindist results {RESULTS_VERSION}", *map(canonical, specs)]
    lines += [f"{name} {number}" for name, number in method_versions(specs).items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def method_versions(specs: Iterable[Any]) -> dict[str, int]:
    """The versions, other than the first, of the methods of recipes and cells.

    Example:
        >>> method_versions([Recipe("npe"), Recipe("mds")])
        {'mds': 4}
    """
    recipes = (spec.recipe if isinstance(spec, Cell) else spec for spec in specs)
    methods = dict.fromkeys(recipe.method for recipe in recipes if isinstance(recipe, Recipe))
    return {name: METHOD_VERSIONS[name] for name in methods if name in METHOD_VERSIONS}


__all__ = [
    "METHOD_VERSIONS",
    "RESULTS_VERSION",
    "BankSpec",
    "Cell",
    "Recipe",
    "TestSpec",
    "address",
    "canonical",
    "method_versions",
]
