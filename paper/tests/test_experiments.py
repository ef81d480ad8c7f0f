"""The registry's contract, every experiment's smoke run, verdicts, and the theorems."""

import json
import math
import socket
import warnings
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from mindist.cli import app
from mindist.features import mmd_squared
from mindist_paper.evaluation.cell import canonical
from mindist_paper.experiments import claims, gaussian, reproduce, theorems
from mindist_paper.experiments.experiment import PROFILES
from mindist_paper.experiments.profiles import THEOREM_SIZES, TheoremSizes
from mindist_paper.experiments.registry import EXPERIMENTS
from mindist_paper.report.statistics import MATERIAL, standard_error

OWN = [name for name, entry in EXPERIMENTS.items() if entry.own_rows is not None]
CLEAN = theorems.CLEAN


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_entry_has_distinct_cells_in_each_profile(name):
    entry = EXPERIMENTS[name]
    for profile in PROFILES:
        cells = entry.cells(profile, 2)
        assert bool(cells) == (name not in OWN)
        assert len({cell.address for cell in cells}) == len(cells)
        assert {cell.bank.seed for cell in cells} == ({0, 1} if cells else set())
        for cell in cells:
            assert json.loads(canonical(cell)) == json.loads(json.dumps(asdict(cell)))
    assert len(entry.minutes) == len(PROFILES)
    assert entry.verdict is not None


def test_equal_settings_are_equal_cells_in_all_experiments():
    def addresses(name):
        return {cell.address for cell in EXPERIMENTS[name].cells("paper", 1)}

    assert addresses("gaussian") & addresses("gaussian-delta") & addresses("kl")
    assert addresses("sir") & addresses("sir-full")
    assert addresses("oup") & addresses("bandwidth") & addresses("initialisation")


def test_the_paper_profile_has_the_sizes_of_the_paper():
    sizes = {"gaussian": 50_000, "oup": 10_000, "sir": 10_000, "cryo-em": 15_000}
    for name, size in sizes.items():
        for cell in EXPERIMENTS[name].cells("paper", 1):
            assert (cell.bank.num, cell.test.num, cell.test.num_samples) == (size, 100, 2_000)
            assert "density_estimator" not in cell.recipe.training  # the paper's spline flow
            assert "num_obs" not in cell.bank.options  # 100


def test_no_path_gets_into_an_address(monkeypatch):
    monkeypatch.setenv("MINDIST_HSP90", "/somewhere/hsp90.pt")
    cells = EXPERIMENTS["cryo-em"].cells("quick", 1)
    assert {cell.bank.options["molecule"] for cell in cells} == {"hsp90"}
    assert not any("somewhere" in canonical(cell) for cell in cells)


@pytest.fixture(scope="module")
def results(tmp_path_factory, briefly):
    """The folder of `mindist reproduce all --profile smoke`."""
    folder = tmp_path_factory.mktemp("reproduce") / "smoke"
    with warnings.catch_warnings(), briefly(epochs=2, steps=10):
        # sbi, on the constant X_0 of OUP
        warnings.filterwarnings("ignore", "Data has constant values", UserWarning)
        run = invoke("reproduce", "all", "--profile", "smoke", "--out", folder, "--workers", 1)
    assert run.exit_code == 0, run.output
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_run(name, results):
    entry, folder = EXPERIMENTS[name], results / name
    page = (results / "index.html").read_text()
    assert f"mindist reproduce {name} --profile smoke" in page
    if entry.unavailable is not None and entry.unavailable() is not None:
        assert "Not run: the TabPFN weights are not here" in page
        assert not folder.exists()
        return
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert "![Figure](figure.png)" in (folder / "table.md").read_text()
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    assert config["verdict"]
    assert config["command"].startswith(f"mindist reproduce {name} --profile smoke")
    assert str(results.parent) not in text
    assert socket.gethostname() not in text
    rows = pd.read_parquet(folder / "rows.parquet")
    assert config["cells"] == len(entry.cells("smoke", 1))
    if name not in OWN:
        assert len(rows) == sum(cell.test.num for cell in entry.cells("smoke", 1))
    shown = rows if entry.prepare is None else entry.prepare(rows)
    for panel in entry.panels:
        assert {panel.by, panel.series, *panel.where} <= set(shown.columns)
        assert panel.metric in {"coverage", *MATERIAL, *shown.columns}


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_ends_with_the_same_files(tmp_path):
    words = ("reproduce", "detection", "--profile", "smoke", "--out", tmp_path, "--workers", 1)
    files = []
    for _ in range(2):
        run = invoke(*words)
        assert run.exit_code == 0, run.output
        found = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        files.append({path: path.read_bytes() for path in found})
    # The time is that of the run that computed the rows, not of the one that drew them again.
    assert files[0] == files[1]


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    for words in (["gausian"], ["gaussian", "--profile", "fast"], [], ["kl", "--seeds", 0]):
        assert invoke("reproduce", *words).exit_code == 2
    for name, content, expected in (
        ("thesis.tex", "precious", "was not made by mindist"),
        (reproduce.MARKER, '{"kind": "mindist reproduce", "results": -1}', "of version -1"),
        (reproduce.MARKER, "{", "is damaged"),
    ):
        folder = tmp_path / expected
        folder.mkdir()
        (folder / name).write_text(content)
        run = invoke("reproduce", "consistency", "--profile", "smoke", "--out", folder)
        assert run.exit_code == 2
        assert expected in run.output
        assert [path.name for path in folder.iterdir()] == [name]


