"""One vector per object: on the command line, as a page, in a notebook, for ArviZ.

The model is x_i = theta + 0.1 e_i, theta and e_i standard normal, eight entries: given the k that
are believed, theta is normal with mean sum(x) / (k + 0.01) and variance 0.01 / (k + 0.01).
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mindist
from mindist.cli import app
from mindist.observed import read_observed
from mindist.report import new_figure, plot_entries, write_report
from page_reader import read as read_page

D = 8
MODEL = """
import torch

prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), 1.0), 1)

def simulator(theta, rng):  # entries as the observations of a dataset
    return theta + 0.1 * rng.normal(size=(8, 1))

def vector(x):
    return x[:, :, 0]

def posterior(x, num):
    return x.sum() / 8.01 + (0.01 / 8.01) ** 0.5 * torch.randn(num, 1)
"""
X = np.array([0.5, 0.45, 0.62, 0.4, 0.55, 0.48, 0.6, 0.52])
WRONG = np.where(np.arange(D) == 2, 4.0, np.where(np.arange(D) == 6, np.nan, X))
BELIEVED = np.delete(X, [2, 6])


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def read(*words, status=0):
    """The JSON document of a command."""
    done = run(*words, "--json")
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def said(*words):
    """What a command says that fails, on stderr."""
    done = run(*words)
    assert (done.exit_code in (1, 2), done.stdout) == (True, ""), done.output
    return done.stderr.removeprefix("Error: ").rstrip("\n")


def csv(path, *rows, names=True):
    """A table with an empty cell for each missing entry."""
    lines = [",".join((["id"] if names else []) + [f"b{i}" for i in range(D)])]
    for i, row in enumerate(rows):
        cells = ["" if np.isnan(v) else f"{v}" for v in row]
        lines.append(",".join(([f"object {i}"] if names else []) + cells))
    Path(path).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, simulated vectors, an Entrywise, and tables: one vector, and three."""
    path, here, paths = tmp_path_factory.mktemp("vectors"), Path.cwd(), list(sys.path)
    os.chdir(path)
    Path("model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 1)) + 0.1 * rng.normal(size=(2_000, D))
    np.savez("simulated.npz", x=x.astype(np.float32), theta=x[:, :1])
    csv("one.csv", WRONG, names=False)
    csv("many.csv", X, WRONG, np.where(np.arange(D) == 1, np.nan, X))
    yield read("fit", "simulated.npz", "--key", "x", "--entrywise", "--out", "entries")
    os.chdir(here)
    sys.path[:] = paths


@pytest.fixture(scope="module")
def entries(folder):
    return mindist.Entrywise.load("entries")


# ---------------------------------------------------------------------------- command line


def test_fit_says_what_it_was_fitted_to(folder, entries):
    document = dict(folder)
    assert document.pop("seconds") > 0
    assert document == {
        **{"command": "fit", "mindist": "0.1.0", "out": "entries", "vectors": 2_000},
        **{"event_shape": [D], "alpha": 0.05, "seed": 0},
    }
    assert entries.event_shape == (D,)


def test_check_of_a_table_of_vectors(folder):
    document = read("check", "entries", "many.csv", "--dataset-column", "id", status=3)
    rows = document["datasets"]
    assert [row["dataset"] for row in rows] == ["object 0", "object 1", "object 2"]
    assert [row["misspecified"] for row in rows] == [False, True, False]
    assert [row["missing"] for row in rows] == [[], [6], [1]]
    assert set(rows[0]) == {"dataset", "n_entries", "misspecified", "p_value", "missing"}
    done = run("check", "entries", "many.csv", "--dataset-column", "id")
    assert done.stdout.startswith("1 of 3 vectors are misspecified; were none, about 0.15 would")
    level = ("--alpha", "0.0001")
    assert run("check", "entries", "one.csv", *level).exit_code == 0


def test_adapt_finds_the_wrong_entry_and_fills_in_the_missing_one(folder, tmp_path):
    import pandas as pd

    out, each = tmp_path / "vectors.csv", tmp_path / "entries.csv"
    done = run("adapt", "entries", "one.csv", "--out", out, "--observations", each)
    assert done.exit_code == 0, done.output
    assert "Outliers: 1 of 8 entries, counted from 0: 2." in done.stdout
    assert "Missing: 1 of 8 entries, counted from 0: 6." in done.stdout
    table = pd.read_csv(each)
    assert table["outlier"].tolist() == [i == 2 for i in range(D)]
    assert table["missing"].tolist() == [i == 6 for i in range(D)]
    # Given six others an entry has the mean of theta, and variance 0.01 (1 + 1 / 6.01).
    expected = BELIEVED.sum() / 6.01
    assert table["predicted"][2] == pytest.approx(expected, abs=0.05)
    assert table["spread"][2] == pytest.approx(0.1 * (1 + 1 / 6.01) ** 0.5, rel=0.25)
    (row,) = pd.read_csv(out).to_dict("records")
    assert (row["outliers"], row["missing"], row["status"]) == (1, 1, "set_aside")
    assert [row[f"completed_mean_{i}"] for i in (0, 2)] == pytest.approx([0.5, expected], abs=0.1)
    many = run("adapt", "entries", "many.csv", "--dataset-column", "id")
    assert [line.split()[:2] for line in many.stdout.splitlines()[-2:]] == [
        *(["object", "1"], ["object", "2"])
    ]


def test_arrays_hold_vectors_too(folder, tmp_path):
    np.save(tmp_path / "one.npy", WRONG)
    np.save(tmp_path / "two.npy", np.stack([WRONG, X]))
    (tmp_path / "column.csv").write_text(
        "x\n" + "\n".join("" if np.isnan(v) else f"{v}" for v in WRONG) + "\n"
    )
    rows = [
        row
        for name in ("one.npy", "two.npy", "column.csv")
        for row in read("adapt", "entries", tmp_path / name)["datasets"]
    ]
    assert [row["outliers"] for row in rows] == [[2], [2], [], [2]]
    assert [row["missing"] for row in rows] == [[6], [6], [], [6]]


def test_samples_are_those_of_the_entries_that_are_believed(folder, tmp_path):
    arviz = pytest.importorskip("arviz")
    asked = ("--posterior", "model.py:posterior", "--names", "theta", "--num", "4000")
    done = run("sample", "entries", "one.csv", *asked, "--out", tmp_path / "a.nc")
    assert done.exit_code == 0, done.output
    assert "Posterior averaged over completed vectors, 4,000 samples:" in done.stdout
    stored = arviz.from_netcdf(tmp_path / "a.nc")
    theta = stored.posterior["theta"].values.ravel()
    assert stored.posterior.attrs["queried_at"] == "completed vectors"
    assert stored.constant_data["outliers"].values.tolist() == [i == 2 for i in range(D)]
    assert np.isnan(stored.observed_data["x"].values).tolist() == [i == 6 for i in range(D)]
    # 32 completed vectors: the mean is off by about a sixth of the sd, the sd by an eighth.
    sd = (0.01 / 6.01) ** 0.5
    assert theta.mean() == pytest.approx(BELIEVED.sum() / 6.01, abs=sd)
    assert theta.std() == pytest.approx(sd, rel=0.4)
    many = ("sample", "entries", "many.csv", "--dataset-column", "id", *asked)
    rows = read(*many, "--out", tmp_path / "a.csv")["datasets"]
    assert [row["adapted"] for row in rows] == [False, True, True]
    assert [row["posterior"][0]["mean"] for row in rows] == pytest.approx([X.mean()] * 3, abs=0.15)
    assert (tmp_path / "a.csv").read_text().startswith("dataset,theta\nobject 0,")


def test_report_of_one_of_several_vectors(folder, tmp_path):
    words = (
        "report",
        "entries",
        "many.csv",
        "--dataset-column",
        "id",
        "--out",
        tmp_path / "r.html",
    )
    assert said(*words) == (
        "A report is about one vector. Name it with --dataset: object 0, object 1, object 2."
    )
    named = ("--dataset", "object 1", "--posterior", "model.py:posterior")
    assert read(*words, *named)["datasets"][0]["outliers"] == [2]
    assert "Report on an observed vector" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_fit_to_a_bank_takes_its_summaries(folder, tmp_path):
    pytest.importorskip("zarr")
    words = ("model.py:prior", "model.py:simulator", "--summary", "model.py:vector")
    sizes = ("--num", "300", "--n-obs", D, "--out", tmp_path / "bank")
    assert run("simulate", *words, *sizes).exit_code == 0
    fit = ("fit", tmp_path / "bank", "--entrywise", "--alpha", "0.1", "--out", tmp_path / "e")
    assert read(*fit, "--groups", "0,0,1,1,2,2,3,3")["vectors"] == 300
    loaded = mindist.Entrywise.load(tmp_path / "e")
    assert (loaded.alpha, loaded.groups.tolist()) == (0.1, [0, 0, 1, 1, 2, 2, 3, 3])
    assert read("adapt", tmp_path / "e", "one.csv")["datasets"][0]["outliers"] == [2, 3]
    assert said(*fit, "--groups", "0,0").startswith("--groups: expected 'auto', or 8 numbers")
    assert said(*fit, "--key", "x") == "--key: has no use with a bank. Leave it out."


WROTE = "has no use with entries, which `mindist fit --entrywise` wrote. Leave it out."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "entries", "one.csv", "--summary", "model.py:vector"), f"--summary: {WROTE}"),
        (("adapt", "entries", "one.csv", "--missing", "drop"), f"--missing: {WROTE}"),
        (("adapt", "entries", "one.csv", "--force"), f"--force: {WROTE}"),
        (
            ("fit", "simulated.npz", "--entrywise", "--selftest", "--out", "e"),
            "--selftest: has no use with --entrywise. Leave it out.",
        ),
        (
            ("fit", "simulated.npz", "--groups", "auto", "--out", "e"),
            "--groups: has no use without --entrywise. Leave it out.",
        ),
        (
            ("fit", "simulated.npz", "--out", "e"),
            "BANK: simulated.npz is not a bank that `mindist simulate` wrote. A file of simulated "
            "vectors is for --entrywise.",
        ),
        (
            ("fit", "one.csv", "--entrywise", "--out", "e"),
            "expected at least 200 simulated vectors (M, *event), got shape (1, 8). Simulate more; "
            "a posterior over 14 bands has x of shape (M, 14).",
        ),
        (
            ("check", "entries", "short.csv"),
            "--columns: expected 8 columns for an observation of shape (8,), got 2: 'a', 'b'. "
            "Choose them with --columns NAME,NAME.",
        ),
        (
            ("check", "entries", "column.csv"),
            "--columns: expected one column of 8 rows, or a row for each vector, got one column of "
            "3 rows.",
        ),
        (
            ("sample", "entries", "one.csv", "--posterior", "entries"),
            "--posterior: entries was written by `mindist fit`. Give the folder that `mindist "
            "train` wrote.",
        ),
    ],
)
def test_mistakes_are_said(folder, words, message):
    Path("short.csv").write_text("a,b\n1,2\n")
    Path("column.csv").write_text("a\n1\n2\n3\n")
    assert said(*words) == message


