"""What is recomputed when one method changes, and what is not."""

import json

import pytest

from mindist.adaptation import Search
from mindist.tasks import GaussianTask
from mindist_paper.baselines.mds import unfitted
from mindist_paper.evaluation import cell as cells
from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec, address
from mindist_paper.evaluation.recipe import fit_recipe, options_of, shared_npe, training_of
from mindist_paper.experiments.ablation import VARIANTS
from mindist_paper.experiments.decoders import DECODERS
from mindist_paper.experiments.registry import EXPERIMENTS

# The last cell of each method as version 2 of the results has it, before methods had versions:
# trained networks and finished cells are found by these addresses.
KNOWN = {
    ("gaussian", "paper", "npe"): "410adfbbfbaf85a0",
    ("gaussian", "paper", "npe-rs"): "4c940d3443828248",
    ("oup", "paper", "mds-rf"): "ab48d9ab3dd7ab7b",
    ("sir", "quick", "nnpe"): "c3421bf2922a227c",
    ("cryo-em", "smoke", "oracle"): "8ee9d1d14bf014be",
    ("kl", "quick", "mds-dec"): "1814d555bc21bfb9",
    ("npe-pfn", "quick", "npe-pfn-mds"): "eb56a8dda3524f78",
    ("initialisation", "quick", "mds-rf"): "8fc2d699761841ba",
    ("bandwidth", "smoke", "mds-rf"): "cbe18916a82d9e2c",
}
BEFORE = {
    ("gaussian", "paper", "mds"): "a2857ec636fe795d",
    ("detection", "quick", "mds"): "a7267f6517274a15",
}


@pytest.fixture(autouse=True)
def no_molecule(monkeypatch):
    monkeypatch.delenv("MINDIST_HSP90", raising=False)


def last_address(name, profile, method):
    (*_, last) = (c for c in EXPERIMENTS[name].cells(profile, 1) if c.recipe.method == method)
    return last.address[:16]


@pytest.mark.parametrize("which", KNOWN, ids="-".join)
def test_addresses_of_other_methods_stay(which):
    assert last_address(*which) == KNOWN[which]


@pytest.mark.parametrize("which", BEFORE, ids="-".join)
def test_the_default_has_new_addresses(which):
    assert last_address(*which) != BEFORE[which]


def test_a_version_is_that_of_one_method_alone(monkeypatch):
    bank, test = BankSpec("oup", 100), TestSpec(0.1)
    methods = ("npe", "mds-rf", "mds", "npe-pfn-mds")
    of = {m: Cell(bank, Recipe(m), test) for m in methods}

    def addresses():
        parts = {m: (c.address, training_of(c), address(bank, c.recipe.npe)) for m, c in of.items()}
        return parts, address(bank, shared_npe(of["mds"].recipe))

    before, npe = addresses()
    monkeypatch.setattr(cells, "METHOD_VERSIONS", {"mds": 99})
    after, same_npe = addresses()
    assert npe == same_npe
    assert [m for m in methods if before[m] != after[m]] == ["mds"]
    assert before["mds"][2] == after["mds"][2]  # the NPE behind it stays
    assert set(before["mds"][:2]).isdisjoint(after["mds"][:2])  # its cell and its fit do not
    assert json.loads(cells.canonical(of["mds"]))["recipe"]["method"] == "mds"


def test_options_of_the_ablation_reach_the_estimator():
    bank, summary = BankSpec("gaussian", 100), GaussianTask.summary

    def made(options):
        return unfitted("default", summary, options_of(bank, Recipe("mds", options=options)))

    changed = {
        "no local kernel": ("local", False),
        "raw observations": ("representation", "raw"),
        "independent frequencies": ("frequencies", "random"),
        "distance alone detects": ("detector", "distance"),
    }
    for variant, (name, value) in changed.items():
        assert getattr(made(VARIANTS[variant]), name) == value != getattr(made({}), name)
    searches = {
        "no weights": Search(reweight=0),
        "weights whatever their feedback": Search(feedback=100),
        "copies all count": Search(distinct=False),
        "not kept near simulations": Search(stay=0),
        "start at the observed": Search(starts=("observed",)),
    }
    for variant, search in searches.items():
        assert made(VARIANTS[variant]).search == search != made({}).search
    assert type(made(DECODERS["mlp"]).decoder) is not type(made({}).decoder)
    assert options_of(bank, Recipe("mds", options=VARIANTS["no gate"])).force
    assert options_of(bank, Recipe("mds", options={"uncertainty": False})).uncertainty is False


def test_a_fit_is_shared_by_all_that_differ_in_the_search_alone():
    fits = {name: fit_recipe(Recipe("mds", options=o)) for name, o in VARIANTS.items()}
    shared = [name for name, fit in fits.items() if fit == fits["default"]]
    assert shared == [
        "default",
        "no gate",
        "no weights",
        "weights whatever their feedback",
        "copies all count",
        "not kept near simulations",
        "start at the observed",
        "no uncertainty",
    ]


def test_the_paper_is_not_ablated():
    options = options_of(BankSpec("oup", 100), Recipe("mds-rf", options={"local": False}))
    with pytest.raises(ValueError, match=r"local: an option of the default, 'mds'"):
        unfitted("rf", GaussianTask.summary, options)


def test_an_unknown_option_brings_the_list_of_known_ones():
    with pytest.raises(ValueError, match=r"option: expected one of 'bandwidth', .*, got 'wide'"):
        options_of(BankSpec("oup", 100), Recipe("mds", options={"wide": True}))
