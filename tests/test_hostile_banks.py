"""Banks that somebody has altered, with checksums that fit, give errors that name the file."""

import json
import math
import shutil
from pathlib import Path

import numcodecs
import numpy as np
import pytest

import bank_cases as cases
from fuzzing.targets import _sign, _sign_chunk
from mindist import MinimumDistance, SimulationBank
from mindist.simulation.store import ZSTD, frame_size
from mindist.tasks import GaussianTask

V1 = Path(__file__).parent / "fixtures" / "v1"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(V1 / "bank", tmp_path / "bank")
    return tmp_path / "bank"


def alter(file, change):
    """Change the attributes of a group, and sign them."""
    group = json.loads(file.read_text())
    change(group["attributes"])
    file.write_text(json.dumps(group | {"attributes": json.loads(_sign(group["attributes"]))}))


def put(values, where, value):
    """Set an entry such as `"schema.num"`; None removes it."""
    *parts, last = where.split(".")
    for part in parts:
        values = values[part]
    values.pop(last) if value is None else values.update({last: value})


def load(path):
    bank = SimulationBank.open(path)
    chunks = list(bank.chunks())
    return bank, chunks, bank.pilot, bank.embedding_state, bank.report()


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("schema", None, "it lacks the setting 'schema'"),
        ("config", [], "'config.' is no table of settings"),
        ("config.keep", "all", "'config.keep' is 'all', expected one of embedding, data"),
        ("config.failures", None, "it lacks the setting 'config.failures'"),
        ("config.n_obs", 6, "'config.n_obs' is 6, expected a whole number from 5 to 5"),
        ("schema.num", 2**62, "'schema.num' is 4611686018427387904, expected a whole number"),
        ("schema.num", math.nan, "'schema.num' is nan"),
        ("schema.num", 2**39, "'config.num' is 24, expected a whole number from 549755813888"),
        ("schema.chunk", 0, "'schema.chunk' is 0, expected a whole number from 1 to 24"),
        ("schema.shapes", {"theta": [2], "s": [2]}, "it lacks the setting 'schema.shapes.x'"),
        ("schema.shapes.x", [5, 2**28], "chunks of at most"),
        ("schema.shapes.x", [5, 0], "expected the shape of an observation"),
        ("schema.dtypes.s", "object", "'schema.dtypes.s' is 'object', expected one of float16"),
        ("format_version", "1", "its format version is 1"),
        ("format_version", True, "its format version is True"),
        ("embedding", 3, "'embedding.' is no table"),
        ("embedding.names", ["../theta"], "names of tensors"),
        ("embedding.names", ["/etc/passwd"], "names of tensors"),
        ("embedding.names", ["a" * 300], "names of tensors"),
        ("embedding.names", ["absent"], "absent/zarr.json is damaged: it is missing"),
        ("embedding.sha256", "0" * 64, "their checksum does not match"),
    ],
)
def test_headers(folder, where, value, message):
    alter(folder / "zarr.json", lambda attributes: put(attributes, where, value))
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("rows", [0, 2**60], r"'rows' is .*, expected \[8, 16\]"),
        (
            "files",
            {},
            "'files' is {}, expected the files pilot/c.1.0.0, s/c.1.0, theta/c.1.0, valid/c.1",
        ),
        ("failures", None, "it lacks the setting 'failures'"),
        ("failures", [{"chunk": 1}], "it lacks the setting 'failures.row'"),
        ("failures", ["x"], "'failures.' is no table"),
    ],
)
def test_records(folder, where, value, message):
    file = folder / "chunks" / "00001" / "zarr.json"
    alter(file, lambda attributes: put(attributes, where, value))
    with pytest.raises(ValueError, match=rf"00001/zarr.json is damaged: {message}"):
        load(folder)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "theta/../theta/c.1.0"])
def test_records_name_no_other_files(folder, name):
    (folder.parent / "secret").write_bytes(b"")
    known = {"bytes": 0, "sha256": "0" * 64}
    file = folder / "chunks" / "00001" / "zarr.json"
    alter(file, lambda attributes: attributes["files"].update({name: known}))
    with pytest.raises(ValueError, match=r"'files' is .*, expected the files pilot"):
        SimulationBank.open(folder)


def test_more_chunks_than_there_are(folder):
    shutil.copytree(folder / "chunks" / "00001", folder / "chunks" / "00003")
    with pytest.raises(ValueError, match="chunks/00003 is damaged: the bank has 3 chunks"):
        SimulationBank.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codecs": [{"name": "bytes"}, {"name": "pickle"}]}, "its codecs are .*'pickle'"),
        ({"codecs": [{"name": "bytes"}, {"name": "gzip"}]}, "mindist runs"),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"shape": [2**40, 2]}, r"float32 of shape \(1099511627776, 2\).*, expected float32"),
        ({"data_type": "float64"}, r"it says float64 of shape \(24, 2\).*, expected float32 of"),
        ({"data_type": {"name": "struct"}}, "cannot be read"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [24, 2]}}},
            r"\(24, 2\) in a file",
        ),
        ({"node_type": "group"}, ""),
        ({"fill_value": {"a": 1}}, ""),
    ],
)
def test_metadata_of_arrays(folder, change, message):
    file = folder / "s" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=rf"s/zarr.json is damaged: .*{message}"):
        load(folder)


