"""Artefacts that somebody has altered, with checksums that fit, give errors that name the file."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from mindist import MinimumDistance, storage
from mindist.posteriors.sbi_storage import load_posterior
from mindist.storage import whole_folder, write_whole
from mindist.tasks import GaussianTask

V1 = Path(__file__).parent / "fixtures" / "v1"
TASK = GaussianTask(num_obs=10)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small estimator of today, with all of its parts."""
    generator = torch.Generator().manual_seed(0)
    x = TASK.simulate(TASK.sample_prior(400, generator), generator=generator)
    path = tmp_path_factory.mktemp("saved") / "mds"
    MinimumDistance(TASK.summary, num_features=8).fit(x).save(path)
    return path


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "mds")
    return tmp_path / "mds"


def sign(folder, header):
    """Write the settings with a checksum that fits."""
    header.pop("sha256", None)
    blob = (folder / "tensors.safetensors").read_bytes()
    header["tensors_sha256"] = hashlib.sha256(blob).hexdigest()
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    header["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "mindist.json").write_text(json.dumps(header))


def alter(folder, change):
    header = json.loads((folder / "mindist.json").read_text())
    change(header["config"])
    sign(folder, header)


def alter_tensors(folder, change):
    tensors = safetensors.torch.load_file(folder / "tensors.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "tensors.safetensors")
    sign(folder, json.loads((folder / "mindist.json").read_text()))


def load(folder):
    return MinimumDistance.load(folder, summary=TASK.summary)


def test_a_signed_artefact_loads(folder):
    alter(folder, lambda config: None)
    alter_tensors(folder, lambda tensors: None)
    assert load(folder).event_shape == TASK.event_shape


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_obs", None, r"'num_obs' is None, expected a whole number from 1"),
        ("num_obs", 0, r"'num_obs' is 0, expected a whole number from 1"),
        ("alpha", math.nan, r"alpha: expected a level between 0 and 1, got nan"),
        ("alpha", 2.0, r"alpha: expected a level between 0 and 1, got 2.0"),
        ("fitted_bandwidth", math.inf, r"'fitted_bandwidth' is inf, expected a positive number"),
        ("fitted_bandwidth", 10**400, r"'fitted_bandwidth' is 1000"),
        ("event_shape", [2**40, 2**40], r"'event_shape' is .*, expected the shape of an"),
        ("event_shape", [3], r"the tensor .features.weight. has shape .*\(D = 3, F = 4\)"),
        ("decoder", "evil", r"'decoder' is 'evil', expected one of ridge, mlp, flow"),
        ("decoder", "mlp", r"it lacks the tensor 'decoder.weight0'"),
        ("procedure", [], r"'procedure.' is no table of settings"),
        ("search", {"solver": "newton"}, r"search.solver: expected one of .*, got 'newton'"),
        ("search", {"solvers": "adam"}, r"it has an unknown setting 'solvers'"),
        ("search", {"restarts": 10**9}, r"search.*restarts"),
        ("seed", 1.5, r"seed: expected a whole number, got 1.5"),
        ("bandwidth", "wide", r"bandwidth: expected a positive number, 'median', .*, got 'wide'"),
        ("representation", {"name": "evil"}, r"'representation.name' is 'evil', expected one of"),
    ],
)
def test_altered_settings(folder, name, value, message):
    alter(folder, lambda config: config.update({name: value}))
    with pytest.raises(ValueError, match=rf"path: .*mds/.* is damaged: {message}"):
        load(folder)


def test_every_setting_is_missed_or_not_needed(folder):
    """Without any one of them the estimator loads, or says what is missing."""
    header = json.loads((folder / "mindist.json").read_text())
    for name in list(header["config"]):
        rest = {key: value for key, value in header["config"].items() if key != name}
        sign(folder, header | {"config": rest})
        try:
            load(folder)
        except ValueError as error:
            assert "is damaged" in str(error)  # noqa: PT017


