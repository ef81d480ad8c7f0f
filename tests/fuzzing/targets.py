"""The formats: how a good file is made, how it is mutated, and how it is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.mutate import mutate_bytes, mutate_json

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v1"
MAX_BYTES = 2**24


class Bomb:
    """Leaves a trace if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@dataclass(frozen=True)
class Target:
    """A format.

    Arguments:
        name: Of the format.
        seeds: Writes good (and hostile) files or folders into a folder.
        mutate: Alters one of them in place, given the others.
        load: Loads one and uses what it holds; raises what its loader documents.
        allowed: The exceptions that the loader documents.
    """

    name: str
    seeds: Callable[[Path], Sequence[Path]]
    mutate: Callable[[Path, random.Random, Sequence[Path]], None]
    load: Callable[[Path], None]
    allowed: tuple[type[BaseException], ...] = (ValueError, FileNotFoundError)


def mutate_file(path: Path, rng: random.Random, others: Sequence[Path]) -> None:
    """Alter the bytes of a file."""
    path.write_bytes(mutate_bytes(path.read_bytes(), rng, [o.read_bytes() for o in others]))


# ------------------------------------------------------------------------------- artefacts


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sign(header: dict[str, Any]) -> str:
    """The JSON of an artefact with a checksum that fits: what a hostile person would write."""
    header.pop("sha256", None)
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    return json.dumps(header | {"sha256": _digest(text.encode())})


def mutate_artefact(folder: Path, rng: random.Random, others: Sequence[Path]) -> None:
    """Alter settings or tensors, mostly with checksums that fit afterwards."""
    json_file, tensor_file = folder / "mindist.json", folder / "tensors.safetensors"
    how = rng.randrange(10)
    if how == 0:
        mutate_file(json_file, rng, [other / "mindist.json" for other in others])
        return
    if how == 1:
        mutate_file(tensor_file, rng, [other / "tensors.safetensors" for other in others])
        return
    header = json.loads(json_file.read_text())
    if how < 6:
        part = mutate_json({"config": header["config"]}, rng)
        header |= part if isinstance(part, dict) else {"config": part}
    elif how == 6:
        header = mutate_json(header, rng)
    else:
        blob = tensor_file.read_bytes()
        blob = mutate_bytes(blob, rng) if how == 7 else _mutate_tensors(blob, rng)
        tensor_file.write_bytes(blob)
    if isinstance(header, dict):
        if rng.random() < 0.95:
            header["tensors_sha256"] = _digest(tensor_file.read_bytes())
        json_file.write_text(_sign(header))
    else:
        json_file.write_text(json.dumps(header))


def _mutate_tensors(blob: bytes, rng: random.Random) -> bytes:
    """Tensors renamed, removed, of other shapes, types and values, in a file that is valid."""
    import safetensors.torch
    import torch

    tensors = safetensors.torch.load(blob)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(tensors))
        value, how = tensors.pop(name), rng.randrange(9)
        if how == 0:
            continue
        if how == 1:
            tensors[name + "x"] = value
        elif how == 2:
            tensors[name] = value.flatten()[: rng.randrange(1 + value.numel())].clone()
        elif how == 3:
            tensors[name] = torch.cat([value.flatten(), value.flatten()])
        elif how == 4:
            kinds = (torch.float16, torch.int64, torch.float32, torch.bool, torch.complex64)
            tensors[name] = value.to(rng.choice(kinds))
        elif how == 5:
            tensors[name] = value.T.contiguous() if value.dim() == 2 else value[None].clone()
        elif how == 6:
            tensors[name] = torch.full_like(value, rng.choice((0, 1, -1)))
        elif how == 7 and value.is_floating_point():
            extreme = rng.choice((float("nan"), float("inf"), 1e30, -3e38, 1e-38))
            tensors[name] = torch.full_like(value, extreme)
        else:
            tensors[name] = value[:1].clone() if value.dim() else value[None].clone()
    return safetensors.torch.save({name: v.contiguous() for name, v in tensors.items()})


