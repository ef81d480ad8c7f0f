"""The registry's contract, every experiment's smoke run through the command, and the theorems."""

import json
import math
import socket
import subprocess
import sys
import warnings
from dataclasses import asdict

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from mindist.cli import app
from mindist.features.kernel import mmd_squared
from mindist_paper.evaluation import cell as cells_module
from mindist_paper.experiments import claims, gaussian_theory, output, profiles, theorems
from mindist_paper.experiments.experiment import PROFILES
from mindist_paper.experiments.registry import EXPERIMENTS
from mindist_paper.experiments.tables import best_penalty

ROW_COLUMNS = {
    *("task", "task_options", "num_simulations", "num_obs", "dim", "method", "method_options"),
    *("learned_summary", "epsilon", "delta", "contamination", "bandwidth", "seed", "dataset"),
    *("rmse", "coverage_50", "coverage_80", "coverage_90", "coverage_95", "posterior_sd"),
    *("predictive_mmd", "reference_mmd", "summary_distance", "summary_distance_standardised"),
    *("detected", "p_value", "adapted", "distance_obs", "distance_star", "seconds"),
}
DRAWN = {"coverage", "posterior", "images", "trajectories"}
OWN = [name for name, entry in EXPERIMENTS.items() if entry.own_rows is not None]


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


# ---------------------------------------------------------------------------- the registry


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_entry_has_distinct_cells_in_each_profile(name, profile):
    entry = EXPERIMENTS[name]
    cells = entry.cells(profile, 2)
    assert bool(cells) == (name not in OWN)
    assert len({cell.address for cell in cells}) == len(cells)
    assert {cell.bank.seed for cell in cells} == ({0, 1} if cells else set())
    for cell in cells:
        assert json.loads(cells_module.canonical(cell)) == json.loads(json.dumps(asdict(cell)))
    assert entry.minutes.keys() == set(PROFILES)
    assert entry.verdict is not None
    assert entry.shows
    assert entry.source
    assert "\n" not in entry.shows


def test_equal_settings_are_equal_cells_in_all_experiments():
    addresses = {
        name: {cell.address for cell in EXPERIMENTS[name].cells("paper", 1)} for name in EXPERIMENTS
    }
    assert addresses["gaussian"] & addresses["gaussian-delta"]
    assert addresses["gaussian"] & addresses["kl"]
    assert addresses["sir"] & addresses["sir-full"]
    assert addresses["oup"] & addresses["bandwidth"] & addresses["initialisation"]


def test_the_paper_profile_has_the_sizes_of_the_paper():
    def simulations(name):
        return {cell.bank.num for cell in EXPERIMENTS[name].cells("paper", 1)}

    assert simulations("gaussian") == {50_000}
    assert simulations("oup") == simulations("sir") == {10_000}
    assert simulations("cryo-em") == {15_000}
    for name in ("gaussian", "oup", "sir", "cryo-em"):
        for cell in EXPERIMENTS[name].cells("paper", 1):
            assert (cell.test.num, cell.test.num_samples) == (100, 2_000)
            assert "density_estimator" not in cell.recipe.training  # the paper's spline flow
            assert "num_obs" not in cell.bank.options  # 100


def test_no_path_gets_into_an_address(monkeypatch):
    monkeypatch.setenv("MINDIST_HSP90", "/somewhere/hsp90.pt")
    cells = EXPERIMENTS["cryo-em"].cells("quick", 1)
    assert {cell.bank.options["molecule"] for cell in cells} == {"hsp90"}
    assert not any("somewhere" in cells_module.canonical(cell) for cell in cells)
    monkeypatch.delenv("MINDIST_HSP90")
    others = EXPERIMENTS["cryo-em"].cells("quick", 1)
    assert {cell.bank.options["molecule"] for cell in others} == {"synthetic"}