def frame(*, epsilon=0.2, **errors):
    """Rows of several methods, each with the same number of datasets."""
    return pd.DataFrame(
        {"method": method.replace("_", "-"), "dataset": i, "rmse": value}
        for method, values in errors.items()
        for i, value in enumerate(values)
    ).assign(task="gaussian", case="cluster 20%", epsilon=epsilon, seed=0)


@pytest.mark.parametrize(
    ("first", "second", "relation", "outcome"),
    [
        (0.1, 0.3, claims.BELOW, "agrees"),
        (0.3, 0.1, claims.BELOW, "disagrees"),
        (0.2, 0.2, claims.BELOW, "undecided"),
        (0.2, 0.2, claims.SIMILAR, "agrees"),
        (0.3, 0.1, claims.SIMILAR, "disagrees"),
    ],
)
def test_a_claim_is_decided_by_the_rows(first, second, relation, outcome):
    rows = frame(mds_rf=[first, first + 0.01, first], npe=[second, second, second + 0.01])
    claim = claims.Claim("mds-rf", "npe", relation=relation)
    (found,) = claims.findings(rows, claim)
    assert found.outcome == outcome
    assert outcome in claims.sentence(rows, claim)
    assert claims.sentence(rows, claims.Claim("mds", "npe")).startswith("Not compared")


def test_the_ratio_has_the_error_of_the_delta_method():
    """Against a simulation: the spread of the ratio over many repetitions of 40 datasets."""
    source = np.random.default_rng(0)
    base = 1 + 0.3 * source.random((2_000, 40))
    other = 1.2 * base + 0.2 * source.standard_normal((2_000, 40))
    found = [claims.linearised(a, b) for a, b in zip(other, base, strict=True)]
    means = np.array([values.mean() for values in found])
    np.testing.assert_allclose(means, other.mean(1) / base.mean(1))
    errors = np.mean([standard_error(values) for values in found])
    assert errors == pytest.approx(means.std(), rel=0.05)


def test_the_best_lambda_of_each_setting_is_kept():
    parts = [
        frame(npe_rs=[penalty if epsilon == 0 else 1 / penalty] * 2, epsilon=epsilon).assign(
            method_options=json.dumps({"penalty": penalty})
        )
        for epsilon in (0.0, 0.2)
        for penalty in (0.1, 10.0)
    ]
    rows = pd.concat(parts, ignore_index=True).assign(task_options="{}", contamination="{}")
    kept = gaussian.best_penalty(rows)
    assert len(kept) == 4
    assert set(kept.rmse) == {0.1}


