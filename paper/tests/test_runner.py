"""Rows do not depend on interruptions, on the number of workers, or on who asked first."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mindist_paper.baselines.mds import MinimumDistanceMethod
from mindist_paper.evaluation import bank as data
from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec
from mindist_paper.evaluation.measure import TIMES
from mindist_paper.evaluation.runner import FailedCellsError, distinct, rows, run
from mindist_paper.evaluation.store import FullDiskError, Store
from mindist_paper.evaluation.trained import get_method, get_npe

BANK = BankSpec("gaussian", 400, {"num_obs": 20})
TRAINING = {"density_estimator": "mdn", "max_num_epochs": 2}
TESTS = [
    TestSpec(epsilon, num=5, num_samples=40, num_predictive=20, keep_samples=10)
    for epsilon in (0.0, 0.3)
]


def cells_of(*methods, bank=BANK, tests=TESTS, **more):
    return [Cell(bank, Recipe(m, TRAINING, **more), t) for m in methods for t in tests]


CELLS = cells_of("npe", "exact", "nnpe", "mds", "mds-rf")


def assert_same_rows(a, b):
    keep = [name for name in a.columns if name not in TIMES]
    pd.testing.assert_frame_equal(a[keep], b[keep], check_exact=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("uninterrupted"))
    return store, run(CELLS, store, progress=False)


def test_rows_are_tidy(uninterrupted):
    store, frame = uninterrupted
    assert len(frame) == 5 * len(CELLS)
    assert frame.method.unique().tolist() == ["npe", "exact", "nnpe", "mds", "mds-rf"]
    assert frame.epsilon[:10].tolist() == [0.0] * 5 + [0.3] * 5
    assert frame.address[0] == CELLS[0].address
    numbers = ["rmse", "coverage_90", "posterior_sd", "predictive_mmd", "reference_mmd"]
    assert np.isfinite(frame[[*numbers, "summary_distance", "seconds"]]).all(axis=None)
    robust = frame.method.str.startswith("mds")
    assert frame.p_value.notna().equals(robust)
    assert frame.bandwidth[robust].eq(1.0).all()
    assert frame.note.eq("").all()
    clean = frame[frame.epsilon == 0]
    assert clean.summary_distance[clean.method == "npe"].eq(0).all()
    assert frame.rmse[(frame.method == "exact") & (frame.epsilon == 0)].mean() < 0.3
    samples = store.read_samples(CELLS[0])
    assert samples.samples[3].shape == (10, 2)
    theta = data.make_datasets(BANK, TESTS[0]).theta
    np.testing.assert_array_equal(np.stack(samples.theta), theta[:4].numpy())


def test_metrics_are_those_of_the_method(uninterrupted):
    """By hand, from the stored method: the root mean squared error of its posterior means."""
    store, frame = uninterrupted
    datasets = data.make_datasets(BANK, TESTS[1])
    method = get_method(store, BANK, Recipe("mds", TRAINING))
    assert isinstance(method, MinimumDistanceMethod)
    chosen = frame[(frame.method == "mds") & (frame.epsilon == 0.3)]
    p_value = method.adapt(datasets.x_obs).p_value
    np.testing.assert_allclose(chosen.p_value, p_value.numpy(), rtol=1e-12)
    samples = method.sample_batched((4_000,), datasets.x_obs, seed=1)
    error = (samples.mean(0) - datasets.theta).square().mean(-1).sqrt()
    np.testing.assert_allclose(chosen.rmse, error.numpy(), atol=5 * 1.3 / 40**0.5)
    sd = samples.std(0).mean(-1)
    np.testing.assert_allclose(chosen.posterior_sd, sd.numpy(), rtol=0.35)


def test_finished_cells_are_not_computed_again(uninterrupted):
    store, frame = uninterrupted
    before = {file: file.stat().st_mtime_ns for file in store.folder.rglob("*")}
    start = time.perf_counter()
    pd.testing.assert_frame_equal(run(CELLS, store, progress=False), frame)
    assert time.perf_counter() - start < 2
    assert {file: file.stat().st_mtime_ns for file in store.folder.rglob("*")} == before


def test_equal_cells_of_two_experiments_are_computed_once(uninterrupted):
    store, frame = uninterrupted
    first, second = CELLS[:4], [*CELLS[2:4], CELLS[0]]
    assert len(distinct([*first, *second])) == 4
    both = run([*first, *second], store, progress=False)
    assert_same_rows(both, frame[:20])
    assert_same_rows(rows(second, store), pd.concat([frame[10:20], frame[:5]], ignore_index=True))


def test_damaged_parts_are_made_again_with_a_note(uninterrupted, tmp_path):
    source, frame = uninterrupted
    shutil.copytree(source.folder, tmp_path / "copy")
    store = Store(tmp_path / "copy")
    cell = store.cells / f"{CELLS[0].address}.parquet"
    cell.write_bytes(cell.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=f"{CELLS[0].address}.parquet: it .* computed again"):
        assert_same_rows(run(CELLS, store, progress=False), frame)
    cell.unlink()
    for file in store.trained.glob("*/tensors.safetensors"):
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"tensors.safetensors is damaged.* trained again"):
        assert_same_rows(run(CELLS, store, progress=False), frame)


def test_failing_cells_do_not_stop_the_others(uninterrupted, tmp_path):
    store = Store(tmp_path / "store")
    bad = cells_of("mds", tests=TESTS[:1], options={"bandwidth": "wide"})
    worse = cells_of("npe", bank=replace(BANK, task="unknown"), tests=TESTS[:1])
    with pytest.raises(FailedCellsError, match=r"2 of 4 cells failed; the others are stored") as e:
        run([*bad, *CELLS[:2], *worse], store, progress=False)
    assert "mds {'bandwidth': 'wide'}, epsilon 0, seed 0: ValueError: bandwidth: expected" in str(
        e.value
    )
    assert "unknown {'num_obs': 20}, npe, epsilon 0, seed 0: ValueError: task: expected" in str(
        e.value
    )
    assert_same_rows(rows(CELLS[:2], store), uninterrupted[1][:10])


def test_test_datasets_are_paired():
    few = data.make_datasets(BANK, TestSpec(0.2, num=3))
    more = data.make_datasets(replace(BANK, num=9), TestSpec(0.4, {"delta": 5.0}, num=30))
    assert torch.equal(few.x_clean, more.x_clean[:3])
    assert torch.equal(few.theta, more.theta[:3])
    again = data.make_datasets(BANK, TestSpec(0.2, num=30))
    assert torch.equal(few.x_obs, again.x_obs[:3])
    other = data.make_datasets(replace(BANK, seed=1), TestSpec(0.2, num=3))
    assert not torch.equal(few.x_clean, other.x_clean)


def test_large_banks_are_simulated_in_chunks(monkeypatch, tmp_path):
    """The same method, whether its simulations were in memory or made anew for each pass."""
    data._bank.cache_clear()
    recipe = Recipe("mds", TRAINING)
    x_obs = data.make_datasets(BANK, TESTS[1]).x_obs
    held = get_method(Store(tmp_path / "a"), BANK, recipe)
    monkeypatch.setattr(data, "MAX_BYTES", 1_000)
    simulations = data.simulate_bank(BANK)
    assert isinstance(simulations.x, data.Chunks)
    assert torch.equal(torch.cat(list(simulations.x)), torch.cat(list(simulations.x)))
    streamed = get_method(Store(tmp_path / "b"), BANK, recipe)
    first, second = (m.sample_batched((5,), x_obs, seed=0) for m in (held, streamed))
    # The bandwidth is the median over other datasets: see mindist.features.sources.
    torch.testing.assert_close(first, second, atol=0.05, rtol=0.05)


def test_threads_are_given_back(uninterrupted):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(CELLS, uninterrupted[0], progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_lines_of_progress(uninterrupted, tmp_path, capsys):
    store = Store(tmp_path / "store")
    run(CELLS[2:4], store)
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("[1/1] measure exact on gaussian (seed 0, 2 cells): ")
    )


@pytest.mark.slow
def test_every_method(tmp_path):
    """Also the slow ones, and with a learned summary; the summary is the method's own."""
    store = Store(tmp_path / "store")
    quick = {"penalty": 1.0, "max_num_epochs": 1, "num_simulations": 300}
    cells = [
        *cells_of("oracle", "npe-or", "rnpe", "mds-dec", "mds-kl"),
        *cells_of("npe-rs", options=quick),
        *cells_of("npe", "nnpe", "mds", "npe-or", learned_summary=True),
        *cells_of("mds", options={"starts": ["mean"], "restarts": 2, "search_seed": 3}),
    ]
    frame = run(cells, store, progress=False)
    metrics = ["rmse", "coverage_50", "predictive_mmd", "reference_mmd", "summary_distance"]
    assert np.isfinite(frame[metrics]).all(axis=None)
    assert frame.summary_distance[frame.method == "oracle"].eq(0).all()
    clean = frame[(frame.epsilon == 0) & frame.method.isin(["npe-rs", "npe"])]
    assert clean.summary_distance.eq(0).all()
    # One flow for MDS-Dec and MDS-KL, one ridge for both searches, one NPE for each summary.
    kinds = [file.read_text().split('"kind": "')[1] for file in store.trained.glob("*/*.json")]
    assert sorted(kind.split('"')[0] for kind in kinds) == [
        *["MinimumDistance"] * 3,
        *["NeuralPosterior"] * 3,
        *["Reference"] * 2,
    ]
    npe = get_npe(store, BANK, Recipe("npe", TRAINING, learned_summary=True))
    assert npe.summary.condition_shape == torch.Size([20, 2])