def _copied(*names: str) -> Callable[[Path], Sequence[Path]]:
    def seeds(folder: Path) -> Sequence[Path]:
        for name in names:
            shutil.copytree(FIXTURES / name, folder / name)
        return [folder / name for name in names]

    return seeds


def load_estimator(path: Path) -> None:
    """Load an estimator and, if that went well, use it: whatever it raises then is its own."""
    import torch

    from mindist import MinimumDistance

    mds = MinimumDistance.load(path, summary=lambda x: x.mean(1))
    x = torch.linspace(-2, 2, 20).reshape(1, 10, 2)
    try:
        # With a flow the search takes 8 s.
        mds.detect(x) if path.name == "flow" else mds.adapt(x, force=True)
    except (ValueError, RuntimeError, ArithmeticError):
        return


def load_network(path: Path) -> None:
    """Load a posterior and, if that went well, ask it."""
    import torch

    from mindist.posteriors.sbi_storage import load_posterior
    from mindist.tasks import GaussianTask

    posterior, _ = load_posterior(path, GaussianTask().prior)
    try:
        posterior.log_prob(torch.zeros(1, 2), x=torch.zeros(1, 2), norm_posterior=False)
    except (ValueError, RuntimeError, AssertionError, IndexError):
        return


# ------------------------------------------------------------------------------- banks


def mutate_bank(folder: Path, rng: random.Random, others: Sequence[Path]) -> None:
    """Alter header, records, metadata or numbers, mostly with checksums that fit afterwards."""
    how = rng.randrange(10)
    if how < 3:
        _mutate_group(folder / "zarr.json", rng)
    elif how < 5:
        _mutate_group(rng.choice(sorted(folder.glob("chunks/0*/zarr.json"))), rng)
    elif how < 7:
        arrays = [*folder.glob("*/zarr.json"), *folder.glob("embedding/*/zarr.json")]
        file = rng.choice(sorted(arrays))
        if rng.random() < 0.8:
            file.write_text(json.dumps(mutate_json(json.loads(file.read_text()), rng)))
        else:
            mutate_file(file, rng, ())
    elif how < 9:
        file = rng.choice(sorted(folder.rglob("c.*")))
        content = file.read_bytes()
        file.write_bytes(_mutate_frame(content, rng) if rng.random() < 0.5 else b"")
        if not file.stat().st_size:
            file.write_bytes(mutate_bytes(content, rng))
        _sign_chunk(folder, file)
    else:
        _misplace(folder, rng)


def _mutate_group(file: Path, rng: random.Random) -> None:
    """Alter attributes, and sign them; or the whole, as JSON or as text."""
    group, how = json.loads(file.read_text()), rng.random()
    if how < 0.1:
        mutate_file(file, rng, ())
    elif how < 0.2:
        file.write_text(json.dumps(mutate_json(group, rng)))
    else:
        attributes = mutate_json(group["attributes"], rng)
        if isinstance(attributes, dict):
            attributes = json.loads(_sign(attributes))
        file.write_text(json.dumps(group | {"attributes": attributes}))


def _mutate_frame(content: bytes, rng: random.Random) -> bytes:
    """Other numbers, or other sizes, in zstd data that are valid."""
    import numcodecs

    numbers = numcodecs.Zstd().decode(content)
    size = rng.choice((len(numbers), len(numbers), 0, 2 * len(numbers), 2**22))
    return numcodecs.Zstd().encode(mutate_bytes(numbers, rng)[:size].ljust(size, b"\x7f"))


def _sign_chunk(folder: Path, file: Path) -> None:
    """Let the record of a chunk say what its file is now."""
    record = folder / "chunks" / f"{int(file.name.split('.')[1]):05}" / "zarr.json"
    group, content = json.loads(record.read_text()), file.read_bytes()
    known = {"bytes": len(content), "sha256": _digest(content)}
    group["attributes"]["files"][f"{file.parent.name}/{file.name}"] = known
    record.write_text(json.dumps(group | {"attributes": json.loads(_sign(group["attributes"]))}))