def test_a_minimum_distance_wants_its_summary(folder, tmp_path):
    x = torch.randn(400, 12, 1, generator=torch.Generator().manual_seed(0))
    mds = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
    mds.save(tmp_path / "mds")
    assert said("check", tmp_path / "mds", "one.csv") == (
        "Name the summary function: --summary file.py:name."
    )
    with pytest.raises(ValueError, match="holds MinimumDistance, expected Entrywise"):
        mindist.Entrywise.load(tmp_path / "mds")


def test_vectors_have_names_and_keep_what_is_missing(tmp_path):
    csv(tmp_path / "a.csv", X, WRONG)
    observed = read_observed(tmp_path / "a.csv", dataset="id", missing="keep")
    assert (observed.names, observed.event_shape) == (("object 0", "object 1"), (D,))
    np.testing.assert_array_equal(observed["object 1"], WRONG)
    assert repr(observed) == "Observed(2 vectors of shape (8,))"
    np.savez(tmp_path / "a.npz", first=X, second=np.stack([X, WRONG]))
    observed = read_observed(tmp_path / "a.npz", event_shape=(D,), key="*", missing="keep")
    assert observed.names == (("first", 0), ("second", 0), ("second", 1))
    with pytest.raises(ValueError, match=r"one vector of shape \(3\) or many, \(B, 3\)"):
        read_observed(tmp_path / "a.npz", event_shape=(3,), key="first", missing="keep")