# ---------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of `mindist reproduce all --profile smoke`."""
    folder = tmp_path_factory.mktemp("reproduce") / "smoke"
    with warnings.catch_warnings():
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
    assert b"<svg" in (folder / "figure.svg").read_bytes()
    assert "![Figure](figure.png)" in (folder / "table.md").read_text()
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    assert config["verdict"]
    assert config["command"].startswith(f"mindist reproduce {name} --profile smoke")
    assert str(results.parent) not in text
    assert socket.gethostname() not in text
    rows = output.read_rows(folder / "rows.parquet")
    assert config["cells"] == len(entry.cells("smoke", 1))
    if name not in OWN:
        assert set(rows.columns) >= ROW_COLUMNS
        assert len(rows) == sum(cell.test.num for cell in entry.cells("smoke", 1))
    shown = rows if entry.prepare is None else entry.prepare(rows)
    for panel in entry.panels:
        assert {panel.by, panel.series, *panel.where} <= set(shown.columns)
        assert panel.metric in DRAWN | set(shown.columns)


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_ends_with_the_same_rows(results):
    path = results / "detection/rows.parquet"
    before = output.read_rows(path)
    config = (results / "detection/config.json").read_text()
    stored = {file: file.stat().st_mtime_ns for file in (results / "store/cells").iterdir()}
    run = invoke("reproduce", "detection", "--profile", "smoke", "--out", results, "--workers", 1)
    assert run.exit_code == 0, run.output
    pd.testing.assert_frame_equal(output.read_rows(path), before)
    after = {file: file.stat().st_mtime_ns for file in (results / "store/cells").iterdir()}
    assert after == stored
    # The time is that of the run that computed the rows, not of the one that drew them again.
    assert (results / "detection/config.json").read_text() == config


def test_list_names_every_experiment_with_its_minutes():
    run = invoke("reproduce", "--list")
    assert run.exit_code == 0
    for name in EXPERIMENTS:
        assert f" {name} " in run.output
    for profile in PROFILES:
        assert profile in run.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gausian"], "Unknown experiment 'gausian'. Did you mean 'gaussian'? Known: figure1, "),
        (["gaussian", "--profile", "fast"], "Known: smoke, quick, paper."),
        (["gaussian", "--profile", "papr"], "Did you mean 'paper'?"),
        ([], "Name an experiment, or 'all'. Known: figure1"),
    ],
)
def test_what_is_unknown_ends_with_status_2_and_a_list(words, expected):
    run = invoke("reproduce", *words)
    assert run.exit_code == 2
    assert expected in run.output
    assert "Traceback" not in run.output


def test_seeds_and_workers_are_at_least_one():
    assert invoke("reproduce", "kl", "--seeds", 0).exit_code == 2
    assert invoke("reproduce", "kl", "--workers", 0).exit_code == 2


def _foreign(folder):
    (folder / "thesis.tex").write_text("precious")
    return "was not made by mindist"


def _other_version(folder):
    marker = {"kind": "mindist reproduce", "results": -1, "profile": "smoke"}
    (folder / output.MARKER).write_text(json.dumps(marker))
    return "holds results of version -1"


def _other_profile(folder):
    output.Output(folder, "paper")
    return "holds results of the profile 'paper', not 'smoke'"


def _damaged(folder):
    (folder / output.MARKER).write_text("{")
    return "is damaged"


@pytest.mark.parametrize("make", [_foreign, _other_version, _other_profile, _damaged])
def test_a_folder_of_something_else_is_refused_and_left_alone(make, tmp_path):
    expected = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    run = invoke("reproduce", "consistency", "--profile", "smoke", "--out", tmp_path)
    assert run.exit_code == 2
    assert expected in run.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    run = invoke("reproduce", "kl", "--profile", "smoke", "--out", tmp_path / "file")
    assert run.exit_code == 2
    assert "expected a folder" in run.output


def test_damaged_own_rows_are_computed_again_with_a_note(tmp_path):
    folder = output.Output(tmp_path / "out", "smoke")
    made = []

    def make():
        made.append(1)
        return pd.DataFrame({"a": [1.0, 2.0]})

    first = folder.own_rows("x", [1], make)
    assert folder.own_rows("x", [1], make).equals(first)
    assert len(made) == 1
    (path,) = (tmp_path / "out/store/own").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="computed again"):
        assert folder.own_rows("x", [1], make).equals(first)
    assert len(made) == 2


