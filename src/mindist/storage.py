"""Fitted objects on disk: a folder with `mindist.json` and `tensors.safetensors`.

Loading executes nothing. The JSON file carries a format version and checksums of both files; a
truncated, altered or newer artefact gives an error that says which it is. A new artefact is
written beside the old one and renamed into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

JSON_NAME, TENSORS_NAME = "mindist.json", "tensors.safetensors"
FORMAT_VERSION = 1


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
    target = Path(path)
    empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not empty and not (target / JSON_NAME).is_file():
        raise FileExistsError(
            f"path: {target} exists and is not a mindist artefact. Choose a new or empty folder."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        safetensors.torch.save_file(contiguous, scratch / TENSORS_NAME)
        header = {
            "kind": kind,
            "format_version": FORMAT_VERSION,
            "tensors_sha256": _digest((scratch / TENSORS_NAME).read_bytes()),
            "config": config,
        }
        header["sha256"] = _digest(_canonical(header))
        (scratch / JSON_NAME).write_text(json.dumps(header, indent=2) + "\n")
        scratch.chmod(0o755)
        if target.exists() and not empty:
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            os.replace(target, old / "artefact")
            os.replace(scratch, target)
            shutil.rmtree(old)
        else:
            os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_artefact(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_artefact` wrote, after checking its version and checksums."""
    folder = Path(path)
    if not (folder / JSON_NAME).is_file():
        raise FileNotFoundError(
            f"path: expected a folder with {JSON_NAME} and {TENSORS_NAME}, found none at {folder}. "
            "Give the path that was passed to save."
        )
    try:
        header = json.loads((folder / JSON_NAME).read_text())
        version, found = int(header["format_version"]), header["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(folder / JSON_NAME, "it is not the JSON that save wrote") from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"path: {folder} has format version {version}, newer than {FORMAT_VERSION}, the newest "
            "that this version of mindist reads. Upgrade mindist to load it."
        )
    claimed = header.pop("sha256", None)
    if claimed != _digest(_canonical(header)):
        raise _damaged(folder / JSON_NAME, "its checksum does not match its content")
    if found != kind:
        raise ValueError(f"path: {folder} holds a {found}, expected a {kind}. Load it as that.")
    if not (folder / TENSORS_NAME).is_file():
        raise _damaged(folder / TENSORS_NAME, "it is missing")
    blob = (folder / TENSORS_NAME).read_bytes()
    if header["tensors_sha256"] != _digest(blob):
        raise _damaged(folder / TENSORS_NAME, "its checksum does not match: truncated or altered")
    return header["config"], safetensors.torch.load(blob)


def _damaged(file: Path, why: str) -> ValueError:
    return ValueError(
        f"path: {file} is damaged: {why}. Restore it from a copy, or fit and save again."
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
