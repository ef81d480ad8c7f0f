"""The command line: statuses, JSON, and every common mistake read aloud."""

import contextlib
import fcntl
import json
import os
import pickle
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mindist import SimulationBank
from mindist.cli import app
from mindist.cli.errors import CommandError, extra
from mindist.cli.options import noted
from mindist.cli.output import print_verdicts, write_table

MODEL = """
import numpy as np
import torch

prior = torch.distributions.Uniform(torch.tensor([-3.0, 0.2]), torch.tensor([3.0, 2.0]))

def draws(n, rng):
    return rng.uniform([-3.0, 0.2], [3.0, 2.0], size=(n, 2))

def simulator(theta, n_obs, rng):
    return rng.normal(theta[0], theta[1], size=(n_obs, 1))

def summary(x):
    return np.concatenate([x.mean(1), x.std(1)], axis=1)

def raises(x):
    return x.mean(1)[undefined]

def wrong_shape(x):
    return x.mean()[None, None, None]

def no_licence(theta):
    raise RuntimeError("no licence")

prior_of_three = torch.distributions.Uniform(torch.zeros(3), torch.ones(3))
"""
SUMMARY = ("--summary", "model.py:summary")
SIMULATE = ("simulate", "model.py:prior", "model.py:simulator", *SUMMARY)
SMALL = ("--num", "400", "--n-obs", "30", "--chunk", "200")