def test_other_json(folder):
    good = (folder / "zarr.json").read_bytes()
    for text in ("[" * 100_000, "[]", '{"attributes": 3}', "1" * 10_000, '{"attributes": {}}'):
        (folder / "zarr.json").write_text(text)
        with pytest.raises(ValueError, match=r"bank/zarr.json is damaged"):
            SimulationBank.open(folder)
    (folder / "zarr.json").write_bytes(good)
    with open(folder / "s" / "zarr.json", "wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(ValueError, match="mindist writes no JSON so large"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["zarr.json", "theta", "theta/c.0.0", "chunks", "chunks/00001", "embedding"]
)
def test_links_and_folders_in_the_place_of_files(folder, name):
    path, away = folder / name, folder.parent / "away"
    path.rename(away)
    path.symlink_to(away, target_is_directory=away.is_dir())
    with pytest.raises(ValueError, match=r"is a link|or a link"):
        load(folder)
    path.unlink()
    path.write_text("") if away.is_dir() else path.mkdir()
    if name != "chunks/00001":  # of which nothing is read: it is as if it were not yet there
        with pytest.raises(ValueError, match=r"in the place of|is missing"):
            load(folder)


def test_a_link_to_a_bank_is_one(folder):
    (folder.parent / "link").symlink_to(folder, target_is_directory=True)
    assert load(folder.parent / "link")[0].complete


def test_files_that_would_unpack_to_more_than_a_chunk(folder):
    file = folder / "theta" / "c.1.0"
    file.write_bytes(numcodecs.Zstd().encode(bytes(2**26)))
    _sign_chunk(folder, file)
    with pytest.raises(ValueError, match=r"it holds 67108864 bytes of numbers instead of 64"):
        load(folder)
    file.write_bytes(numcodecs.Zstd().encode(bytes(64))[:-2] + b"xx")
    _sign_chunk(folder, file)
    with pytest.raises(ValueError, match=r"theta is damaged: it cannot be read"):
        load(folder)


def test_sizes_of_frames_are_those_that_zstd_writes():
    for size in (1, 64, 255, 256, 257, 65_791, 65_792, 2**20, 2**25):
        assert frame_size(numcodecs.Zstd().encode(bytes(size))[:18]) == size
    assert frame_size(b"") is None
    assert frame_size(ZSTD + bytes(10)) is None  # does not say
    assert frame_size(b"\x50\x2a\x4d\x18" + bytes(10)) is None  # to be skipped


def test_truth_values_are_true_or_false(folder):
    """With other bytes NumPy would count one number of rows and take another."""
    file = folder / "valid" / "c.1"
    file.write_bytes(numcodecs.Zstd().encode(bytes([255] * 8)))
    _sign_chunk(folder, file)
    with pytest.raises(ValueError, match="other values than True and False"):
        load(folder)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("embedding.config.event_shape", [3], r"'features.weight' has shape \(2, 8\)"),
        ("embedding.config.fitted_bandwidth", math.nan, "'fitted_bandwidth' is nan"),
        ("embedding.config.event_shape", [1, 2], r"not for observations of shape \(2,\)"),
    ],
)
def test_an_embedding_that_does_not_fit(folder, where, value, message):
    alter(folder / "zarr.json", lambda attributes: put(attributes, where, value))
    mds = MinimumDistance(GaussianTask().summary, num_features=16, alpha=0.5, representation="raw")
    with pytest.raises(ValueError, match=rf"bank/embedding is damaged: .*{message}"):
        mds.fit(SimulationBank.open(folder))


def test_going_on_with_a_bank_that_was_altered(tmp_path):
    """Links and folders in a chunk are removed, not followed, and the chunk simulated again."""
    path = cases.simulate(tmp_path / "bank", 40).path
    before, outside = cases.contents(path), tmp_path / "outside"
    outside.write_bytes((path / "theta" / "c.1.0").read_bytes())
    kept = outside.read_bytes()
    (path / "theta" / "c.1.0").unlink()
    (path / "theta" / "c.1.0").symlink_to(outside)
    (path / "s" / "c.2.0").unlink()
    (path / "s" / "c.2.0").mkdir()
    alter(path / "chunks" / "00003" / "zarr.json", lambda record: record.update({"rows": [0, 1]}))
    with pytest.warns(UserWarning, match=r"chunk [123] is damaged .*simulated again") as notes:
        bank = cases.simulate(path, 40)
    assert len(notes) == 3
    assert bank.complete
    assert cases.contents(path) == before
    assert outside.read_bytes() == kept
    assert not (path / "theta" / "c.1.0").is_symlink()


def test_damaged_metadata_remove_no_chunks(tmp_path):
    path = cases.simulate(tmp_path / "bank", 20).path
    records = sorted((path / "chunks").iterdir())
    good = (path / "s" / "zarr.json").read_text()
    (path / "s" / "zarr.json").write_text("{}")
    with pytest.raises(ValueError, match=r"s/zarr.json is damaged"):
        cases.simulate(path, 20)
    assert sorted((path / "chunks").iterdir()) == records
    (path / "s" / "zarr.json").write_text(good)
    assert np.isfinite(cases.simulate(path, 20).s[:]).all()