def test_the_exact_distance_is_the_squared_mmd_of_large_samples():
    theory = theorems.GaussianTheory(bandwidth=1.5)
    target = theorems.Mixture.of((0.8, (0.0, 0.0), 1.0), (0.2, (3.0, 3.0), 0.0))
    s = torch.tensor([[0.7, -0.2]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(2, 5_000, 2, generator=generator, dtype=torch.float64)
    model = s + normal[0] * math.sqrt(1 - 1 / theory.num_obs)
    data = torch.where(torch.arange(5_000)[:, None] < 4_000, normal[1], 3.0)
    sampled = mmd_squared(model, data, 1.5)
    assert float(theory.distance(s, target)) == pytest.approx(float(sampled), rel=0.05)

    def distance(at):
        return theory.distance(at[None], target)[0]

    hessian = torch.autograd.functional.hessian(distance, s[0])
    gradient = torch.autograd.functional.jacobian(distance, s[0])
    torch.testing.assert_close(theory.hessian(s[0], target), hessian)
    torch.testing.assert_close(theory.gradient(s[0], target), gradient)


@pytest.mark.parametrize("distance", [0.5, 2.5, 8.0])
def test_the_minimum_moves_by_the_influence_function(distance):
    theory = theorems.GaussianTheory()
    y, epsilon = (0.6 * distance, 0.8 * distance), 1e-6
    moved = theory.minimum(CLEAN.contaminated(epsilon, y)) / epsilon
    expected = theory.influence(torch.tensor(y, dtype=torch.float64))
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)
    assert expected.norm() <= theory.largest_influence
    peak = torch.tensor([theory.narrow**0.5, 0.0], dtype=torch.float64)
    assert float(theory.influence(peak).norm()) == pytest.approx(theory.largest_influence)


@pytest.mark.slow
def test_the_fitted_minimum_is_the_exact_one():
    mds = theorems.fit("default", 1_000, 100, seed=0, raw=True)
    theory = theorems.GaussianTheory(mds.fitted_.embedding.features.bandwidth)
    target = CLEAN.contaminated(0.1, (3.0, 0.0))
    found, hessian = theorems.minimum(mds, target)
    # 512 random features know the kernel to a few per cent.
    torch.testing.assert_close(found, theory.minimum(target), rtol=0, atol=0.05)
    exact = theory.hessian(theory.minimum(target), target)
    torch.testing.assert_close(hessian, exact, rtol=0, atol=0.1 * float(exact.max()))


@pytest.mark.slow
def test_robustness_is_bounded_for_mds_and_not_for_the_mean():
    rows = theorems.robustness_rows(THEOREM_SIZES["smoke"])
    outlier = rows[rows.part == "outlier"].pivot_table("kl_slope", "outlier", "method")
    n, epsilon = 100, theorems.SLOPE_EPSILON
    mean = n**2 / (2 * (n + 1)) * epsilon * outlier.index.to_numpy() ** 2
    assert outlier["sample-mean"].to_numpy() == pytest.approx(mean)
    for method in ("mds-exact", "mds", "mds-rf"):
        assert outlier[method].idxmax() <= 5.0
        assert outlier[method][50.0] < 0.1 * outlier[method].max()
    gaps = rows[rows.part == "gap"]
    regular = gaps[gaps.gap < 1]
    assert regular.condition.to_numpy() == pytest.approx(1 / (1 - regular.gap.to_numpy() ** 2))
    singular = gaps[gaps.gap == 1.0]
    assert singular.condition.map(math.isinf).all()
    slope = theorems.log_log_slope(singular.epsilon, singular.kl_slope)
    assert slope == pytest.approx(-1 / 3, abs=0.05)
    verdict = EXPERIMENTS["robustness"].verdict(rows)
    assert "the bound does not hold there" in verdict
    assert "unlike the theorem" not in verdict


@pytest.mark.slow
def test_the_posterior_at_the_minimum_concentrates_with_the_predicted_variance():
    rows = theorems.consistency_rows(TheoremSizes(400, 400, (30, 100, 300, 1_000), (30,)))
    mean = rows.groupby(["method", "num_obs"]).rmse.mean()["mds-exact"]
    assert theorems.log_log_slope(mean.index, mean) == pytest.approx(-0.5, abs=0.03)
    squared = rows.assign(squared=rows.rmse**2).groupby(["method", "num_obs"]).squared.mean()
    ratio = (squared["mds-exact"] / squared["oracle"]).mean()
    # The two errors are strongly correlated: the ratio of 4 x 400 datasets is good to a per cent.
    assert ratio == pytest.approx(theorems.GaussianTheory().variance_ratio, abs=0.03)
    assert "disagrees" not in EXPERIMENTS["consistency"].verdict(rows)