# ---------------------------------------------------------------------------- page and notebook


@pytest.fixture(scope="module")
def result(entries):
    return entries.adapt(WRONG)


def draw(x, num):
    return x.sum() / 8.01 + (0.01 / 8.01) ** 0.5 * torch.randn(num, 1)


def text_of(path):
    return " ".join(" ".join(read_page(path.read_text(encoding="utf-8")).text).split())


def test_a_page_says_what_is_wrong_with_a_vector(tmp_path, result, entries):
    hostile = '"><script>alert(1)</script>'
    names = [hostile, *(f"band {i}" for i in range(1, D))]
    path = result.report(
        tmp_path / "a.html", mds=entries, posterior=draw, theta_names=["t"], summary_names=names
    )
    page, text = path.read_text(encoding="utf-8"), text_of(path)
    assert "These data do not look like data from the simulator." in text
    assert f"The p-value is {float(result.p_value):.3g}: of vectors that come from" in text
    assert "1 of 8 entries is set aside, 1 is missing." in text
    assert result.message[1:] in text
    assert "For entries that are missing the observed vector has predictions." in text
    reader = read_page(page)
    tags = [tag for tag, _ in reader.seen]
    assert (tags.count("script"), tags.count("svg")) == (1, 3)
    rows = re.findall(r'<tr( class="strange")?><th scope="row" data-v="(\d+)">', page)
    assert [int(i) for strange, i in rows if strange] == [2, 6]
    assert len(rows) == D
    for mark in ("data-obs-2", "data-obs-6"):  # what the buttons of the table light up
        assert [a.get("id") for _, a in reader.seen].count(mark) == 1
    # The mean of theta before, with the prediction for the missing entry, and after.
    filled = np.where(np.isnan(WRONG), BELIEVED.sum() / 6.01, WRONG)
    before, after = (
        float(value)
        for value in re.search(r"t (-?[\d.]+) ± [\d.]+ (-?[\d.]+) ± [\d.]+ Back", text).groups()
    )
    assert before == pytest.approx(filled.sum() / 8.01, abs=0.03)
    assert after == pytest.approx(BELIEVED.sum() / 6.01, abs=0.05)