def test_without_typer_the_command_names_the_extra():
    code = "import sys; sys.modules['typer'] = None; import mindist.cli"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'mindist[cli]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_help_imports_neither_torch_nor_anything_else_that_is_heavy():
    code = (
        "import sys, mindist.cli; "
        "heavy = ('torch', 'numpy', 'pandas', 'sbi', 'matplotlib', 'sklearn'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---------------------------------------------------------------------------- verdicts


def _rows(**values):
    """Rows of ten datasets, each method at its value, with a little common noise."""
    noise = torch.randn(10, generator=torch.Generator().manual_seed(0)).mul(0.01).tolist()
    return pd.DataFrame(
        {"method": m, "epsilon": 0.2, "seed": 0, "dataset": i, "rmse": v + (i % 2 + 1) * n}
        for m, v in values.items()
        for i, n in enumerate(noise)
    )


@pytest.mark.parametrize(
    ("first", "second", "relation", "outcome"),
    [
        (0.1, 0.3, claims.BELOW, "agrees"),
        (0.3, 0.1, claims.BELOW, "disagrees"),
        (0.2, 0.2, claims.SIMILAR, "agrees"),
        (0.3, 0.1, claims.SIMILAR, "disagrees"),
    ],
)
def test_a_claim_is_decided_by_the_rows(first, second, relation, outcome):
    rows = _rows(**{"mds-rf": first, "npe": second})
    claim = claims.Claim("mds-rf", "npe", relation=relation)
    (found,) = claims.findings(rows, claim)
    assert found.outcome == outcome
    assert outcome in claims.sentence(rows, claim)


def test_equal_methods_are_undecided_and_missing_ones_not_compared():
    rows = _rows(**{"mds-rf": 0.2, "npe": 0.2})
    assert claims.findings(rows, claims.Claim("mds-rf", "npe"))[0].outcome == "undecided"
    assert claims.sentence(rows, claims.Claim("mds", "npe")).startswith("Not compared")


def test_the_best_lambda_of_each_setting_is_kept():
    rows = pd.DataFrame(
        {
            "task": "gaussian",
            "task_options": "{}",
            "contamination": "{}",
            "epsilon": epsilon,
            "seed": 0,
            "dataset": dataset,
            "method": "npe-rs",
            "method_options": json.dumps({"penalty": penalty}),
            "rmse": penalty if epsilon == 0 else 1 / penalty,
        }
        for epsilon in (0.0, 0.2)
        for penalty in (0.1, 10.0)
        for dataset in (0, 1)
    )
    kept = best_penalty(rows)
    assert len(kept) == 4
    assert set(kept.rmse) == {0.1}


# ---------------------------------------------------------------------------- the theorems


def test_the_exact_distance_is_the_squared_mmd_of_large_samples():
    theory = gaussian_theory.GaussianTheory(bandwidth=1.5)
    target = gaussian_theory.Mixture.of((0.8, (0.0, 0.0), 1.0), (0.2, (3.0, 3.0), 0.0))
    s = torch.tensor([[0.7, -0.2]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(2, 5_000, 2, generator=generator, dtype=torch.float64)
    model = s + normal[0] * math.sqrt(1 - 1 / theory.num_obs)
    data = torch.where(torch.arange(5_000)[:, None] < 4_000, normal[1], 3.0)
    sampled = mmd_squared(model, data, 1.5)
    assert float(theory.distance(s, target)) == pytest.approx(float(sampled), rel=0.05)


def test_gradient_and_hessian_are_those_of_the_distance():
    theory = gaussian_theory.GaussianTheory(bandwidth=1.5)
    target = gaussian_theory.Mixture.of((0.8, (0.0, 0.0), 1.0), (0.2, (3.0, 1.0), 0.0))
    s = torch.tensor([0.7, -0.2], dtype=torch.float64)

    def distance(at):
        return theory.distance(at[None], target)[0]

    hessian = torch.autograd.functional.hessian(distance, s)
    gradient = torch.autograd.functional.jacobian(distance, s)
    torch.testing.assert_close(theory.hessian(s, target), hessian)
    torch.testing.assert_close(theory.gradient(s, target), gradient)


@pytest.mark.parametrize("distance", [0.5, 2.5, 8.0])
def test_the_minimum_moves_by_the_influence_function(distance):
    theory = gaussian_theory.GaussianTheory()
    clean = gaussian_theory.Mixture.of((1.0, (0.0, 0.0), 1.0))
    y, epsilon = (0.6 * distance, 0.8 * distance), 1e-6
    moved = theory.minimum(clean.contaminated(epsilon, y)) / epsilon
    expected = theory.influence(torch.tensor(y, dtype=torch.float64))
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-6)
    assert expected.norm() <= theory.largest_influence
    peak = torch.tensor([theory.narrow**0.5, 0.0], dtype=torch.float64)
    assert float(theory.influence(peak).norm()) == pytest.approx(theory.largest_influence)


def test_the_embedding_of_a_mixture_is_the_mean_of_its_draws():
    generator = torch.Generator().manual_seed(0)
    features = theorems.FourierFeatures.draw((2,), 64, bandwidth=2.0, generator=generator)
    target = gaussian_theory.Mixture.of((0.75, (1.0, 0.0), 0.5), (0.25, (4.0, 0.0), 0.0))
    x = torch.randn(200_000, 2, generator=generator, dtype=torch.float64) * 0.5**0.5
    x[:, 0] += 1.0
    x[150_000:] = torch.tensor([4.0, 0.0], dtype=torch.float64)
    error = (theorems.embed(target, features) - features.mean(x[None])[0]).abs().max()
    assert float(error) < 5 * math.sqrt(2 / 64 / 200_000)


def test_the_fitted_minimum_is_the_exact_one():
    mds = theorems.fit("default", 2_000, 100, seed=0, raw=True)
    theory = gaussian_theory.GaussianTheory(mds.fitted_.features.bandwidth)
    clean = gaussian_theory.Mixture.of((1.0, (0.0, 0.0), 1.0))
    target = clean.contaminated(0.1, (3.0, 0.0))
    found, hessian = theorems.minimum(mds, target)
    # 512 random features know the kernel to a few per cent.
    torch.testing.assert_close(found, theory.minimum(target), rtol=0, atol=0.05)
    exact = theory.hessian(theory.minimum(target), target)
    torch.testing.assert_close(hessian, exact, rtol=0, atol=0.1 * float(exact.max()))


def test_robustness_is_bounded_for_mds_and_not_for_the_mean():
    rows = theorems.robustness_rows(profiles.THEOREM_SIZES["smoke"])
    outlier = rows[rows.part == "outlier"].pivot_table(
        index="outlier", columns="method", values="kl_slope"
    )
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
    assert theorems.log_log_slope(singular.epsilon, singular.kl_slope) == pytest.approx(
        -1 / 3, abs=0.05
    )
    verdict = EXPERIMENTS["robustness"].verdict(rows)
    assert "the bound does not hold there" in verdict
    assert "unlike the theorem" not in verdict


def test_the_posterior_at_the_minimum_concentrates_with_the_predicted_variance():
    sizes = theorems.TheoremSizes(400, 400, (30, 100, 300, 1_000), (30,))
    rows = theorems.consistency_rows(sizes)
    mean = rows.groupby(["method", "num_obs"]).rmse.mean()
    slope = theorems.log_log_slope(
        mean["mds-exact"].index.to_series(), mean["mds-exact"].reset_index(drop=True)
    )
    assert slope == pytest.approx(-0.5, abs=0.03)
    squared = rows.assign(squared=rows.rmse**2).groupby(["method", "num_obs"]).squared.mean()
    ratio = (squared["mds-exact"] / squared["oracle"]).mean()
    expected = gaussian_theory.GaussianTheory().variance_ratio
    # The two errors are strongly correlated: the ratio of 4 x 400 datasets is good to a per cent.
    assert ratio == pytest.approx(expected, abs=0.03)
    assert "disagrees" not in EXPERIMENTS["consistency"].verdict(rows)
