"""Observed data from every format: what was written comes back, and what is unclear is said."""

import io
import os
import pickle
import tracemalloc
import zipfile

import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import zarr

from mindist import read_observed
from mindist.observed import Observed

RNG = np.random.default_rng(0)
BATCH = RNG.normal(size=(5, 7, 2))
RAGGED = {name: RNG.normal(size=(n, 2)) for name, n in (("a", 3), ("b", 5), ("c", 3))}


def write_npz(path, arrays):
    np.savez_compressed(path, **arrays)


def write_hdf5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file.create_dataset(f"group/{name}", data=value, chunks=True, compression="gzip")


def write_zarr(path, arrays, version=3):
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, value in arrays.items():
        group.create_array(name, data=value)


def rows(arrays):
    return [(name, *row) for name, value in arrays.items() for row in value.tolist()]


def write_csv(path, arrays, delimiter=","):
    lines = [delimiter.join(map(str, row)) for row in [("run", "x", "y"), *rows(arrays)]]
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path, arrays):
    run, x, y = zip(*rows(arrays), strict=True)
    pq.write_table(pa.table({"run": run, "x": x, "y": y}), path, row_group_size=4)


def assert_same(observed, arrays):
    assert len(observed) == len(arrays)
    for x, expected in zip(observed, arrays, strict=True):
        assert x.dtype == torch.float64
        np.testing.assert_array_equal(x.numpy(), expected)


# --------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("ending", ["npy", "npz", "h5", "zarr"])
def test_arrays_are_one_dataset_or_many(tmp_path, ending):
    write = {"npz": write_npz, "h5": write_hdf5, "zarr": write_zarr}.get(ending)
    for value, expected in ((BATCH, list(BATCH)), (BATCH[0], [BATCH[0]])):
        path = tmp_path / f"{value.ndim}.{ending}"
        np.save(path, value) if write is None else write(path, {"x": value})
        observed = read_observed(path, event_shape=(2,))
        assert_same(observed, expected)
        assert_same(observed, expected)  # again
        assert len(set(observed.lengths)) == 1
        np.testing.assert_array_equal(observed.stack().numpy(), np.stack(expected))
        with pytest.raises(ValueError, match=r"may be one dataset \(N, \*event\) or many"):
            read_observed(path)


