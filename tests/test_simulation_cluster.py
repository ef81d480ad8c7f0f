"""The same call on a cluster writes the same bytes, also when a machine of it vanishes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import joblib
import pytest

import bank_cases as cases
from mindist.simulation.jobs import outcomes

HERE = os.path.dirname(os.path.abspath(__file__))


def python(*arguments, **options):
    path = os.pathsep.join([HERE, *sys.path])
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SLEEP": "0.01"}
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, **own}, **options)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A scheduler and three workers, each a process of its own; the client is theirs."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    file = tmp_path / "scheduler.json"
    where = ["--scheduler-file", str(file), "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = ["-m", "distributed.cli.dask_scheduler", "--port", "0", *where]
    processes = [python(*command, **quiet)]
    worker = ["-m", "distributed.cli.dask_worker", *where, "--no-nanny", "--nthreads", "1"]
    local = ["--local-directory", str(tmp_path)]
    processes += [python(*worker, *local, **quiet) for _ in range(3)]
    try:
        while not file.exists():
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(3, timeout=300)
            yield processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def kill_after(process, path, chunks):
    """Kill a process once a bank has so many chunks."""

    def watch():
        while len(list(Path(path).glob("chunks/[0-9]*/zarr.json"))) < chunks:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own, when a worker is gone and at the end
def test_a_killed_dask_worker_changes_nothing(cluster, tmp_path):
    killer = kill_after(cluster[0], tmp_path / "dask", 5)
    with joblib.parallel_config("dask"):
        bank = cases.simulate(tmp_path / "dask", 300, cases.logged)
    killer.join(10)
    assert cluster[0].wait(10) == -signal.SIGKILL
    assert bank.complete
    whole = cases.simulate(tmp_path / "whole", 300, cases.logged)
    assert cases.contents(tmp_path / "dask") == cases.contents(whole.path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_writes_the_same_bytes(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    path = os.pathsep.join([HERE, *sys.path])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        register_ray()
        with joblib.parallel_config("ray"):
            cases.simulate(tmp_path / "ray", 60)
    finally:
        ray.shutdown()
    whole = cases.simulate(tmp_path / "whole", 60)
    assert cases.contents(tmp_path / "ray") == cases.contents(whole.path)


def test_threads_are_refused():
    with joblib.parallel_config("threading"), pytest.raises(ValueError, match="got threads"):
        list(outcomes(abs, [1, 2], workers=2))


def test_jobs_come_in_waves():
    """Every outcome once, though only three may wait at a time."""
    assert sorted(outcomes(abs, range(-10, 0), workers=2, wave=3)) == list(range(1, 11))
