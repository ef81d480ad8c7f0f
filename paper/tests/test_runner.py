"""Rows do not depend on interruptions, on the number of workers, or on who asked first."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from mindist.tasks import GaussianTask, OrnsteinUhlenbeckTask
from mindist_paper.baselines import train_method
from mindist_paper.baselines.mds import unfitted
from mindist_paper.baselines.method import Options, Training
from mindist_paper.evaluation import bank as data
from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec, options_of
from mindist_paper.evaluation.measure import TIMES, draw
from mindist_paper.evaluation.runner import FailedCellsError, distinct, run
from mindist_paper.evaluation.store import Store, kept_samples
from mindist_paper.evaluation.trained import get_method

BANK = BankSpec("gaussian", 400, {"num_obs": 20})
TRAINING = {"density_estimator": "mdn", "max_num_epochs": 2}
TESTS = [TestSpec(e, num=5, num_samples=40, num_predictive=20, keep_samples=10) for e in (0.0, 0.3)]


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


@pytest.mark.slow
def test_rows_are_tidy(uninterrupted):
    store, frame = uninterrupted
    assert len(frame) == 5 * len(CELLS)
    assert frame.method.unique().tolist() == ["npe", "exact", "nnpe", "mds", "mds-rf"]
    assert frame.epsilon[:10].tolist() == [0.0] * 5 + [0.3] * 5
    assert frame.address[0] == CELLS[0].address
    numbers = ["rmse", "coverage_90", "posterior_sd", "predictive_mmd", "reference_mmd"]
    assert np.isfinite(frame[[*numbers, "summary_distance", "seconds"]]).all(axis=None)
    robust = frame.method.str.startswith("mds")
    for column in ("p_value", "detected", "fit_seconds"):
        assert frame[column].notna().equals(robust)
    assert frame.note.eq("").all()
    clean = frame[frame.epsilon == 0]
    assert clean.summary_distance[clean.method == "npe"].eq(0).all()
    assert frame.rmse[(frame.method == "exact") & (frame.epsilon == 0)].mean() < 0.3
    samples = kept_samples(store.find(CELLS[0].address))
    assert samples.samples[3].shape == (10, 2)
    theta = data.make_datasets(BANK, TESTS[0]).theta
    np.testing.assert_array_equal(np.stack(samples.theta), theta[:4].numpy())


@pytest.mark.slow
def test_metrics_are_those_of_the_stored_method(uninterrupted):
    store, frame = uninterrupted
    datasets = data.make_datasets(BANK, TESTS[1])
    method = get_method(store, BANK, Recipe("mds", TRAINING))
    own = frame[(frame.method == "mds") & (frame.epsilon == 0.3)]
    found = method.adapt(datasets.x_obs)
    np.testing.assert_allclose(own.p_value, found.p_value.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(own.detected, found.misspecified.double())


@pytest.mark.slow
def test_finished_cells_are_computed_once_whoever_asks(uninterrupted):
    store, frame = uninterrupted
    before = {file: file.stat().st_mtime_ns for file in store.folder.rglob("*")}
    second = [*CELLS[2:4], CELLS[0]]
    assert len(distinct([*CELLS, *second])) == len(CELLS)
    pd.testing.assert_frame_equal(run([*CELLS, *second], store, progress=False), frame)
    expected = pd.concat([frame[10:20], frame[:5]], ignore_index=True)
    assert_same_rows(run(second, store, progress=False), expected)
    assert {file: file.stat().st_mtime_ns for file in store.folder.rglob("*")} == before


def test_damaged_parts_are_made_again_and_the_warning_points_here(tmp_path):
    store = Store(tmp_path)
    frame = run(CELLS[:2], store, progress=False)
    cell = store.cells / f"{CELLS[0].address}.parquet"
    cell.write_bytes(cell.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=f"{CELLS[0].address}.parquet: it .* again") as caught:
        assert_same_rows(run(CELLS[:2], store, progress=False), frame)
    assert caught[0].filename == __file__
    cell.unlink()
    for file in store.trained.glob("*/tensors.safetensors"):
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=r"tensors.safetensors is damaged.* trained again") as w:
        assert_same_rows(run(CELLS[:2], store, progress=False), frame)
    assert w[0].filename == __file__


@pytest.mark.slow
def test_failing_cells_do_not_stop_the_others(uninterrupted, tmp_path, capsys):
    store = Store(tmp_path)
    bad = cells_of("mds", tests=TESTS[:1], options={"bandwidth": "wide"})
    worse = cells_of("npe", bank=replace(BANK, task="unknown"), tests=TESTS[:1])
    with pytest.raises(FailedCellsError, match=r"2 of 4 cells failed; the others are stored") as e:
        run([*bad, *CELLS[:2], *worse], store)
    wide = "mds {'bandwidth': 'wide'}, epsilon 0, seed 0: ValueError: bandwidth: expected"
    assert wide in str(e.value)
    unknown = "unknown {'num_obs': 20}, npe, epsilon 0, seed 0: ValueError: task: expected"
    assert unknown in str(e.value)
    assert "measure npe on gaussian (seed 0, 2 cells): " in capsys.readouterr().err
    assert_same_rows(run(CELLS[:2], store, progress=False), uninterrupted[1][:10])


def test_test_datasets_are_paired():
    few = data.make_datasets(BANK, TestSpec(0.2, num=3))
    more = data.make_datasets(replace(BANK, num=9), TestSpec(0.4, {"delta": 5.0}, num=30))
    assert torch.equal(few.x_clean, more.x_clean[:3])
    assert torch.equal(few.theta, more.theta[:3])
    again = data.make_datasets(BANK, TestSpec(0.2, num=30))
    assert torch.equal(few.x_obs, again.x_obs[:3])


@pytest.mark.slow
def test_every_method_and_two_workers(tmp_path, briefly):
    """Also the slow ones, and with a learned summary; the summary is the method's own."""
    quick = {"penalty": 1.0, "max_num_epochs": 1}
    cells = [
        *cells_of("oracle", "npe-or", "mds-dec", "mds-kl"),
        *cells_of("npe-rs", options=quick),
        *cells_of("npe", "nnpe", "mds", "npe-or", learned_summary=True),
        *cells_of("mds", options={"starts": ["mean"], "restarts": 2, "search_seed": 3}),
    ]
    store = Store(tmp_path / "one")
    with briefly(epochs=2, steps=10):
        frame = run(cells, store, progress=False)
    metrics = ["rmse", "coverage_50", "predictive_mmd", "reference_mmd", "summary_distance"]
    assert np.isfinite(frame[metrics]).all(axis=None)
    assert frame.summary_distance[frame.method == "oracle"].eq(0).all()
    # One flow for MDS-Dec and MDS-KL, one ridge for both searches, one NPE for each summary.
    kinds = [file.read_text().split('"kind": "')[1] for file in store.trained.glob("*/*.json")]
    kinds = [kind.split('"')[0] for kind in kinds]
    assert sorted(kinds) == [*["MinimumDistance"] * 3, *["NeuralPosterior"] * 3]
    again = run(CELLS[:4], Store(tmp_path / "two"), workers=2, progress=False)
    assert_same_rows(again, run(CELLS[:4], Store(tmp_path / "three"), progress=False))