def mindist(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def read(*words, status=0):
    """The JSON document of a command, and nothing else on stdout."""
    run = mindist(*words, "--json")
    assert run.exit_code == status, run.output
    document = json.loads(run.stdout)
    assert document.pop("mindist") == "0.1.0"
    assert document.pop("command") == words[0]
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a bank, an estimator, a posterior, and data: clean, and a third of it wrong."""
    path, here, paths = tmp_path_factory.mktemp("project"), Path.cwd(), list(sys.path)
    os.chdir(path)
    Path("model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    clean = rng.normal(1.0, 0.5, size=30)
    wrong = np.where(np.arange(30) < 10, 7.0, clean)
    write_table(Path("clean.csv"), {"x": clean.tolist()})
    write_table(Path("wrong.csv"), {"x": wrong.tolist()})
    both = {"run": ["a"] * 30 + ["b"] * 30, "x": [*clean.tolist(), *wrong.tolist()]}
    write_table(Path("both.csv"), both)
    made = {
        "simulate": read(*SIMULATE, *SMALL, "--out", "bank"),
        "fit": read("fit", "bank", *SUMMARY, "--out", "mds"),
        "train": read(
            *("train", "bank", "--prior", "model.py:prior", "--out", "posterior"),
            *("--density-estimator", "mdn", "--max-epochs", "30"),
        ),
    }
    yield made
    os.chdir(here)
    sys.path[:] = paths


# ---------------------------------------------------------------------------- results


def test_json_of_what_is_made(folder):
    made = folder
    assert made["simulate"].pop("seconds") > 0
    assert made["simulate"] == {
        **{"dry_run": False, "out": "bank", "datasets": 400, "n_obs": 30, "failed": {}},
        "shapes": {"theta": [2], "s": [2]},
    }
    assert set(made["fit"]) == {
        *("out", "datasets", "n_obs", "event_shape", "dim_summary", "alpha", "threshold"),
        *("bandwidth", "seed", "seconds"),
    }
    assert (made["fit"]["event_shape"], made["fit"]["alpha"]) == ([1], 0.05)
    assert set(made["train"]) == {
        *("out", "density_estimator", "datasets", "dim_theta", "dim_s", "seconds")
    }


def test_check_answers_by_its_status(folder):
    clean = read("check", "mds", "clean.csv", *SUMMARY)
    assert clean["misspecified"] is False
    (row,) = clean["datasets"]
    assert set(row) == {
        *("dataset", "n_obs", "misspecified", "p_value", "distance_obs", "threshold", "s_obs")
    }
    x = np.loadtxt("clean.csv", skiprows=1)
    assert row["s_obs"] == pytest.approx([x.mean(), x.std()])
    wrong = read("check", "mds", "wrong.csv", *SUMMARY, status=3)
    assert wrong["misspecified"] is True
    assert mindist("check", "mds", "wrong.csv", *SUMMARY, "--alpha", "0.0001").exit_code == 0


def test_check_in_words(folder):
    run = mindist("check", "mds", "wrong.csv", *SUMMARY)
    said = (
        r"Misspecified: only (.*)% of simulated datasets look as odd as this one \(p-value (.*), "
    )
    share, p_value = re.fullmatch(said + r"level 0.05\)\.\n", run.stdout).groups()
    assert 100 * float(p_value) == pytest.approx(float(share), rel=0.05)
    assert float(p_value) < 0.01
    assert run.stderr == ""
    run = mindist("check", "mds", "both.csv", *SUMMARY, "--dataset-column", "run")
    assert run.exit_code == 3
    first, *table = run.stdout.splitlines()
    assert first == (
        "1 of 2 datasets are misspecified; were none, about 0.1 would be called so by chance "
        "(level 0.05)."
    )
    assert [line.split()[0] for line in table] == ["dataset", "b"]


@pytest.mark.parametrize(("found", "title"), [(20, None), (21, "The 20 of them with the lowest")])
def test_a_list_of_datasets_says_what_it_lists(found, title, capsys):
    rows = [{"dataset": i, "n_obs": 5, "p_value": 1e-3 / (1 + i % 7)} for i in range(found)]
    print_verdicts([row | {"misspecified": True} for row in rows], 0.05)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{found} of {found} datasets are misspecified")
    assert (rest[0] == f"{title} p-values:") if title else rest[0].startswith("dataset ")
    p_values = [float(line.split()[-1]) for line in rest[1 + (title is not None) :]]
    assert p_values == sorted(p_values)
    assert len(p_values) == 20


def test_adapt_finds_the_wrong_observations(folder):
    (row,) = read("adapt", "mds", "wrong.csv", *SUMMARY)["datasets"]
    assert {"adapted", "status", "message", "s_star", "epsilon", "epsilon_error"} <= set(row)
    assert row["outliers"] == list(range(10))
    assert abs(row["s_star"][0] - 1.0) < 0.4 < abs(row["s_obs"][0] - 1.0)
    assert row["epsilon"] == pytest.approx(1 / 3, abs=3 * row["epsilon_error"])
    (row,) = read("adapt", "mds", "clean.csv", *SUMMARY)["datasets"]
    assert (row["adapted"], row["s_star"]) == (False, row["s_obs"])


def test_adapt_writes_tables(folder, tmp_path):
    import pandas as pd

    out, each = tmp_path / "datasets.parquet", tmp_path / "observations.csv"
    many = ("both.csv", "--dataset-column", "run")
    run = mindist("adapt", "mds", *many, *SUMMARY, "--out", out, "--observations", each)
    assert run.exit_code == 0, run.output
    datasets, observations = pd.read_parquet(out), pd.read_csv(each)
    assert datasets["dataset"].tolist() == ["a", "b"]
    assert datasets["misspecified"].tolist() == [False, True]
    assert {"s_obs_0", "s_obs_1", "s_star_0", "s_star_1", "epsilon"} <= set(datasets)
    assert observations.groupby("dataset")["outlier"].sum().to_dict() == {"a": 0, "b": 10}


@pytest.mark.slow
def test_sample_has_names_seeds_and_formats(folder, tmp_path):
    names = ("--posterior", "posterior", "--prior", "model.py:prior", "--names", "mean,sd")
    words = ("sample", "mds", "wrong.csv", *SUMMARY, *names, "--num", "200")
    document = read(*words, "--seed", "3", "--out", tmp_path / "a.csv")
    assert document["parameters"] == ["mean", "sd"]
    (row,) = document["datasets"]
    assert (row["adapted"], row["num_samples"]) == (True, 200)
    for suffix in (".parquet", ".npy", ".nc"):
        assert mindist(*words, "--seed", "3", "--out", tmp_path / f"a{suffix}").exit_code == 0
    theta = np.load(tmp_path / "a.npy")
    assert row["posterior"][0]["mean"] == pytest.approx(theta[:, 0].mean())
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "a.csv", delimiter=",", skiprows=1), theta)
    import arviz

    stored = arviz.from_netcdf(tmp_path / "a.nc").posterior
    np.testing.assert_allclose(stored["sd"].values[0], theta[:, 1], rtol=1e-5)
    other = read(*words, "--seed", "4")["datasets"][0]["posterior"][0]["mean"]
    assert other != row["posterior"][0]["mean"]


def test_sample_of_several_datasets(folder, tmp_path):
    names = ("--posterior", "posterior", "--prior", "model.py:prior", "--names", "mean,sd")
    words = ("sample", "mds", "both.csv", "--dataset-column", "run", *SUMMARY, *names)
    run = mindist(*words, "--num", "100", "--out", tmp_path / "a.csv")
    assert run.exit_code == 0, run.output
    *_, title, header, a, b, written = run.stdout.splitlines()
    assert title == "Posterior means and standard deviations, for 1 of 2 at an adapted summary:"
    assert (header.split(), a.split()[0], b.split()[0]) == (["dataset", "mean", "sd"], "a", "b")
    assert written == f"Written: {tmp_path / 'a.csv'}"
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert (lines[0], len(lines)) == ("dataset,mean,sd", 201)
    assert [line[:2] for line in lines[100:102]] == ["a,", "b,"]


def test_sample_from_a_pickle_only_on_trust(folder, tmp_path):
    from mindist.posteriors.sbi_storage import load_posterior

    prior = torch.distributions.Independent(
        torch.distributions.Uniform(torch.tensor([-3.0, 0.2]), torch.tensor([3.0, 2.0])), 1
    )
    file = tmp_path / "posterior.pkl"
    file.write_bytes(pickle.dumps(load_posterior("posterior", prior)[0]))
    words = ("sample", "mds", "clean.csv", *SUMMARY, "--posterior", file, "--num", "50")
    assert said(*words, status=2) == (
        f"--posterior: {file} is a pickle, and to load one is to run the program in it: whoever "
        "wrote the file can do with it all that you can do on this machine. If you made it "
        "yourself, or trust whoever did and the way it came, add --trust."
    )
    assert read(*words, "--trust")["datasets"][0]["num_samples"] == 50


def test_a_prior_without_a_density_is_said_to_have_no_bounds(folder):
    words = ("sample", "mds", "clean.csv", *SUMMARY, "--posterior", "posterior", "--num", "50")
    run = mindist(*words, "--prior", "model.py:draws")
    assert run.exit_code == 0, run.output
    assert run.stderr == (
        "Note: the prior is a function, so posterior samples are not cut off at its bounds. "
        "A torch distribution as the prior would do that.\n"
    )


def test_report_of_one_of_several(folder, tmp_path):
    words = ("report", "mds", "both.csv", *SUMMARY, "--dataset-column", "run")
    out = tmp_path / "report.html"
    assert said(*words, "--out", out, status=2) == (
        "A report is about one dataset. Name it with --dataset: a, b."
    )
    document = read(*words, "--out", out, "--dataset", "b")
    assert document["datasets"][0]["dataset"] == "b"
    page = out.read_text(encoding="utf-8")
    assert "</html>" in page
    assert ">s_0<" in page  # as `adapt` calls it


def test_tasks_are_listed():
    listed = read("tasks")["tasks"]
    assert [task["name"] for task in listed] == [
        *("gaussian", "gaussian_factor", "oup", "sir", "cryo_em")
    ]
    assert listed[0]["event_shape"] == [2]
    assert mindist("tasks", "gaussian").stdout.startswith("Gaussian location\n  prior ")
    assert said("tasks", "gausian", status=2) == (
        "Unknown task 'gausian'. Did you mean 'gaussian'? "
        "Known: gaussian, gaussian_factor, oup, sir, cryo_em."
    )


# ---------------------------------------------------------------------------- errors


def said(*words, status):
    """What a command that fails says: on stderr, and nothing on stdout."""
    run = mindist(*words)
    assert run.exit_code == status, run.output
    assert run.stdout == ""
    assert run.stderr.startswith("Error: ")
    return run.stderr.removeprefix("Error: ").rstrip("\n")


def files(**contents):
    for name, content in contents.items():
        Path(f"{name}.csv").write_text(content)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("nowhere", "clean.csv"), 2, "MDS: there is no folder nowhere. `mindist fit` makes one."),
        (
            ("bank", "clean.csv"),
            2,
            "MDS: bank is a bank of simulations. Give the folder that `mindist fit` made of it.",
        ),
        ((".", "clean.csv"), 2, "MDS: . is not a folder that `mindist fit` wrote."),
        (
            ("posterior", "clean.csv"),
            2,
            "MDS: posterior was written by `mindist train`. Give the folder that `mindist fit` "
            "wrote.",
        ),
        (("mds", "nothing.csv"), 2, "DATA: there is no file nothing.csv."),
        (
            ("mds", "model.py"),
            1,
            "expected a file whose name ends in .npy, .npz, .csv, .tsv, .txt, .parquet, .pq, .h5, "
            ".hdf5, .zarr, got 'model.py'. Rename or convert it.",
        ),
        (
            ("mds", "text.csv"),
            1,
            "--columns: text.csv has no column of numbers. It has 'name'. One word makes a column "
            "one of text; what is missing should be empty, NA or NaN.",
        ),
        (
            ("mds", "nan.csv"),
            1,
            "1 of 3 observations, in 1 of 1 datasets, have a missing, NaN or infinite value; the "
            "first is observation 1 of dataset '0'. Use --missing drop to leave such observations "
            "out, or impute them as the simulator would produce them.",
        ),
        (
            ("mds", "two.csv"),
            1,
            "--columns: expected 1 column for an observation of shape (1,), got 2: 'x', 'y'. "
            "Choose it with --columns NAME.",
        ),
        (
            ("mds", "index.csv"),
            1,
            "--columns: expected 1 column for an observation of shape (1,), got 2: '', 'x'. One "
            "without a name is often an index. Choose it with --columns NAME.",
        ),
        (("mds", "empty.csv"), 1, "empty.csv is empty."),
        (
            ("mds", "two.csv", "--columns", "z"),
            1,
            "--columns: two.csv has no column 'z'. It has 'x', 'y'.",
        ),
        (
            ("mds", "two.csv", "--dataset-column", "z"),
            1,
            "--dataset-column: two.csv has no column 'z'. It has 'x', 'y'.",
        ),
    ],
)
def test_mistakes_about_files(folder, words, status, message):
    files(text="name\na\nb\n", nan="x\n1\nnan\n3\n", two="x,y\n1,2\n3,4\n")
    files(index=",x\n0,1\n1,2\n", empty="")
    assert said("check", *words, *SUMMARY, status=status) == message


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        (
            "model.py",
            2,
            "--summary: expected module:attribute or file.py:attribute, got 'model.py'.",
        ),
        (
            "model.py:sumary",
            2,
            "--summary: model.py has no 'sumary'. It has draws, no_licence, "
            "prior, prior_of_three, raises, simulator, summary, wrong_shape.",
        ),
        ("no_module:f", 2, "--summary: no module named 'no_module'; a file ends in .py."),
        (
            "model.py:prior",
            1,
            "--summary: expected a function of datasets (B, N, *event), got "
            "Uniform. For the sample mean, pass lambda x: x.mean(1).",
        ),
        (
            "model.py:raises",
            1,
            "raises (model.py, line 17) raised NameError: name 'undefined' is "
            "not defined\nThe whole traceback: the same command with --debug.",
        ),
        (
            "model.py:wrong_shape",
            1,
            "--summary: expected summaries of shape (1, 2) for 1 datasets, "
            "got shape (1, 1, 1). A summary maps a batch of datasets (B, N, *event) to (B, d_s): "
            "for the sample mean that is lambda x: x.mean(1), not x.mean(0); a single number for "
            "each dataset needs [:, None].",
        ),
        (
            "syntax.py:f",
            1,
            "syntax.py raised SyntaxError: invalid syntax (syntax.py, line 1)\n"
            "The whole traceback: the same command with --debug.",
        ),
        (
            "lacks.py:f",
            1,
            "lacks.py, line 1, raised ModuleNotFoundError: No module named "
            "'no_such_library'\nThe whole traceback: the same command with --debug.",
        ),
    ],
)
def test_mistakes_about_the_summary(folder, name, status, message):
    Path("syntax.py").write_text("def f(:\n")
    Path("lacks.py").write_text("import no_such_library\n")
    assert said("check", "mds", "clean.csv", "--summary", name, status=status) == message


def test_a_forgotten_summary_is_remembered_and_not_executed(folder):
    assert said("check", "mds", "clean.csv", status=2) == (
        "Name the summary function: --summary file.py:name. mds was made with --summary "
        "model.py:summary."
    )
    assert said("fit", "bank", "--out", "other", status=2) == (
        "Name the summary function: --summary file.py:name. bank was made with --summary "
        "file.py:summary."
    )
    assert said(*SIMULATE[:3], *SMALL, "--out", "other", status=2) == (
        "Name the summary function: --summary file.py:name."
    )


@pytest.mark.parametrize("note", ["{", "[]", '{"summary": 3}', '{"summary": "\\u001b[2J"}', ""])
def test_notes_of_strangers_are_text_or_nothing(tmp_path, note):
    (tmp_path / "command.json").write_text(note)
    assert noted(tmp_path, "summary") is None
    (tmp_path / "command.json").write_text(json.dumps({"summary": "a" * 999}))
    assert noted(tmp_path, "summary") == "a" * 200


def test_mistakes_about_the_posterior(folder):
    words = ("sample", "mds", "clean.csv", *SUMMARY)
    kinds = "a folder that `mindist train` wrote, file.py:name, or a pickle of sbi's with --trust"
    assert said(*words, status=2) == f"Name the posterior: --posterior, {kinds}."
    assert said(*words, "--posterior", "none", status=2) == (
        f"--posterior: expected {kinds}; there is no none."
    )
    assert said(*words, "--posterior", "posterior", status=2) == (
        "Name the prior of the posterior: --prior file.py:name. posterior was made with "
        "--prior model.py:prior."
    )
    for other, of in (
        ((*words, "--posterior", "posterior"), "posterior"),
        (("train", "bank", "--out", "new"), "bank"),
    ):
        assert said(*other, "--prior", "model.py:prior_of_three", status=1) == (
            f"--prior: expected one of parameters of shape (2,), as the {of} has them, got one of "
            "shape (3,). Is it the prior of another model?"
        )
    ready = (*words, "--posterior", "posterior", "--prior", "model.py:prior")
    assert said(*ready, "--names", "mean", status=2) == (
        "--names: expected 2 different names, separated by commas, got 'mean'."
    )
    assert said(*ready, "--out", "samples.xlsx", status=2) == (
        "--out: expected a file whose name ends in .nc, .csv, .parquet, .npy, got 'samples.xlsx'."
    )
    assert said(*ready, "--out", "no/samples.csv", status=2) == (
        "--out: there is no folder no. Make it first."
    )
    many = ("sample", "mds", "both.csv", "--dataset-column", "run", *ready[3:])
    assert said(*many, "--out", "samples.nc", status=2) == (
        "--out: a .nc file holds the samples of one dataset, and both.csv has 2. Write a .csv or "
        ".parquet, which has a column `dataset`."
    )


@pytest.mark.slow
def test_mistakes_about_the_bank(folder, tmp_path):
    fit = ("fit", tmp_path / "bank", *SUMMARY, "--out", tmp_path / "mds")
    assert said(*fit, status=2) == (
        f"BANK: there is no folder {tmp_path / 'bank'}. `mindist simulate` makes one."
    )
    assert said("fit", "mds", *SUMMARY, "--out", "other", status=2) == (
        "BANK: mds is not a bank that `mindist simulate` wrote."
    )
    assert mindist(*SIMULATE, *SMALL, "--out", tmp_path / "bank").exit_code == 0
    (tmp_path / "bank" / "chunks" / "00001" / "zarr.json").unlink()
    assert not SimulationBank.open(tmp_path / "bank").complete
    assert said(*fit, status=1) == (
        f"BANK: {tmp_path / 'bank'} is not complete: 200 of 400 datasets are there. No draw "
        "failed. Run the `mindist simulate` that began it again; it goes on where it stopped."
    )
    assert mindist(*SIMULATE, *SMALL, "--out", tmp_path / "bank").exit_code == 0
    assert mindist(*fit).exit_code == 0


def test_another_summary_than_the_banks(folder):
    other = ("fit", "bank", "--summary", "other.py:summary", "--out", "other")
    Path("other.py").write_text("def summary(x):\n    return x[:, :2, 0]\n")
    s, own = SimulationBank.open("bank").s[0].tolist(), SimulationBank.open("bank").pilot[0]
    assert said(*other, status=1) == (
        f"--summary: expected the function that the bank was simulated with, which gives {s} on "
        f"its first dataset, got one that gives {own[0, :2, 0].tolist()}. Pass the same function "
        "(and, for a network, the same weights), or simulate again."
    )


def test_a_simulator_that_fails(folder):
    words = ("simulate", "model.py:prior", "model.py:no_licence", *SUMMARY, *SMALL)
    assert "RuntimeError: no licence" in said(*words, "--out", "other", status=1)
    assert said(*SIMULATE, *SMALL, status=2) == (
        "Say where to: --out FOLDER, or what it takes: --dry-run."
    )


def test_options_that_are_wrong_are_usage_errors(folder):
    for words in [
        ("check", "mds", "clean.csv", *SUMMARY, "--alpha", "2"),
        ("check", "mds", "clean.csv", *SUMMARY, "--missing", "impute"),
        ("check", "mds"),
        ("chek", "mds"),
        ("sample", "mds", "clean.csv", *SUMMARY, "--num", "0"),
    ]:
        run = mindist(*words)
        assert (run.exit_code, run.stdout) == (2, ""), run.output
        assert "Error" in run.stderr


def test_debug_shows_the_traceback_wherever_it_stands(folder):
    words = ["check", "mds", "clean.csv", "--summary", "model.py:raises"]
    for line in ([*words, "--debug"], ["--debug", *words]):
        assert isinstance(mindist(*line).exception, NameError)


# ---------------------------------------------------------------------------- as a process


def process(*words, cwd=None, **variables):
    command, env = [sys.executable, "-m", "mindist.cli", *words], os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)


@pytest.mark.slow
def test_a_process_is_quiet_without_a_terminal(folder):
    run = process("check", "mds", "wrong.csv", *SUMMARY, "--json")
    assert (run.returncode, run.stderr) == (3, "")
    assert json.loads(run.stdout)["misspecified"] is True
    run = process("check", "mds", "wrong.csv", "--summary", "model.py:raises")
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    run = process("check", "mds", "wrong.csv", "--summary", "model.py:raises", "--debug")
    assert run.returncode == 1
    assert run.stderr.rstrip().endswith("NameError: name 'undefined' is not defined")


@pytest.mark.slow
def test_a_terminal_sees_a_bar_with_the_time_left(folder, tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    words = [*SIMULATE, *SMALL, "--out", str(tmp_path / "bank")]
    command = [sys.executable, "-m", "mindist.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as run:
        os.close(theirs)
        shown = read_all(ours)
        assert run.stdout.read().startswith(b"400 of 400 datasets are there.")
    assert re.search(rb"400/400 \[\d\d:\d\d<\d\d:\d\d", shown)


def read_all(terminal):
    """What is shown on a terminal until the process at its other end has gone."""
    parts = []
    with contextlib.suppress(OSError):  # EIO: it has gone
        while part := os.read(terminal, 65_536):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts)


def test_help_needs_no_torch():
    code = "import sys, mindist.cli; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
    run = process("--help")
    assert run.returncode == 0
    first = ["simulate", "fit", "train", "check", "adapt", "sample", "report", "demo", "tasks"]
    found = re.findall(r"^\W*(\w+)  +[A-Z]", run.stdout.partition("Your model")[2], re.M)
    assert found == [*first, "reproduce", "bench"]


def test_a_shell_completes_commands():
    asked = {"_MINDIST_COMPLETE": "complete_bash", "COMP_WORDS": "mindist re", "COMP_CWORD": "1"}
    assert process(**asked).stdout.split() == ["report", "reproduce"]
    assert "complete" in process(_MINDIST_COMPLETE="source_bash").stdout


def test_stub_and_package_have_the_same_names():
    import mindist as package

    stub = Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    names = sorted(line.split(" as ")[1] for line in stub.splitlines() if " as " in line)
    assert names == package.__all__
    assert set(names) <= set(dir(package))
    with pytest.raises(AttributeError, match=r"attribute '?nothing"):
        _ = package.nothing


def test_experiments_are_listed_for_machines():
    experiments = read("reproduce", "--list")["experiments"]
    assert {"name", "shows", "source", "minutes"} == set(experiments[0])
    assert {"kl", "zoo", "ricker"} <= {experiment["name"] for experiment in experiments}
    assert said("reproduce", status=2).startswith("Name an experiment, or 'all'. Known: ")


def test_a_missing_library_names_its_extra():
    message = r"no_such_library is not installed. Install it with: pip install 'mindist\[demo\]'"
    with pytest.raises(CommandError, match=message), extra("demo"):
        import no_such_library  # noqa: F401
