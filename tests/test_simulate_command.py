"""`mindist simulate`: code named on the command line, a bank, what it would take."""

import sys
import textwrap

import numpy as np
import pytest
from typer.testing import CliRunner

import mindist
from mindist.cli import app
from mindist.cli.options import load_user_code

MODEL = """
    import helper_of_model

    class Model:
        def prior(self, n, rng):
            return rng.normal(size=(n, 1))

        def simulator(self, theta, n_obs, rng):
            return rng.normal(helper_of_model.double(theta), size=(n_obs, 1))

    model = Model()

    def summary(x):
        return x.mean(1)

    def broken(theta):
        raise RuntimeError("no licence")
"""


@pytest.fixture
def names(tmp_path, monkeypatch):
    (tmp_path / "helper_of_model.py").write_text("def double(theta):\n    return 2 * theta\n")
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "model.py"
    return [f"{file}:model.prior", f"{file}:model.simulator", "--summary", f"{file}:summary"]


def invoke(*arguments):
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_bank_from_a_file(names, tmp_path):
    size = ["--num", 400, "--n-obs", 6, "--chunk", 100, "--seed", 2]
    code, output = invoke(*names, *size, "--out", tmp_path / "bank")
    assert code == 0
    assert output.startswith("400 of 400 datasets are there. No draw failed. They are in ")
    bank = mindist.SimulationBank.open(tmp_path / "bank")
    slope = np.polyfit(bank.theta[:, 0], bank.s[:, 0], 1)[0]
    assert slope == pytest.approx(2, abs=4 * 6**-0.5 / 20)  # four standard errors
    code, output = invoke(*names, *size[:-1], 3, "--out", tmp_path / "bank")
    assert code == 1
    assert "seed is 2 there and 3 here" in output


@pytest.fixture
def running_workers(tmp_path):
    """Processes that an earlier call has started, which do not know the folder of the file."""

    def prior(n, rng):
        return rng.normal(size=(n, 1))

    def simulator(theta, rng):
        return rng.normal(theta, size=(3, 1))

    for name, how in (("before", {"workers": 2}), ("limited", {"time_limit": 20})):
        out = tmp_path / name
        mindist.simulate(
            prior, simulator, lambda x: x.mean(1), 20, n_obs=3, out=out, chunk=5, **how
        )


@pytest.mark.slow
@pytest.mark.usefixtures("running_workers")
def test_functions_of_a_file_reach_other_processes(names, tmp_path):
    size = ["--num", 40, "--n-obs", 6, "--chunk", 10]
    assert invoke(*names, *size, "--out", tmp_path / "a", "--workers", 2)[0] == 0
    limited = ["--out", tmp_path / "b", "--time-limit", 20]
    assert invoke(*names, *size, *limited)[0] == 0
    first, second = (mindist.SimulationBank.open(tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(first.z_bar[:], second.z_bar[:])


def test_dry_run(names, tmp_path):
    size = ["--num", 20_000, "--n-obs", 10, "--keep", "data", "--workers", 2]
    code, output = invoke(*names, *size, "--dry-run")
    assert code == 0
    lines = output.splitlines()
    assert lines[0].endswith("simulated one by one, 100 chunks of 200, 2 workers:")
    assert [line.split()[0] for line in lines[1:]] == ["time", "memory", "disk"]
    # theta, s and x in float64, validity, 512 features in float32
    megabytes = 20_000 * (8 + 8 + 80 + 1 + 2_048) / 1e6
    assert lines[3] == f"disk    {int(megabytes) + 1} MB at most"


def test_errors_are_messages(names, tmp_path):
    prior, simulator, *summary = names
    size, out = ["--num", 40, "--n-obs", 6], ["--out", tmp_path / "bank"]
    for arguments, code, message in [
        ([*names, *size], 2, "--out FOLDER"),
        ([f"{prior}x", simulator, *summary, *size, *out], 2, "PRIOR: "),
        (["nothing.py:p", simulator, *summary, *size, *out], 2, "PRIOR: there is no file"),
        (["no_such_module:p", simulator, *summary, *size, *out], 2, "PRIOR: no module named"),
        (["prior", simulator, *summary, *size, *out], 2, "expected module:attribute"),
        ([prior, summary[1].replace("summary", "broken"), *summary, *size, *out], 1, "no licence"),
    ]:
        got, output = invoke(*arguments)
        assert (got, message in output) == (code, True), output


def test_a_module_that_lacks_something_says_what(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        load_user_code("needs_more:x", "PRIOR")
