"""What a bank says of itself: its header, and a record of each complete chunk.

Both are attributes of Zarr groups, that is `zarr.json` files, with a checksum of their own::

    zarr.json             the header: format, versions, settings, shapes, embedding
    chunks/00012/zarr.json  files of chunk 12 with sizes and sha256, failed draws, seconds

They are written under another name, forced to the disk and renamed: the record of a chunk is there
once its arrays are.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from mindist import storage
from mindist.simulation import zarr_arrays
from mindist.storage import write_whole

KIND = "mindist simulation bank"
FORMAT_VERSION = 1
NUMBER = re.compile("[0-9]{5,15}")
MAX_RECORD_BYTES = 2**28  # some 400,000 failed draws of one chunk


def write_group(folder: Path, attributes: dict[str, Any]) -> None:
    """Make a folder a Zarr group with these attributes, or replace those it has."""
    folder.mkdir(parents=True, exist_ok=True)
    attributes = {**attributes, "sha256": digest(canonical(attributes))}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    write_whole(folder / "zarr.json", (json.dumps(group, indent=1) + "\n").encode())


def read_group(folder: Path) -> dict[str, Any] | None:
    """The attributes of a group, or None where there is none; ValueError if it is damaged."""
    path = folder / "zarr.json"
    if (
        path.is_symlink()
        or (folder.is_symlink() and folder.parent.name == "chunks")
        or (path.exists() and not path.is_file())
    ):
        raise storage.damaged(path, "it is a link or a folder in the place of a file")
    if not path.is_file():
        return None
    group = storage.read_json(path, MAX_RECORD_BYTES)
    attributes = group.get("attributes") if isinstance(group, dict) else None
    if not isinstance(attributes, dict):
        raise storage.damaged(path, "it is not what mindist wrote")
    claimed = attributes.pop("sha256", None)
    try:
        intact = claimed == digest(canonical(attributes))
    except (RecursionError, ValueError):  # ValueError: text that no encoding has
        intact = False
    if not intact:
        raise storage.damaged(path, "its checksum does not match its content")
    return attributes


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a bank, of a format that this version reads."""
    header = read_group(folder.resolve())  # a link to a bank is one; in it there are none
    if header is None:
        raise FileNotFoundError(
            f"path: expected a simulation bank, found none at {folder}. Give the path that was "
            "passed to mindist.simulate as out."
        )
    if header.get("kind") != KIND:
        raise ValueError(f"path: {folder} is a Zarr group, but no simulation bank.")
    version = header.get("format_version")
    if type(version) is not int or version < 1:
        raise storage.damaged(folder / "zarr.json", f"its format version is {str(version)[:80]}")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"path: {folder} has format version {version}, newer than "
            f"{FORMAT_VERSION}, the newest that this version of mindist reads. Upgrade mindist."
        )
    return header


def chunk_folders(folder: Path) -> list[tuple[int, Path]]:
    """The groups of a bank's chunks, with their numbers, in order."""
    found = [path for path in (folder / "chunks").glob("[0-9]*") if NUMBER.fullmatch(path.name)]
    return sorted((int(path.name), path) for path in found)


def record_of_files(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Sizes and checksums of files in a bank."""
    contents = {name: (folder / name).read_bytes() for name in names}
    return {
        name: {"bytes": len(content), "sha256": digest(content)}
        for name, content in contents.items()
    }


def damage(folder: Path, files: dict[str, dict[str, Any]], *, verify: bool) -> str | None:
    """What is wrong with the files of a record, or None; `verify` compares contents too."""
    for name, known in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            return f"{name} is missing, or a link"
        if path.stat().st_size != known["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {known['bytes']}"
        if verify and digest(path.read_bytes()) != known["sha256"]:
            return f"the checksum of {name} does not match its content"
        why = zarr_arrays.unfit(path, zarr_arrays.chunk_bytes(path.parent)) if verify else None
        if why is not None:
            return f"{name}: {why}"
    return None


def digest(content: bytes) -> str:
    """sha256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def canonical(value: Any) -> bytes:
    """One text for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


__all__ = [
    "FORMAT_VERSION",
    "KIND",
    "canonical",
    "chunk_folders",
    "damage",
    "digest",
    "read_group",
    "read_header",
    "record_of_files",
    "write_group",
]