def test_a_page_on_a_clean_vector_needs_nothing_else(tmp_path, entries):
    text = text_of(entries.adapt(X).report(tmp_path / "a.html"))
    assert "Nothing in these data speaks against the simulator." in text
    assert "0 of 8 entries are set aside, 0 are missing." in text
    assert "With result.report(path, mds=entries, posterior=posterior)" in text


@pytest.mark.parametrize("x", [np.full(D, np.nan), np.where(np.arange(D) == 1, np.inf, X)])
def test_a_page_on_nothing_or_on_infinity(tmp_path, entries, x):
    result = entries.adapt(x)
    assert result.message[1:] in text_of(result.report(tmp_path / "a.html"))


def test_an_image_is_drawn_with_marked_pixels(tmp_path):
    generator = torch.Generator().manual_seed(0)
    scale = torch.randn(600, 1, 1, generator=generator)
    x = scale + 0.1 * torch.randn(600, 4, 5, generator=generator)
    x_obs = torch.zeros(4, 5)
    x_obs[1, 2], x_obs[3, 4] = 3.0, torch.nan
    result = mindist.Entrywise().fit(x).adapt(x_obs)
    _, (axes,) = new_figure(1)
    plot_entries(axes, result, mark="obs-")
    marked = {patch.get_gid(): patch.get_xy() for patch in axes.patches}
    assert marked == {"obs-1,2": (2, 1), "obs-3,4": (4, 3)}
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *("observed", "predicted from the others", "filled in")
    ]
    page = result.report(tmp_path / "a.html").read_text(encoding="utf-8")
    assert 'id="data-obs-1,2"' in page