@pytest.mark.slow
def test_two_workers_give_the_rows_of_one(uninterrupted, tmp_path):
    assert_same_rows(
        run(CELLS, Store(tmp_path / "store"), workers=2, progress=False), uninterrupted[1]
    )


KILLED = """
    import os, random, signal, sys, time
    import test_runner as t

    folder, seed = sys.argv[1], int(sys.argv[2])

    def child():
        pid = os.fork()
        if not pid:
            t.run(t.CELLS, t.Store(folder), progress=False)
            os._exit(0)
        return pid

    def count():
        return len(list(t.Store(folder).cells.glob("*.parquet")))

    source = random.Random(seed)
    for _ in range(6):
        before, pid = count(), child()
        # Some are killed in training, the others a moment after they have stored a cell.
        deadline = time.perf_counter() + source.uniform(0.2, 8.0)
        while count() == before and time.perf_counter() < deadline:
            time.sleep(0.005)
        time.sleep(source.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(count(), flush=True)
    _, status = os.waitpid(child(), 0)
    sys.exit(status)
"""

TERMINATED = """
    import sys
    import test_runner as t

    if __name__ == "__main__":
        big = t.replace(t.BANK, num=20_000)
        cells = [c for m in ("npe", "mds-dec") for c in t.cells_of(m, bank=big)]
        other = t.replace(big, seed=1)
        cells += t.cells_of("npe", bank=other)
        print("ready", flush=True)
        t.run(cells, t.Store(sys.argv[1]), workers=2, progress=False)
"""


