"""Files: written whole or not at all, and fitted objects as a folder of JSON and safetensors.

Loading executes nothing (docs/files.md). Whoever alters a file can compute its checksum again:
`mindist.schema` checks every value before anything is made of it.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from mindist.protocols import State

JSON_NAME, TENSORS_NAME = "mindist.json", "tensors.safetensors"
FORMAT_VERSION = 1
MAX_JSON_BYTES = 2**24  # a fitted estimator's is some 5 KB
OLD = "artefact"  # an older folder is moved to .NAME.old.*/artefact while a new one takes its place
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, and make its folder, that is there whole or not at all, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which takes the place of `path` once the block has ended well."""
    # A crash while an older one is moved aside leaves both on the disk.
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch
        for file in scratch.iterdir():
            file.chmod(0o644)
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())
        scratch.chmod(0o755)
        sync_folder(scratch)
        old = None
        if path.is_dir() and any(path.iterdir()):
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / OLD)
        os.replace(scratch, path)
        if old is not None:
            shutil.rmtree(old)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Force to the disk which files a folder has, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FullDiskError(OSError):
    """There was no room for a result."""


@contextmanager
def room_for(folder: Path, what: str) -> Iterator[None]:
    """Raise a `FullDiskError` that says what to do, if a full disk stops the writing inside."""
    try:
        yield
    except Exception as error:
        # safetensors has an exception of its own, with the operating system's text.
        system = isinstance(error, OSError) and error.errno in FULL
        if isinstance(error, FullDiskError) or not (system or "No space left" in str(error)):
            raise
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**20
        raise FullDiskError(
            f"The disk is full: no room for {what} in {folder}, {free:.1f} MB are free. What is "
            "finished is kept: free some space and give the same command, which goes on from here."
        ) from error


def write_artefact(
    path: str | os.PathLike[str], kind: str, config: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write JSON-able settings and tensors to a folder: new, empty, or of an older artefact."""
    target = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not empty and not (target / JSON_NAME).is_file():
        said = f"path: {target} exists and is not a mindist artefact."
        raise FileExistsError(f"{said} Choose a new or empty folder.")
    with whole_folder(target) as scratch:
        # Copies: parts may share memory, which a file of tensors does not.
        contiguous = {name: v.detach().cpu().contiguous().clone() for name, v in tensors.items()}
        safetensors.torch.save_file(contiguous, scratch / TENSORS_NAME)
        checksum = digest((scratch / TENSORS_NAME).read_bytes())
        header = {"kind": kind, "format_version": FORMAT_VERSION, "tensors_sha256": checksum}
        text = json.dumps(sealed({**header, "config": config}), indent=2) + "\n"
        (scratch / JSON_NAME).write_text(text, encoding="utf-8")


def read_artefact(path: str | os.PathLike[str], kind: str) -> State:
    folder = Path(path)
    if not (folder / JSON_NAME).is_file():
        advice = "Give the path that was passed to save."
        if asides := sorted(folder.parent.glob(f".{folder.name}.old.*/{OLD}")):
            before = f"what was there before is at {asides[0]}; move it back."
            advice = f"A save was interrupted: {before}"
        expected = f"path: expected a folder with {JSON_NAME} and {TENSORS_NAME}"
        raise FileNotFoundError(f"{expected}, found none at {folder}. {advice}")
    header = read_json(folder / JSON_NAME)
    table = header if isinstance(header, dict) else {}
    version, found = table.get("format_version"), table.get("kind")
    if type(version) is not int or version < 1 or not isinstance(found, str):
        raise damaged(folder / JSON_NAME, "it is not the JSON that save wrote")
    check_version(folder, version, FORMAT_VERSION)
    unseal(folder / JSON_NAME, header)
    if found != kind:
        raise ValueError(f"path: {folder} holds {found}, expected {kind}. Use {found}.load.")
    config, file = header.get("config"), folder / TENSORS_NAME
    if not isinstance(config, dict):
        raise damaged(folder / JSON_NAME, "it has no settings")
    if not file.is_file():
        raise damaged(file, "it is missing")
    try:
        if header.get("tensors_sha256") != digest(blob := file.read_bytes()):
            raise damaged(file, "its checksum does not match: truncated or altered")
        return config, safetensors.torch.load(blob)
    except MemoryError:
        raise damaged(file, "it does not fit into memory") from None
    except (safetensors.SafetensorError, KeyError, RuntimeError) as error:
        # A KeyError for a type of number that torch has not, a RuntimeError for odd shapes.
        raise damaged(file, "it does not hold tensors as save writes them") from error


def damaged(file: Path, why: str) -> ValueError:
    return ValueError(f"path: {file} is damaged: {why}. Restore it from a copy, or make it again.")


def check_version(folder: Path, version: int, newest: int) -> None:
    if version > newest:
        most = f"newer than {newest}, the newest that this version of mindist reads"
        then = "Upgrade mindist to load it."
        raise ValueError(f"path: {folder} has format version {version}, {most}. {then}")


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "sha256": digest(canonical(values))}


def unseal(file: Path, values: dict[str, Any]) -> None:
    """Remove the checksum that `sealed` added; raise a ValueError if it is another."""
    claimed = values.pop("sha256", None)
    with suppress(RecursionError, ValueError):  # ValueError: text that no encoding has
        if claimed == digest(canonical(values)):
            return
    raise damaged(file, "its checksum does not match its content")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read_json(file: Path, most: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file of at most `most` bytes; numbers may be NaN."""
    size = file.stat().st_size
    if size > most:
        raise damaged(file, f"it has {size:,} bytes, and mindist writes no JSON so large")
    try:
        return json.loads(file.read_bytes().decode("utf-8"))
    except RecursionError:
        raise damaged(file, "it is nested too deeply") from None
    except ValueError as error:
        raise damaged(file, "it is not the JSON that save wrote") from error