@pytest.mark.slow
def test_killed_at_some_moments_and_started_again(uninterrupted, tmp_path):
    script = "import sys, test_runner as t; t.run(t.CELLS, t.Store(sys.argv[1]), progress=False)"
    paths = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    for seconds in (4, 6, 8):  # in training, or while cells are written
        child = subprocess.Popen([sys.executable, "-c", script, tmp_path], env=environment)
        time.sleep(seconds)
        child.kill()
        child.wait()
    assert_same_rows(run(CELLS, Store(tmp_path), progress=False), uninterrupted[1])


@pytest.mark.filterwarnings("ignore:Data has extreme outliers")
@pytest.mark.filterwarnings("ignore:.*outside the support of the prior")
def test_where_rejection_finds_nothing_the_estimator_is_asked_without_it():
    task, generator = OrnsteinUhlenbeckTask(num_obs=20), torch.Generator().manual_seed(0)
    theta = task.sample_prior(300, generator)
    x = task.simulate(theta, generator=generator)
    training = Training("mdn", learning_rate=5e-3, max_num_epochs=10)
    npe = train_method("npe", task, theta, x, Options(training=training))
    wild = task.contaminate(x[:2], 1.0, generator=generator)  # summaries far outside the simulated
    drawn = draw(task, npe, torch.cat([x[:2], wild]), 50, seed=1)
    inside = task.prior.support.check(drawn.samples)
    assert inside[:, :2].all()
    assert drawn.num_inside[:2].tolist() == [50, 50]
    assert (drawn.num_inside[2:] < 50).all()
    assert not inside[:, 2:].all()
    alone = draw(task, npe, x[:2], 50, seed=1)
    torch.testing.assert_close(drawn.samples[:, :2], alone.samples)
    with pytest.raises(ValueError, match="needs a task with an exact posterior"):
        draw(task, None, x, 10, seed=0)


def test_options_reach_the_estimator():
    def made(options):
        recipe = Recipe("mds", options=options)
        return unfitted("default", GaussianTask.summary, options_of(BANK, recipe))

    assert made({"bandwidth": "2 median"}).bandwidth == "2 median"
    assert made({"starts": ["mean"]}).search.starts == ("mean",)
    with pytest.raises(ValueError, match=r"option: expected one of 'bandwidth', .*, got 'wide'"):
        options_of(BANK, Recipe("mds", options={"wide": True}))
