"""What is stored is whole, is what was asked for, and says so where it is not."""

import os
import resource
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mindist_paper.evaluation.cell import BankSpec, Cell, Recipe, TestSpec, address
from mindist_paper.evaluation.store import MARKER, FullDiskError, Store

CELL = Cell(BankSpec("gaussian", 100), Recipe("npe"), TestSpec(0.1))
ROWS = pd.DataFrame(
    {
        "dataset": [0, 1],
        "task": ["gaussian"] * 2,
        "rmse": [0.1 + 0.2, np.nan],
        "theta": [[1.0, 2.0], [3.0, 4.0]],
        "samples": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], None],
    }
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 64 KB, for those who may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def file_of(store, cell=CELL):
    return store.cells / f"{cell.address}.parquet"


def big_rows(seed):
    values = np.random.default_rng(seed).normal(size=2_000)
    return pd.DataFrame({"dataset": range(2_000), "rmse": values})


def test_rows_come_back_exactly(store):
    assert CELL not in store
    with pytest.raises(KeyError, match=r"has no cell gaussian, npe, epsilon 0\.1, seed 0"):
        store.read(CELL)
    store.write(CELL, ROWS)
    again = Store(store.folder)
    assert CELL in again
    pd.testing.assert_frame_equal(
        again.read(CELL), ROWS[["dataset", "task", "rmse"]], check_exact=True, check_dtype=False
    )
    kept = again.read_samples(CELL)
    assert kept.dataset.tolist() == [0]
    np.testing.assert_array_equal(kept.samples[0], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(kept.theta[0], [1, 2])
    assert [file.name for file in store.cells.iterdir()] == [f"{CELL.address}.parquet"]


def test_equal_configurations_share_an_address():
    same = Cell(BankSpec("gaussian", 100, {}), Recipe("npe", {}), TestSpec(0.1, num=100))
    assert same.address == CELL.address
    assert address(TestSpec(0, {"delta": 5})) == address(TestSpec(0.0, {"delta": 5.0}))
    for other in (
        replace(CELL, bank=replace(CELL.bank, seed=1)),
        replace(CELL, recipe=replace(CELL.recipe, options={"alpha": 0.1})),
        replace(CELL, test=replace(CELL.test, epsilon=0.2)),
    ):
        assert other.address != CELL.address


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "foreign", "altered"])
def test_damaged_cells_are_noted_and_count_as_missing(store, damage):
    store.write(CELL, ROWS)
    path = file_of(store)
    content = path.read_bytes()
    if damage == "flipped":
        middle = content.index(b"PAR1") + 40
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        other = replace(CELL, test=TestSpec(0.5))
        store.write(other, ROWS)
        path.write_bytes(file_of(store, other).read_bytes())
    else:  # a valid file with another number in it
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        metadata = table.schema.metadata
        column = table["dataset"].to_pylist()
        changed = table.set_column(0, "dataset", [[column[0] + 7, column[1]]])
        pytest.importorskip("pyarrow.parquet").write_table(
            changed.replace_schema_metadata(metadata), path
        )
    with pytest.warns(UserWarning, match=rf"{CELL.address}.parquet: it.*computed again"):
        assert CELL not in store
    store.write(CELL, ROWS)
    assert CELL in store


def test_folders_of_others_are_refused(tmp_path):
    Store(tmp_path / "old")
    (tmp_path / "old" / MARKER).write_text('{"results_version": 0}')
    with pytest.raises(ValueError, match=r"holds results of configuration version 0, this mindist"):
        Store(tmp_path / "old")
    (tmp_path / "old" / MARKER).write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        Store(tmp_path / "old")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("Dear")
    with pytest.raises(ValueError, match="does not belong to mindist"):
        Store(tmp_path / "home")
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["letter.txt"]
    with pytest.raises(ValueError, match="expected a folder, got the file"):
        Store(tmp_path / "home" / "letter.txt")


def test_what_killed_runs_left_is_removed_in_time(store):
    old, new = store.cells / ".x.parquet.abc.tmp", store.cells / ".y.parquet.abc.tmp"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    Store(store.folder)
    assert not old.exists()
    assert new.exists()  # another process may be writing it


def fill(store):
    """Write cells until there is no more room: those written, the one refused, and its rows."""
    cells = [replace(CELL, bank=replace(CELL.bank, seed=seed)) for seed in range(20)]
    written = []
    message = r"The disk is full: no room for the cell gaussian, npe.* MB are free.* same command"
    with pytest.raises(FullDiskError, match=message):  # noqa: PT012
        for index, cell in enumerate(cells):
            store.write(cell, big_rows(index))
            written.append(cell)
    return written, cells[len(written)], big_rows(len(written))


def test_full_disk(tiny_disk):
    store = Store(tiny_disk / "results")
    written, failed, rows = fill(store)
    assert written
    assert failed not in store
    assert len(list(store.cells.iterdir())) == len(written)
    assert all(cell in store for cell in written)
    subprocess.run(["mount", "-o", "remount,size=1m", str(tiny_disk)], check=True)
    store.write(failed, rows)
    assert failed in store


def test_limited_file_size(store):
    """The same for those who cannot mount anything: the system refuses large files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        written, failed, rows = fill(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not written
    assert not list(store.cells.iterdir())
    store.write(failed, rows)
    assert failed in store
