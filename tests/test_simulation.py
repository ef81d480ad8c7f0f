"""A bank depends on its arguments alone, says what failed, and refuses what it is not."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
import zarr

import bank_cases as cases
import mindist
from mindist.features.embedding import Embedding
from mindist.schema import Record
from mindist.simulation.build import probe
from mindist.simulation.calls import Sources, draw_seed
from mindist.simulation.schema import Settings, SimulationError
from mindist.simulation.store import BankLockedError, locked, write_group
from mindist.storage import FullDiskError
from mindist.tasks import GaussianTask

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    """1,200 datasets, of which the last 200 are no pilot."""
    path = tmp_path_factory.mktemp("banks") / "bank"
    return cases.simulate(path, 1_200, chunk=100)


def test_rows_are_draws_of_the_prior_and_the_simulator(bank):
    """By hand: the theta of chunk 11 and the data of its row 3 come from their documented seeds."""
    torch.manual_seed(draw_seed(0, 11, 0, 0))
    theta = cases.PRIOR.sample((100,))
    np.testing.assert_array_equal(bank.theta[1_100:], theta.numpy())
    torch.manual_seed(draw_seed(0, 11, 0, 1 + 3))
    x = cases.one_by_one(theta[3], 5)
    np.testing.assert_array_equal(bank.s[1_103], x.mean(0).numpy())
    config, tensors = bank.embedding_state
    embedding = Embedding.read(Record(Path("f"), config, tensors=tensors))
    np.testing.assert_allclose(bank.z_bar[1_103], embedding.mean(x[None])[0].numpy(), atol=1e-6)


def test_a_bank_is_what_it_says(bank):
    assert len(bank) == 1_200
    assert bank.complete
    assert bank.num_obs == 5
    assert bank.x is None
    assert bank.report() == "1,200 of 1,200 datasets are there. No draw failed."
    x, s = bank.pilot
    assert x.shape == (1_000, 5, 2)
    torch.testing.assert_close(x.mean(1), s)
    chunks = list(bank.chunks())
    assert [len(chunk.theta) for chunk in chunks] == [100] * 12
    np.testing.assert_array_equal(np.concatenate([c.z_bar for c in chunks]), bank.z_bar[:])
    assert chunks[0].x is None
    assert {"created", "finished", "mindist_version", "format_version"} <= set(bank.attributes)
    assert bank.config["seed"] == 0


def test_plain_zarr_reads_it(bank):
    group = zarr.open(str(bank.path), mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = sorted(name for name, _ in group.arrays())
        group.tree()
    assert names == ["pilot", "s", "theta", "valid", "z_bar"]
    np.testing.assert_array_equal(group["theta"][:5], bank.theta[:5])
    assert group.attrs["config"]["num"] == 1_200
    assert group["embedding/features.weight"].shape == (2, 8)


@pytest.mark.slow
def test_two_workers_write_the_bytes_of_one(bank, tmp_path):
    other = cases.simulate(tmp_path / "bank", 1_200, chunk=100, workers=2)
    assert cases.contents(other.path) == cases.contents(bank.path)


def test_the_same_call_again_simulates_nothing(bank, monkeypatch, tmp_path):
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    log = tmp_path / "log"
    first = cases.simulate(tmp_path / "bank", simulator=cases.logged)
    lines = log.read_text()
    assert len(lines.splitlines()) == 60 + 2  # a batch that failed, and one to see shapes
    again = cases.simulate(tmp_path / "bank", simulator=cases.logged)
    assert log.read_text() == lines
    assert cases.contents(again.path) == cases.contents(first.path)


def test_a_bar_is_shown_on_request_and_on_a_terminal_only(tmp_path, capsys):
    cases.simulate(tmp_path / "a", 20)
    assert capsys.readouterr().err == ""
    cases.simulate(tmp_path / "b", 20, progress=True)
    assert "100%" in (shown := capsys.readouterr().err)
    assert "20/20" in shown


def test_global_generators_are_given_back(tmp_path):
    random.seed(1)
    torch.manual_seed(2)
    expected = random.Random(1).random(), torch.Generator().manual_seed(2)
    cases.simulate(tmp_path / "bank", 20)
    assert random.random() == expected[0]
    assert torch.equal(torch.rand(3), torch.rand(3, generator=expected[1]))


def test_a_vectorised_simulator_is_found_and_can_be_said(tmp_path):
    found = cases.simulate(tmp_path / "a", simulator=cases.vectorised)
    assert found.attributes["schema"]["vectorised"]
    torch.manual_seed(draw_seed(0, 2, 0, 0))
    theta = cases.PRIOR.sample((10,))
    torch.manual_seed(draw_seed(0, 2, 0, 0, 1))
    s = cases.vectorised(theta, 5).mean(1)
    np.testing.assert_array_equal(found.s[20:30], s.numpy())
    said = cases.simulate(tmp_path / "b", simulator=cases.vectorised, vectorised=True)
    assert cases.contents(said.path) == cases.contents(found.path)
    with pytest.raises(SimulationError, match=r"one theta: .*vectorised=True or False"):
        cases.simulate(tmp_path / "c", simulator=cases.vectorised, vectorised=False)


def test_generators_by_name_and_numpy_throughout(tmp_path):
    """The simulator of a task as it is; a simulator, prior and summary of NumPy."""
    task = GaussianTask()
    bank = mindist.simulate(
        *(task.sample_prior, task.simulate, task.summary, 30),
        **{"n_obs": 7, "out": tmp_path / "a", "mds": cases.estimator(), "keep": "data"},
    )
    source = torch.Generator().manual_seed(draw_seed(0, 5, 0, 0))
    np.testing.assert_array_equal(bank.theta[5], task.sample_prior(1, source)[0].numpy())
    assert bank.x.shape == (30, 7, 2)
    numpy = mindist.simulate(
        lambda n, rng: rng.uniform(1, 2, size=(n, 1)),
        lambda theta, n_obs, rng: rng.normal(theta[0], size=n_obs),
        lambda x: np.stack([x.mean(1), x.std(1)], 1),
        *(30,),
        **{"n_obs": 4, "out": tmp_path / "b", "keep": "data", "seed": 3},
    )
    assert numpy.x.dtype == np.float64
    x = numpy.x[:]
    np.testing.assert_array_equal(numpy.s[:], np.stack([x.mean(1), x.std(1)], 1))  # NumPy's std


def test_probe_derives_the_chunk_from_sizes_alone():
    sources = Sources(cases.PRIOR, cases.one_by_one, cases.mean)
    schema = probe(sources, Settings(100_000, 50))
    assert (schema.chunk, schema.num_chunks, schema.pilot) == (1_000, 100, 1_000)
    assert schema.shapes == {"theta": (2,), "s": (2,), "x": (50, 2)}


def test_failed_draws_are_drawn_again(tmp_path):
    bank = cases.simulate(tmp_path / "bank", 200, cases.raising)
    assert bank.complete
    assert bank.theta[:, 0].max() <= 1.28
    failures = bank.failures
    assert 8 <= len(failures) <= 40  # 200 times 1 of 10
    assert all(f.kind == "raised" and f.theta[0] > 1.28 for f in failures)
    assert failures[0].error == "ValueError: theta is too large"
    again = " Each was drawn again."
    text = f"200 of 200 datasets are there. {len(failures)} draws failed: {len(failures)} raised an"
    assert bank.report() == f"{text} error.{again}"
    row = failures[0].row
    torch.manual_seed(draw_seed(0, row // 10, 1, 0))
    redrawn = cases.PRIOR.sample((1,))[0]  # the first of the chunk's second round
    np.testing.assert_array_equal(bank.theta[row], redrawn.numpy())


def test_failed_draws_are_reported(tmp_path):
    bank = cases.simulate(tmp_path / "bank", 200, cases.raising, failures="report", keep="data")
    failed = bank.theta[:, 0] > 1.28
    assert failed.sum() == len(bank.failures) > 0
    np.testing.assert_array_equal(bank.valid[:], ~failed)
    assert np.isnan(bank.s[:][failed]).all()
    assert np.isnan(bank.z_bar[:][failed]).all()
    assert np.isfinite(bank.z_bar[:][~failed]).all()
    assert sum(len(chunk.x) for chunk in bank.chunks()) == (~failed).sum() == len(bank.pilot[0])
    assert bank.report().startswith(f"{(~failed).sum()} of 200 datasets are there.")


def test_failed_draws_are_raised_and_the_rest_is_kept(tmp_path):
    with pytest.raises(SimulationError, match=r"ValueError: theta is too large.*theta = \["):
        cases.simulate(tmp_path / "bank", 200, cases.raising, failures="raise")
    kept = mindist.SimulationBank.open(tmp_path / "bank")
    assert not kept.complete
    assert kept.report().endswith("No draw failed.")


def test_a_simulator_that_always_fails(tmp_path):
    def broken(theta, n_obs):
        return torch.full((n_obs, 2), torch.nan) if theta[0] < 9 else theta

    with pytest.raises(SimulationError, match=r"got none in 10 draws .*NaN or infinite"):
        cases.simulate(tmp_path / "a", simulator=broken)

    class Dies:
        calls = 0

        def __call__(self, theta, n_obs):
            Dies.calls += 1
            if Dies.calls > 20:
                raise OSError("licence expired")
            return cases.one_by_one(theta, n_obs)

    with pytest.raises(SimulationError, match=r"100 draws in a row failed.*licence expired"):
        cases.simulate(tmp_path / "b", 1_000, Dies())
    assert mindist.SimulationBank.open(tmp_path / "b").report().startswith("10 of 1,000")


def test_nan_wrong_shapes_and_summaries_that_fail(tmp_path):
    def simulator(theta, n_obs):
        x = theta + torch.randn(n_obs, 2)
        if theta[0] > 1:
            return x.log()
        return x[:-1] if theta[0] < -1 else x

    def summary(x):
        if (x[..., 1].mean(1) > 1).any():
            raise RuntimeError("no root")
        return x.mean(1)

    mds = mindist.MinimumDistance(summary, num_features=16, representation="raw")
    options = {"n_obs": 5, "chunk": 50, "vectorised": False, "mds": mds, "failures": "report"}
    bank = mindist.simulate(cases.PRIOR, simulator, summary, 200, out=tmp_path / "bank", **options)
    kinds = {failure.kind: failure for failure in bank.failures}
    assert set(kinds) == {"not finite", "wrong shape", "raised"}
    assert kinds["wrong shape"].error == "expected shape (5, 2), got (4, 2)"
    assert kinds["raised"].error == "summary: RuntimeError: no root"
    large = bank.theta[:, 0] < -1
    assert sum(f.kind == "wrong shape" for f in bank.failures) == large.sum()


def test_vectorised_batches_lose_only_what_fails(tmp_path):
    def some_nan(theta, n_obs):
        x = cases.vectorised(theta, n_obs)
        x[theta[:, 0] > 1] = torch.nan
        return x

    bank = cases.simulate(tmp_path / "a", 100, some_nan, failures="report", vectorised=True)
    np.testing.assert_array_equal(bank.valid[:], bank.theta[:, 0] <= 1)

    def raises_if_any(theta, n_obs):
        if (theta[:, 0] > 1).any():
            raise ValueError("one of them is too large")
        return cases.vectorised(theta, n_obs)

    bank = cases.simulate(tmp_path / "b", 100, raises_if_any, failures="report", vectorised=True)
    np.testing.assert_array_equal(bank.valid[:], bank.theta[:, 0] <= 1)


def test_another_configuration_is_refused(tmp_path):
    path = tmp_path / "bank"
    cases.simulate(path, 20)
    with pytest.raises(ValueError, match=r"seed is 0 there and 1 here"):
        cases.simulate(path, 20, seed=1)
    with pytest.raises(ValueError, match=r"num is 20 there and 30 here"):
        cases.simulate(path, 30)
    other = mindist.MinimumDistance(cases.mean, num_features=32, representation="raw")
    with pytest.raises(ValueError, match=r"embedding.num_features is 16 there and 32 here"):
        cases.simulate(path, 20, mds=other)
    with pytest.raises(ValueError, match=r"functions.simulator is 'one_by_one' there"):
        cases.simulate(path, 20, cases.vectorised)
    options = {"n_obs": 5, "chunk": 10, "out": path, "mds": cases.estimator()}
    wide = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))
    with pytest.raises(ValueError, match="prior: expected the one that"):
        mindist.simulate(wide, cases.one_by_one, cases.mean, 20, **options)

    def mean(x):
        return 2 * x.mean(1)

    mean.__qualname__ = "mean"
    with pytest.raises(ValueError, match="summary: expected the one that"):
        mindist.simulate(cases.PRIOR, cases.one_by_one, mean, 20, **options)


def test_folders_that_are_no_bank(tmp_path):
    (tmp_path / "data.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a simulation bank"):
        cases.simulate(tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a simulation bank"):
        mindist.SimulationBank.open(tmp_path)
    zarr.create_group(str(tmp_path / "group"))
    with pytest.raises(ValueError, match=r"is damaged|no simulation bank"):
        mindist.SimulationBank.open(tmp_path / "group")


def test_damaged_chunks_are_simulated_again_with_a_note(tmp_path):
    path = cases.simulate(tmp_path / "bank").path
    before = cases.contents(path)
    file = path / "theta" / "c.3.0"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (path / "z_bar" / "c.4.0").unlink()
    with pytest.raises(ValueError, match=r"chunk 4 of .* is damaged: z_bar/c.4.0 is missing"):
        mindist.SimulationBank.open(path)
    with pytest.warns(UserWarning, match=r"chunk [34] is damaged .*simulated again"):
        cases.simulate(path)
    assert cases.contents(path) == before
    file.write_bytes(content)
    bank = mindist.SimulationBank.open(path)
    with pytest.raises(ValueError, match=r"checksum of theta/c\.3\.0"):
        mindist.SimulationBank.open(path, verify=True)
    with pytest.raises(ValueError, match="chunk 3"):
        list(bank.chunks())


def test_a_damaged_or_newer_header(tmp_path):
    path = cases.simulate(tmp_path / "bank", 20).path
    header = path / "zarr.json"
    text = header.read_text()
    header.write_text(text.replace('"num": 20', '"num": 21'))
    with pytest.raises(ValueError, match=r"zarr.json is damaged: its checksum"):
        mindist.SimulationBank.open(path)
    header.write_text(text[:-40])
    with pytest.raises(ValueError, match=r"zarr.json is damaged: it is not"):
        mindist.SimulationBank.open(path)
    attributes = json.loads(text)["attributes"]
    del attributes["sha256"]
    write_group(path, {**attributes, "format_version": 99})
    with pytest.raises(ValueError, match="format version 99, newer than 1"):
        mindist.SimulationBank.open(path)


def test_a_bank_is_locked_by_one_process(tmp_path):
    """The system releases the lock of a process that was killed; what it left says nothing."""
    path = tmp_path / "bank"
    with locked(path), pytest.raises(BankLockedError, match=rf"process {os.getpid()} on \S+ \(si"):
        cases.simulate(path, 20)
    assert not (tmp_path / ".bank.writer").exists()
    pid = os.fork()
    if not pid:
        with locked(path):
            time.sleep(600)
    while not (tmp_path / ".bank.writer").exists():
        time.sleep(0.01)
    time.sleep(0.1)  # to be written to the end
    with pytest.raises(BankLockedError, match=f"written by process {pid} on"):
        cases.simulate(path, 20)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert cases.simulate(path, 20).complete


def test_locks_where_the_system_has_none(tmp_path, monkeypatch):
    """filelock takes a file in the place of a lock there; Windows has locks of its own."""
    monkeypatch.setattr("filelock.FileLock", filelock.SoftFileLock)
    with locked(tmp_path / "bank"), pytest.raises(BankLockedError, match=f"process {os.getpid()}"):
        cases.simulate(tmp_path / "bank", 20)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_stops_a_run_which_then_goes_on(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        with pytest.raises(
            FullDiskError, match=r"The disk is full: no room for chunk \d+ in .*free"
        ):
            cases.simulate(folder / "bank", 200)
        assert not mindist.SimulationBank.open(folder / "bank", verify=True).complete
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        cases.simulate(folder / "bank", 200)
        whole = cases.simulate(tmp_path / "whole", 200)
        assert cases.contents(folder / "bank") == cases.contents(whole.path)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_missing_zarr_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(
        ImportError, match=r"need zarr. Install it with: pip install 'mindist\[bank"
    ):
        cases.simulate(tmp_path / "bank")


def test_arguments_are_checked(tmp_path):
    for options, message in [
        ({"keep": "all"}, "keep: expected one of 'embedding', 'data', got 'all'"),
        ({"failures": "hide"}, "failures: expected one of"),
        ({"seed": -1}, "seed: expected a whole number of at least 0"),
        ({"time_limit": 0}, "time_limit: expected a positive number of seconds"),
        ({"chunk": 0}, "chunk: expected a whole number of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            cases.simulate(tmp_path / "bank", **options)
    with pytest.raises(TypeError, match=r"prior: expected an object with \.sample"):
        Sources(3, cases.one_by_one, cases.mean)
    with pytest.raises(ValueError, match=r"prior: expected parameters of shape \(1, d_theta\)"):
        probe(Sources(torch.randn, cases.one_by_one, cases.mean), Settings(5, 5))


def crashing(theta, n_obs):
    """Ends its process, which no `except` prevents, in one of a hundred draws."""
    if theta[0] > 2.33:
        os.kill(os.getpid(), signal.SIGKILL)
    return cases.one_by_one(theta, n_obs)


@pytest.mark.slow
def test_a_crash_ends_a_run_but_not_one_with_a_time_limit(tmp_path):
    with pytest.raises(SimulationError, match=r"a worker process died .* with time_limit each"):
        cases.simulate(tmp_path / "a", 400, crashing, workers=2)
    assert not mindist.SimulationBank.open(tmp_path / "a", verify=True).complete
    bank = cases.simulate(tmp_path / "b", 60, crashing, time_limit=20)
    assert {failure.error for failure in bank.failures} == {
        "its process ended: it crashed, or the system ended it"
    }
    assert bank.complete


SIGNALLED = """
    import sys
    import bank_cases as cases

    if __name__ == "__main__":
        print("ready", flush=True)
        cases.simulate(sys.argv[1], 5_000, cases.logged, workers=int(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_signals_end_a_run_that_then_goes_on(tmp_path, number, workers):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SIGNALLED))
    path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": path, "LOG": str(tmp_path / "log"), "SLEEP": "0.01"}
    process = subprocess.Popen(
        [sys.executable, script, tmp_path / "bank", str(workers)],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while len(list(Path(tmp_path).glob("bank/chunks/[0-9]*/zarr.json"))) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -number), errors
    kept = mindist.SimulationBank.open(tmp_path / "bank", verify=True)
    assert not kept.complete
    with locked(tmp_path / "bank"):
        pass


@pytest.mark.slow
def test_killed_at_random_moments_and_started_again(tmp_path):
    """4 kills of 40 chunks, some of them no pilot; by hand 20 of 200: docs/simulations.md."""
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, script, tmp_path, "40", "4", "1", "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bytes: True; simulated again: 0" in done.stdout