def _misplace(folder: Path, rng: random.Random) -> None:
    """A link, a folder or nothing where there was a file or a folder."""
    path = rng.choice(sorted(folder.rglob("*")))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    how = rng.randrange(4)
    if how == 0:
        path.mkdir()
    elif how == 1:
        path.write_bytes(rng.randbytes(20))
    elif how == 2:
        path.symlink_to(rng.choice(("/dev/zero", "/etc", str(FIXTURES / "bank"), "loop", path)))


def load_bank(path: Path) -> None:
    """Open a bank and read all of it."""
    from mindist import SimulationBank
    from mindist.features.embedding import Embedding
    from mindist.schema import Record

    bank = SimulationBank.open(path)
    for chunk in bank.chunks():
        float(chunk.theta.sum()), float(chunk.s.sum())
    x, _ = bank.pilot
    bank.report(), repr(bank), len(bank), bank.complete, bank.num_obs, bank.config, bank.failures
    state = bank.embedding_state
    if state is not None:
        embedding = Embedding.read(Record(path / "embedding", state[0], tensors=state[1]))
        if embedding.event_shape == x.shape[2:]:
            embedding.mean(x)


# ------------------------------------------------------------------------------- observed data

X = np.random.default_rng(0).normal(size=(3, 5, 2))


def load_observed(path: Path, **options: Any) -> None:
    """Read a file of observed data to its end, in the ways in which it may be meant."""
    from mindist import read_observed

    for x in read_observed(path, max_bytes=MAX_BYTES, missing="drop", **options):
        float(x.sum())


def seeds_npy(folder: Path) -> Sequence[Path]:
    np.save(folder / "batch.npy", X)
    np.save(folder / "small.npy", X.astype(np.float32))
    np.save(folder / "fortran.npy", np.asfortranarray(X))
    np.save(folder / "whole.npy", np.arange(30).reshape(3, 5, 2))
    bombs = np.array([Bomb(folder.parent / "trace")] * 2, dtype=object)
    np.save(folder / "hostile.npy", bombs, allow_pickle=True)
    return sorted(folder.glob("*.npy"))


def seeds_npz(folder: Path) -> Sequence[Path]:
    np.savez(folder / "stored.npz", x=X)
    np.savez_compressed(folder / "packed.npz", x=X, y=X[0])
    bombs = np.array([Bomb(folder.parent / "trace")] * 2, dtype=object)
    np.savez(folder / "hostile.npz", x=bombs, allow_pickle=True)
    return sorted(folder.glob("*.npz"))