def script(text, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    here = os.path.dirname(os.path.abspath(__file__))
    return path, {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_and_started_again(uninterrupted, tmp_path, seed):
    path, environment = script(KILLED, tmp_path)
    command = [sys.executable, path, tmp_path / "store", str(seed)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    progress = [int(line) for line in done.stdout.split()]
    assert any(0 < number < len(CELLS) for number in progress), progress
    assert_same_rows(rows(CELLS, Store(tmp_path / "store")), uninterrupted[1])


def members(session):
    """The processes of a session that still run."""
    command = ["ps", "-o", "stat=,pid=,args=", "-g", str(session)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if not line.startswith("Z")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_run_quickly(tmp_path, number):
    path, environment = script(TERMINATED, tmp_path)
    process = subprocess.Popen(
        [sys.executable, path, tmp_path / "store"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background job, such as these tests may be, ignores the second.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline().strip() == "ready"
    time.sleep(15)  # the workers are at work
    start = time.perf_counter()
    process.send_signal(number)
    # Two seconds on a free machine, 13 at a load of 10; the training takes minutes.
    _, errors = process.communicate(timeout=60)
    assert time.perf_counter() - start < 30, errors
    assert process.returncode == (143 if number == signal.SIGTERM else -number), errors
    while left := members(process.pid):
        assert time.perf_counter() - start < 45, left
        time.sleep(0.2)
    store = Store(tmp_path / "store")
    for folder in (store.cells, store.trained):
        assert not [p for p in folder.iterdir() if p.suffix == ".parquet" and not p.stat().st_size]


def test_full_disk_stops_a_run_which_then_goes_on(uninterrupted, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        store = Store(folder / "store")
        message = r"The disk is full: no room for the .* MB are free.*the same command"
        with pytest.raises(FullDiskError, match=message):
            run(CELLS, store, progress=False)
        assert not [p for p in folder.rglob(".*") if p.is_file()]
        subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
        assert_same_rows(run(CELLS, store, progress=False), uninterrupted[1])
    finally:
        subprocess.run(["umount", str(folder)], check=True)