@pytest.mark.parametrize("ending", ["npz", "h5", "zarr"])
def test_arrays_of_different_lengths(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    {"npz": write_npz, "h5": write_hdf5, "zarr": write_zarr}[ending](path, RAGGED)
    prefix = "group/" if ending == "h5" else ""
    with pytest.raises(ValueError, match=rf"key: .* holds 3 arrays: '{prefix}a', '{prefix}b'"):
        read_observed(path)
    with pytest.raises(ValueError, match=rf"has no array 'd'. It holds '{prefix}a'"):
        read_observed(path, key="d")
    observed = read_observed(path, key="*")
    assert_same(observed, RAGGED.values())
    assert observed.names == tuple(prefix + name for name in RAGGED)
    assert_same(read_observed(path, key=[f"{prefix}b"], event_shape=(2,)), [RAGGED["b"]])
    assert_same(read_observed(path, key=[prefix + "b", prefix + "a"]), [RAGGED["b"], RAGGED["a"]])


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_tables(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        write_parquet(path, RAGGED)
    else:
        write_csv(path, RAGGED, "\t" if ending == "tsv" else ",")
    observed = read_observed(path, dataset="run")
    assert_same(observed, RAGGED.values())
    assert observed.names == ("a", "b", "c")
    assert observed.lengths == (3, 5, 3)
    assert len(set(observed.lengths)) > 1
    np.testing.assert_array_equal(observed["b"].numpy(), RAGGED["b"])
    assert_same(read_observed(path), [np.concatenate(list(RAGGED.values()))])
    only = read_observed(path, columns=["y"], event_shape=(), dataset="run")
    assert_same(only, [value[:, 1] for value in RAGGED.values()])
    with pytest.raises(ValueError, match="columns: expected 3 columns for an observation of shape"):
        read_observed(path, event_shape=(3,))
    with pytest.raises(ValueError, match=r"has no column 'z'. It has 'run', 'x', 'y'"):
        read_observed(path, columns=["z"])
    with pytest.raises(ValueError, match=r"dataset: .* has no column 'id'"):
        read_observed(path, dataset="id")
    with pytest.raises(ValueError, match="'run': expected real numbers"):
        read_observed(path, columns=["run"])


def test_rows_in_any_order_are_gathered(tmp_path):
    (tmp_path / "x.csv").write_text("x;run\n1;b\n2;a\n3;b\n4;a\n")
    observed = read_observed(tmp_path / "x.csv", dataset="run")
    assert_same(observed, [[[1.0], [3.0]], [[2.0], [4.0]]])
    assert observed.names == ("b", "a")


def test_a_csv_without_names_and_one_column(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n3,4.5\n")
    assert_same(read_observed(tmp_path / "x.csv"), [[[1.0, 2.0], [3.0, 4.5]]])
    (tmp_path / "y.txt").write_text("1\n-2e-30\n")
    assert_same(read_observed(tmp_path / "y.txt", event_shape=()), [[1.0, -2e-30]])


def test_integers_and_small_floats_and_fortran_order(tmp_path):
    np.save(tmp_path / "i.npy", np.array([2**53, 1]))
    assert read_observed(tmp_path / "i.npy")[0].tolist() == [2.0**53, 1.0]
    np.save(tmp_path / "h.npy", np.array([0.5, 2.0], dtype=np.float16))
    assert read_observed(tmp_path / "h.npy")[0].dtype == torch.float32
    for path in (tmp_path / "f.npy", tmp_path / "f.npz"):
        save = np.save if path.suffix == ".npy" else np.savez
        save(path, np.asfortranarray(BATCH))
        assert_same(read_observed(path, event_shape=(2,)), list(BATCH))
    np.save(tmp_path / "big.npy", BATCH.astype(">f8"))
    assert_same(read_observed(tmp_path / "big.npy", event_shape=(2,)), list(BATCH))


def test_zarr_of_version_2(tmp_path):
    write_zarr(tmp_path / "x.zarr", RAGGED, version=2)
    assert_same(read_observed(tmp_path / "x.zarr", key="*"), RAGGED.values())


def test_batches_of_equal_length(tmp_path):
    write_npz(tmp_path / "x.npz", RAGGED)
    observed = read_observed(tmp_path / "x.npz", key="*")
    batches = list(observed.batches())
    assert [(batch.index, tuple(batch.x.shape)) for batch in batches] == [
        ((0, 2), (2, 3, 2)),
        ((1,), (1, 5, 2)),
    ]
    np.testing.assert_array_equal(batches[0].x[1].numpy(), RAGGED["c"])
    assert [batch.index for batch in observed.batches(1)] == [(0,), (1,), (2,)]
    with pytest.raises(ValueError, match="Datasets of 3 to 5 observations are no batch"):
        observed.stack()
    with pytest.raises(KeyError, match="no dataset 'z'"):
        observed["z"]


def test_an_estimator_takes_what_is_read(tmp_path, task, mds_small, generator):
    x = task.simulate(torch.zeros(3, 2), generator=generator(0))
    np.save(tmp_path / "x.npy", x.numpy())
    observed = read_observed(tmp_path / "x.npy", event_shape=mds_small.event_shape)
    assert torch.equal(mds_small.detect(observed.stack()).p_value, mds_small.detect(x).p_value)


# --------------------------------------------------------------------------------- missing values


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_missing_values(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    value = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, np.inf], [7.0, 8.0]])
    if ending == "csv":
        path.write_text("x,y\n1,2\nNA,4\n5,inf\n7,8\n")
    elif ending == "npy":
        np.save(path, value)
    else:
        pq.write_table(pa.table({"x": [1.0, None, 5.0, 7.0], "y": value[:, 1]}), path)
    shape = (2,)
    with pytest.raises(
        ValueError,
        match=r"missing: 2 of 4 observations, in 1 of 1 datasets.* the "
        "first is observation 1 of dataset '0'",
    ):
        read_observed(path, event_shape=shape)
    observed = read_observed(path, event_shape=shape, missing="drop")
    assert_same(observed, [[[1.0, 2.0], [7.0, 8.0]]])
    assert (observed.lengths, observed.dropped) == ((2,), (2,))
    assert "2 observations with missing values dropped from 1" in repr(observed)
    with pytest.raises(ValueError, match="missing: expected one of 'error', 'drop', 'keep', got"):
        read_observed(path, missing="fill")


def test_nothing_left(tmp_path):
    np.save(tmp_path / "x.npy", np.full(3, np.nan))
    with pytest.raises(ValueError, match="holds no complete observation"):
        read_observed(tmp_path / "x.npy", missing="drop")


# --------------------------------------------------------------------------------- hostile files


class Bomb:
    """Leaves a trace if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_pickles_are_never_loaded(tmp_path):
    trace = tmp_path / "trace"
    objects = np.array([Bomb(trace), Bomb(trace)], dtype=object)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "x.npz", objects, allow_pickle=True)
    (tmp_path / "y.npy").write_bytes(pickle.dumps(Bomb(trace)))
    for name in ("x.npy", "x.npz", "y.npy"):
        with pytest.raises(ValueError, match="path: "):
            read_observed(tmp_path / name)
    assert not trace.exists()


def test_zarr_codecs_that_unpickle_are_not_run(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "x.zarr"
    array = zarr.create_array(path, shape=(2,), chunks=(2,), dtype="f8", zarr_format=2)
    array[:] = 1
    metadata = (path / ".zarray").read_text()
    chunk = pickle.dumps(Bomb(trace))
    for dtype, also in (("<f8", ""), ("|O", ""), ("<f8", '"name": "zstd", '), ("<f8", "codecs")):
        named = also if also != "codecs" else ""
        filters = f'"filters": [{{{named}"id": "pickle", "protocol": 5}}]'
        filters += ', "codecs": ["zstd"]' if also == "codecs" else ""
        changed = metadata.replace("<f8", dtype).replace('"filters": null', filters)
        (path / ".zarray").write_text(changed)
        (path / "0").write_bytes(numcodecs.Zstd().encode(chunk))
        with pytest.raises(ValueError, match=r"codec 'pickle', which mindist does not run"):
            read_observed(path)
    assert not trace.exists()


def test_links_out_of_a_zarr_store_are_refused(tmp_path):
    write_zarr(tmp_path / "x.zarr", {"x": BATCH[0]})
    (tmp_path / "secret").write_bytes(b"0" * 1_000)
    chunk = next(file for file in (tmp_path / "x.zarr" / "x" / "c").rglob("*") if file.is_file())
    chunk.unlink()
    chunk.symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="it has a link"):
        read_observed(tmp_path / "x.zarr", event_shape=(2,))


def test_hdf5_does_not_reach_other_files(tmp_path):
    (tmp_path / "raw").write_bytes(BATCH.tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = BATCH
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["link"] = h5py.ExternalLink("other.h5", "x")
        file["soft"] = h5py.SoftLink("/link")
        layout = h5py.VirtualLayout(BATCH.shape, "f8")
        layout[:] = h5py.VirtualSource("other.h5", "x", BATCH.shape)
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("external", BATCH.shape, "f8", external=str(tmp_path / "raw"))
        file["loop"] = file["/"]
    with pytest.raises(ValueError, match="holds 2 arrays: 'external', 'virtual'"):
        read_observed(tmp_path / "x.h5", event_shape=(2,))
    for key in ("virtual", "external"):
        with pytest.raises(ValueError, match="takes its numbers from other files"):
            read_observed(tmp_path / "x.h5", key=key, event_shape=(2,))
    for key in ("link", "soft"):
        with pytest.raises(ValueError, match="has no array"):
            read_observed(tmp_path / "x.h5", key=key, event_shape=(2,))


def test_hdf5_plug_ins_and_objects_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("text", data=["a", "b"])
        file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.float64))
        space, plist = h5py.h5s.create_simple((4,)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (1,))  # zstd, a plug-in
        h5py.h5d.create(file.id, b"plug", h5py.h5t.IEEE_F64LE, space, plist)
    for key in ("text", "ragged"):
        with pytest.raises(ValueError, match="expected real numbers"):
            read_observed(tmp_path / "x.h5", key=key)
    with pytest.raises(ValueError, match="filter 32015, a plug-in"):
        read_observed(tmp_path / "x.h5", key="plug")


def bomb_npz(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**24,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(2**3):
            file.write(bytes(2**24))


def test_bombs_are_not_unpacked(tmp_path):
    bomb_npz(tmp_path / "x.npz")  # 128 MB in 128 KB
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (2**40,), "f8", chunks=(2**10,), compression="gzip")
        file.create_dataset("chunk", (2**10,), "f8", maxshape=(None,), chunks=(2**28,))
    zarr.create_array(tmp_path / "x.zarr", shape=(2**40,), chunks=(2**10,), dtype="f8")
    zarr.create_array(tmp_path / "z.zarr", shape=(2**40, 1, 2), chunks=(1, 1, 2), dtype="f8")
    zarr.create_array(tmp_path / "y.zarr", shape=(2**10,), chunks=(2**30,), dtype="f8")
    pq.write_table(pa.table({"x": np.zeros(2**24)}), tmp_path / "x.parquet")
    for name, key in (("x.npz", None), ("x.h5", "x"), ("x.zarr", None)):
        with pytest.raises(ValueError, match=r"says that it holds .* bytes of data, more than"):
            read_observed(tmp_path / name, key=key, max_bytes=2**26)
    with pytest.raises(ValueError, match=r"says that it holds .* bytes of data, more than"):
        read_observed(tmp_path / "z.zarr", event_shape=(2,))  # not even the numbers of its datasets
    with pytest.raises(ValueError, match=r"says that it holds .* bytes of data, more than"):
        read_observed(tmp_path / "x.parquet", max_bytes=2**20)
    with pytest.raises(ValueError, match="has chunks of more than"):
        read_observed(tmp_path / "x.h5", key="chunk")
    with pytest.raises(ValueError, match="has chunks of more than"):
        read_observed(tmp_path / "y.zarr")


def test_claims_that_the_file_does_not_keep(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(10))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(10,), }", b"(9**9,)}"))
    with pytest.raises(ValueError, match="cannot be read as npy"):
        read_observed(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(content.replace(b"(10,), }    ", b"(10**11,), }"))
    with pytest.raises(ValueError, match="cannot be read as npy"):
        read_observed(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"cannot be read as npy .*mmap length"):
        read_observed(tmp_path / "x.npy")


def test_lines_without_end(tmp_path):
    (tmp_path / "x.csv").write_text("x\n" + "1" * 3_000_000 + "\n")
    with pytest.raises(ValueError, match="cannot be read as CSV"):
        read_observed(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("1," * 100_000 + "1\n")
    with pytest.raises(ValueError, match="more than 65536 columns"):
        read_observed(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("x,y\n1,2\n3,abc\n")
    assert_same(read_observed(tmp_path / "x.csv"), [[[1.0], [3.0]]])
    with pytest.raises(ValueError, match="'y': expected real numbers"):
        read_observed(tmp_path / "x.csv", columns=["x", "y"])


def test_what_is_not_there_or_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_observed(tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"ends in \.npy, \.npz"):
        read_observed(tmp_path / "x.pkl")
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(ValueError, match="expected a regular file"):
        read_observed(tmp_path / "x.csv")
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="expected a regular file"):
        read_observed(tmp_path / "x.npy")
    (tmp_path / "x.zarr").write_text("")
    with pytest.raises(ValueError, match="expected a folder"):
        read_observed(tmp_path / "x.zarr")
    np.save(tmp_path / "y.npy", BATCH)
    with pytest.raises(ValueError, match="columns, dataset: expected None"):
        read_observed(tmp_path / "y.npy", columns=["x"])
    with pytest.raises(ValueError, match=r"expected one dataset of shape \(N, 3\)"):
        read_observed(tmp_path / "y.npy", event_shape=(3,))
    np.save(tmp_path / "y.npy", np.zeros((0, 2)))
    with pytest.raises(ValueError, match="got an empty array"):
        read_observed(tmp_path / "y.npy", event_shape=(2,))


@pytest.mark.parametrize("ending", ["npy", "zarr"])
def test_memory_stays_bounded(tmp_path, ending):
    """Of 64 MB no more than a few are there at once."""
    path, x = tmp_path / f"x.{ending}", np.zeros((800, 10_000))
    np.save(path, x) if ending == "npy" else zarr.create_array(path, data=x, chunks=(8, 10_000))
    tracemalloc.start()
    try:
        observed = read_observed(path, event_shape=())
        assert isinstance(observed, Observed)
        assert observed.lengths == (10_000,) * 800
        assert all(len(batch.index) == 50 for batch in observed.batches(50))
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