def test_a_plot_shows_values_or_residuals(result):
    _, (axes,) = new_figure(1)
    plot_entries(axes, result, kind="residuals", mark="m")
    drawn = {line.get_gid(): float(line.get_ydata()[0]) for line in axes.lines if line.get_gid()}
    off = (result.x_obs - result.predicted) / result.spread
    assert drawn["m2"] == pytest.approx(float(off[2]))
    with pytest.raises(ValueError, match="kind: expected one of 'values', 'residuals', 'image'"):
        plot_entries(axes, result, kind="bars")


def test_what_does_not_belong_together_is_an_error(tmp_path, result, entries, mds_small):
    path = tmp_path / "a.html"
    for given, error in (
        ({"result": result, "x": X}, "x: expected the vector that the result is about"),
        ({"result": entries.adapt(np.stack([X, X]))}, "result: expected one vector, got 2"),
        ({"result": result, "simulator": draw}, "simulator: expected None for one vector"),
        ({"result": result, "summary_names": ["a"]}, "summary_names: expected 8 names"),
    ):
        with pytest.raises(ValueError, match=error):
            write_report(path, **given)
    for given in ({"posterior": draw}, {"mds": mds_small}):
        with pytest.raises(TypeError, match="mds: expected the fitted Entrywise that gave"):
            write_report(path, result=result, **given)
    with pytest.raises(TypeError, match="result: expected an Adaptation or a Completion"):
        write_report(path, result=entries.detect(X), mds=entries)
    assert not path.exists()


def test_a_notebook_shows_one_vector_and_a_batch(result, entries):
    text = " ".join(read_page(result._repr_html_()).text)
    assert "misspecified" in text
    predicted, spread = float(result.predicted[2]), float(result.spread[2])
    assert f"1 of 8 entries: 2 (4 seen, {predicted:.4g} ± {spread:.2g} expected)" in text
    assert "1 of 8 entries: 6 (" in text
    assert result.status.message in text
    text = " ".join(read_page(entries.detect(WRONG)._repr_html_()).text)
    assert "Missing" in text
    assert "Set aside" not in text
    batch = entries.adapt(np.stack([X, WRONG]))
    reader = read_page(batch._repr_html_())
    assert "1 of 2 vectors misspecified" in " ".join(reader.text)
    assert [tag for tag, _ in reader.seen].count("tr") == 3


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_renders_and_its_table_works(chromium, tmp_path, result, width, dark):
    path = result.report(tmp_path / "a.html")
    chromium.open(path, width=width, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    said = chromium.run("document.getElementById('said').textContent")
    assert said == "2 of 8 entries shown, by score, highest first."
    button = "document.querySelector('#observations tbody button')"
    chromium.run(f"{button}.click()")
    assert chromium.run("document.getElementById('data-obs-2').classList.contains('lit')")
    assert (chromium.complaints, chromium.requests) == ([], [path.as_uri()])
