"""Every public name has a docstring with an example, and its place in the reference.

Public is what `mindist` and the modules of the reference (docs/api) export in `__all__`. Examples
run as tests, like all others. `mindist_paper` is no library: its names need no example.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").iterdir())}
MODULES = re.findall(r"automodule:: (mindist[.]\S+)", "\n".join(PAGES.values()))
INTERNAL = {  # written for other modules of mindist, which their tests cover
    "mindist.adaptation": {"spread"},
    "mindist.entries": {"Knowledge", "Search", "completed", "learn"},
    "mindist_paper.baselines": {"NeuralPosterior"},  # what train_method("npe", ...) returns
}  # fmt: skip
HELPED = {"mindist.posteriors.bayesflow_bridge"}
"""Their examples need a trained workflow: the tutorial with BayesFlow runs them."""


def public(module: str) -> list[tuple[str, object]]:
    loaded = importlib.import_module(module)
    names = set(loaded.__all__) - INTERNAL.get(module, set())
    found = [(name, getattr(loaded, name)) for name in sorted(names)]
    return [(name, value) for name, value in found if inspect.isroutine(value) or is_class(value)]


def is_class(value: object) -> bool:
    return inspect.isclass(value) and not hasattr(value, "__origin__")


def own_docs(value: object) -> str:
    """The docstring of a function; of a class that of its own methods too."""
    texts = [value.__doc__ or ""]
    if inspect.isclass(value):
        members = (getattr(member, "__func__", member) for member in vars(value).values())
        texts += [m.__doc__ or "" for m in members if inspect.isroutine(m)]
    return "\n".join(texts)


@pytest.mark.parametrize("module", ["mindist", *MODULES])
def test_every_public_name_has_a_docstring_with_an_example(module: str) -> None:
    pytest.importorskip("bayesflow") if module in HELPED else None
    without = [name for name, value in public(module) if not (value.__doc__ or "").strip()]
    assert not without, f"{module}: no docstring: {', '.join(without)}"
    if module not in HELPED:
        silent = [name for name, value in public(module) if ">>> " not in own_docs(value)]
        assert not silent, f"{module}: no example: {', '.join(silent)}"


def test_every_public_method_has_a_docstring() -> None:
    for module in ("mindist", *(m for m in MODULES if m not in HELPED)):
        for name, value in public(module):
            members = vars(value).items() if inspect.isclass(value) else ()
            plain = [(n, getattr(m, "__func__", m)) for n, m in members if not n.startswith("_")]
            bare = [n for n, m in plain if inspect.isroutine(m) and not m.__doc__]
            assert not bare, f"{module}.{name}: no docstring: {', '.join(bare)}"


def test_the_reference_has_every_main_name() -> None:
    import mindist

    page = PAGES["main.md"]
    named = re.findall(r"auto(?:class|function|exception):: (\w+)", page)
    assert sorted(named) == sorted(mindist.__all__)


def test_the_reference_has_every_package() -> None:
    import mindist

    layers = {p.parent.name for p in Path(mindist.__file__).parent.glob("*/__init__.py")}
    without_names = {"benchmark", "experiments", "simulation"}  # no __all__: run, not imported
    assert {m.split(".")[1] for m in MODULES} >= layers - without_names - {"cli"}