def mutate_npz(path: Path, rng: random.Random, others: Sequence[Path]) -> None:
    """Alter the archive, or an array in it, which is packed again with a checksum that fits."""
    if rng.random() < 0.5:
        mutate_file(path, rng, others)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    members[name] = mutate_bytes(members[name], rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def seeds_csv(folder: Path) -> Sequence[Path]:
    lines = [f"{'abc'[i]},{x},{y}" for i, rows in enumerate(X) for x, y in rows]
    (folder / "runs.csv").write_text("\n".join(["run,x,y", *lines]) + "\n")
    (folder / "quoted.csv").write_text('run;x;y\n"a ""b""";1;NA\n"c\nd";2;3\n;4;inf\n')
    (folder / "numbers.csv").write_text("1,2\n3,4\n5,6\n")
    return sorted(folder.glob("*.csv"))


def load_table(path: Path) -> None:
    """With and without a column that names the dataset."""
    try:
        load_observed(path, dataset="run")
    except ValueError:
        load_observed(path)


def seeds_parquet(folder: Path) -> Sequence[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = [name for name in "abc" for _ in range(5)]
    x, y = X.reshape(-1, 2).T
    table = pa.table({"run": run, "x": x, "y": y, "n": list(range(15))})
    for name, options in (
        ("plain", {"compression": None, "use_dictionary": False}),
        ("snappy", {"row_group_size": 4}),
        ("zstd", {"compression": "zstd", "version": "2.6", "data_page_version": "2.0"}),
        ("delta", {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}),
        ("split", {"use_dictionary": False, "use_byte_stream_split": ["x", "y"]}),
    ):
        pq.write_table(table, folder / f"{name}.parquet", **options)
    return sorted(folder.glob("*.parquet"))


def seeds_hdf5(folder: Path) -> Sequence[Path]:
    import h5py

    for name, version in (("old", "earliest"), ("new", "latest")):
        with h5py.File(folder / f"{name}.h5", "w", libver=version) as file:
            file.create_dataset("group/x", data=X, chunks=(1, 5, 2), compression="gzip")
            file.create_dataset("plain", data=X.astype(np.float32))
            file.create_dataset("checked", data=X, fletcher32=True, shuffle=True)
            file["plain"].attrs["unit"] = "m"
    with h5py.File(folder / "links.h5", "w") as file:
        file["other"] = h5py.ExternalLink("old.h5", "plain")
        file["plain"] = X
        layout = h5py.VirtualLayout(X.shape, "f8")
        layout[:] = h5py.VirtualSource("old.h5", "group/x", X.shape)
        file.create_virtual_dataset("virtual", layout)
    return sorted(folder.glob("*.h5"))


def load_each(path: Path, keys: Sequence[str]) -> None:
    """Every array by its name; the last error is raised, if there was nothing else."""
    errors: list[ValueError] = []
    for key in keys:
        try:
            load_observed(path, key=key, event_shape=(2,))
        except ValueError as error:
            errors.append(error)
    if len(errors) == len(keys):
        raise errors[-1]


def seeds_zarr(folder: Path) -> Sequence[Path]:
    import numcodecs
    import zarr

    for version in (2, 3):
        path = folder / f"v{version}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array("x", data=X, chunks=(1, 5, 2))
        group.create_array("y", data=X, compressors=None, chunks=(3, 5, 2))
        blosc = numcodecs.Blosc() if version == 2 else zarr.codecs.BloscCodec()
        group.create_array("z", data=X, compressors=blosc, chunks=(2, 5, 2))
    hostile = folder / "hostile.zarr"
    array = zarr.create_array(hostile / "x", shape=(2,), chunks=(2,), dtype="f8", zarr_format=2)
    array[:] = 1
    (hostile / "x" / "0").write_bytes(
        numcodecs.Zstd().encode(pickle.dumps(Bomb(folder.parent / "trace")))
    )
    text = (hostile / "x" / ".zarray").read_text()
    filters = '"filters": [{"id": "pickle", "protocol": 5}]'
    (hostile / "x" / ".zarray").write_text(text.replace('"filters": null', filters))
    return [folder / "v2.zarr", folder / "v3.zarr", hostile]


def mutate_zarr(folder: Path, rng: random.Random, others: Sequence[Path]) -> None:
    """Leave one array, and alter its metadata, as text or as JSON, or a chunk."""
    arrays = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in rng.sample(arrays, len(arrays) - 1):
        shutil.rmtree(path)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    metadata = [file for file in files if file.name in (".zarray", "zarr.json")]
    if rng.random() < 0.6:
        file = rng.choice(metadata)
        if rng.random() < 0.75:
            value = mutate_json(json.loads(file.read_text()), rng)
            file.write_text(json.dumps(value))
        else:
            mutate_file(file, rng, ())
    else:
        mutate_file(rng.choice([file for file in files if file not in metadata] or files), rng, ())


def load_zarr(path: Path) -> None:
    """The one array."""
    load_observed(path, event_shape=(2,))


TARGETS = {
    target.name: target
    for target in (
        Target("estimator", _copied("ridge", "mlp", "flow"), mutate_artefact, load_estimator),
        Target("posterior", _copied("posterior"), mutate_artefact, load_network),
        Target("bank", _copied("bank", "bank_with_data"), mutate_bank, load_bank),
        Target("npy", seeds_npy, mutate_file, lambda p: load_observed(p, event_shape=(2,))),
        Target("npz", seeds_npz, mutate_npz, lambda p: load_each(p, ("x", "y"))),
        Target("csv", seeds_csv, mutate_file, load_table),
        Target("parquet", seeds_parquet, mutate_file, load_table),
        Target("hdf5", seeds_hdf5, mutate_file, lambda p: load_each(p, ("plain", "checked"))),
        Target("zarr", seeds_zarr, mutate_zarr, load_zarr),
    )
}