def test_every_tensor_is_needed_in_its_shape(folder):
    good = safetensors.torch.load_file(folder / "tensors.safetensors")
    header = json.loads((folder / "mindist.json").read_text())
    for name, value in good.items():
        for bad in (None, value.flatten()[:1].clone(), torch.cat([value, value], -1)):
            # How many columns a regression of the procedure has is known from its tensor alone.
            if bad is not None and (name.startswith("procedure.") or bad.shape == value.shape):
                continue
            changed = {key: v for key, v in good.items() if key != name}
            changed |= {} if bad is None else {name: bad}
            safetensors.torch.save_file(changed, folder / "tensors.safetensors")
            sign(folder, header)
            with pytest.raises(ValueError, match="is damaged: "):
                load(folder)


def test_types_and_values_of_tensors(folder):
    alter_tensors(folder, lambda t: t.update({"bank.s": t["bank.s"].half()}))
    with pytest.raises(ValueError, match=r"the tensor 'bank.s' has type torch.float16"):
        load(folder)
    alter_tensors(folder, lambda t: t.update({"bank.s": t["bank.s"].double() * math.inf}))
    with pytest.raises(ValueError, match=r"the tensor 'bank.s' has NaN or infinite values"):
        load(folder)


def test_a_flow_may_not_ask_for_more_than_the_file_has(tmp_path):
    shutil.copytree(V1 / "flow", tmp_path / "mds")
    alter(tmp_path / "mds", lambda config: config["decoder_config"].update({"width": 10**6}))
    with pytest.raises(ValueError, match=r"'decoder_config.width' is 1000000, expected a network"):
        load(tmp_path / "mds")


def test_posteriors(tmp_path):
    for name, value, message in (
        ("density_estimator", "tabpfn", "expected one of mdn"),
        ("input_shape", [2**30], "expected at most 16777216 numbers"),
        ("condition_shape", [3], "expected a network with the names and shapes"),
        ("summary", 3, "is no table of settings"),
        ("standardised", False, "expected a network with the names and shapes"),
    ):
        shutil.copytree(V1 / "posterior", tmp_path / name)
        alter(tmp_path / name, lambda config, n=name, v=value: config.update({n: v}))
        with pytest.raises(ValueError, match=message):
            load_posterior(tmp_path / name, TASK.prior)


def test_json_that_is_no_artefact(folder):
    for text, message in (
        ("[" * 100_000, "is nested too deeply"),
        ("[]", "is not the JSON that save wrote"),
        ('{"format_version": true, "kind": "MinimumDistance"}', "is not the JSON that save wrote"),
        ('{"format_version": 1e400, "kind": "MinimumDistance"}', "is not the JSON that save wrote"),
        ('{"format_version": 1, "kind": ["x"]}', "is not the JSON that save wrote"),
        ("1" * 10_000, "is not the JSON that save wrote"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "is not the JSON"),
        (" " * (2**24 + 1), "mindist writes no JSON so large"),
    ):
        (folder / "mindist.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            load(folder)
    sign(folder, {"format_version": 1, "kind": "MinimumDistance", "config": [1]})
    with pytest.raises(ValueError, match="it has no settings"):
        load(folder)


def test_folders_links_and_devices(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    mds = load(tmp_path / "link")
    mds.save(tmp_path / "link")  # through the link
    assert (tmp_path / "link").is_symlink()
    load(folder)
    (folder / "tensors.safetensors").unlink()
    (folder / "tensors.safetensors").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"tensors.safetensors is damaged: it is missing"):
        load(folder)
    (folder / "mindist.json").unlink()
    (folder / "mindist.json").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected a folder with mindist.json"):
        load(folder)
    with pytest.raises(FileNotFoundError, match=r"expected a folder with mindist.json"):
        load(tmp_path / "x.npy")


def test_an_interrupted_save_says_where_the_old_one_is(folder, monkeypatch):
    """Killed between the two renames: nothing is lost."""
    old = folder.parent / ".mds.old.abc"
    old.mkdir()
    folder.rename(old / "artefact")
    with pytest.raises(FileNotFoundError, match=r"A save was interrupted: .*\.mds\.old\.abc"):
        load(folder)
    load(old / "artefact")


def test_what_fails_leaves_nothing_behind(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_whole(tmp_path / "a", "no bytes")
    with pytest.raises(KeyError), whole_folder(tmp_path / "b"):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_what_is_written_can_be_read_by_all(tmp_path):
    storage.write_artefact(tmp_path / "x", "Kind", {}, {"a": torch.zeros(2)})
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "x").iterdir()}
    assert modes == {"mindist.json": 0o644, "tensors.safetensors": 0o644}
