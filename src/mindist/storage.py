"""Fitted objects on disk: a folder with `mindist.json` and `tensors.safetensors`.

Loading executes nothing. The JSON file carries a format version and checksums of both files; a
truncated, altered or newer artefact gives an error that says which it is. A checksum shows damage,
not good will: whoever alters a file can compute it again. So what rebuilds an object from an
artefact checks every value first (`mindist.layout`). A new artefact is written beside the old one
and renamed into place (`mindist.atomic`).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from mindist.atomic import left_aside, whole_folder

JSON_NAME, TENSORS_NAME = "mindist.json", "tensors.safetensors"
FORMAT_VERSION = 1
MAX_JSON_BYTES = 2**24  # a fitted estimator's is some 5 KB


def write_artefact(
    path: str | os.PathLike[str], kind: str, config: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Write a configuration and tensors to the folder `path`, replacing an older artefact there.

    Arguments:
        path: A folder that does not exist yet, is empty, or holds an older artefact.
        kind: What is stored, such as `"MinimumDistance"`.
        config: JSON-able settings.
        tensors: Named tensors.
    """
    target = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not empty and not (target / JSON_NAME).is_file():
        raise FileExistsError(
            f"path: {target} exists and is not a mindist artefact. Choose a new or empty folder."
        )
    with whole_folder(target) as scratch:
        contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(contiguous, scratch / TENSORS_NAME)
        header = {
            "kind": kind,
            "format_version": FORMAT_VERSION,
            "tensors_sha256": _digest((scratch / TENSORS_NAME).read_bytes()),
            "config": config,
        }
        header["sha256"] = _digest(_canonical(header))
        text = json.dumps(header, indent=2) + "\n"
        (scratch / JSON_NAME).write_text(text, encoding="utf-8")


def read_artefact(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_artefact` wrote, after checking its version and checksums.

    Raises:
        FileNotFoundError: There is no artefact at `path`.
        ValueError: It is damaged, of another kind, or newer than this version of mindist.
    """
    folder = Path(path)
    if not (folder / JSON_NAME).is_file():
        raise _missing(folder)
    header = _header(folder / JSON_NAME)
    version, found = header.get("format_version"), header.get("kind")
    if type(version) is not int or version < 1 or not isinstance(found, str):
        raise damaged(folder / JSON_NAME, "it is not the JSON that save wrote")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"path: {folder} has format version {version}, newer than {FORMAT_VERSION}, the newest "
            "that this version of mindist reads. Upgrade mindist to load it."
        )
    claimed = header.pop("sha256", None)
    try:
        intact = claimed == _digest(_canonical(header))
    except RecursionError:
        intact = False
    if not intact:
        raise damaged(folder / JSON_NAME, "its checksum does not match its content")
    if found != kind:
        raise ValueError(f"path: {folder} holds a {found}, expected a {kind}. Load it as that.")
    config = header.get("config")
    if not isinstance(config, dict):
        raise damaged(folder / JSON_NAME, "it has no settings")
    return config, _tensors(folder / TENSORS_NAME, header.get("tensors_sha256"))


def damaged(file: Path, why: str) -> ValueError:
    """The error for a file that mindist did not write like this."""
    return ValueError(f"path: {file} is damaged: {why}. Restore it from a copy, or make it again.")


def read_json(file: Path, most: int = MAX_JSON_BYTES) -> Any:
    """The content of a JSON file of moderate size, at most `most` bytes.

    Raises:
        ValueError: It is too large, too deeply nested, or no JSON. Numbers may be NaN or infinite:
            who uses them has to check.
    """
    size = file.stat().st_size
    if size > most:
        raise damaged(file, f"it has {size:,} bytes, and mindist writes no JSON so large")
    try:
        return json.loads(file.read_bytes().decode("utf-8"))
    except RecursionError:
        raise damaged(file, "it is nested too deeply") from None
    except ValueError as error:
        raise damaged(file, "it is not the JSON that save wrote") from error


def _header(file: Path) -> dict[str, Any]:
    header = read_json(file)
    if not isinstance(header, dict):
        raise damaged(file, "it is not the JSON that save wrote")
    return header


def _tensors(file: Path, checksum: object) -> dict[str, Tensor]:
    if not file.is_file():
        raise damaged(file, "it is missing")
    try:
        blob = file.read_bytes()
        if checksum != _digest(blob):
            raise damaged(file, "its checksum does not match: truncated or altered")
        return safetensors.torch.load(blob)
    except MemoryError:
        raise damaged(file, "it does not fit into memory") from None
    except (safetensors.SafetensorError, KeyError, RuntimeError) as error:
        # A KeyError for a type of number that torch has not, a RuntimeError for odd shapes.
        raise damaged(file, "it does not hold tensors as save writes them") from error


def _missing(folder: Path) -> FileNotFoundError:
    aside = left_aside(folder)
    advice = (
        "Give the path that was passed to save."
        if aside is None
        else f"A save was interrupted: what was there before is at {aside}; move it back."
    )
    return FileNotFoundError(
        f"path: expected a folder with {JSON_NAME} and {TENSORS_NAME}, found none at {folder}. "
        f"{advice}"
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


__all__ = ["FORMAT_VERSION", "damaged", "read_artefact", "read_json", "write_artefact"]
