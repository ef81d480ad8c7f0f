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
from pathlib import Path
from typing import Any

from mindist.atomic import write_whole

KIND = "mindist simulation bank"
FORMAT_VERSION = 1


def write_group(folder: Path, attributes: dict[str, Any]) -> None:
    """Make a folder a Zarr group with these attributes, or replace those it has."""
    folder.mkdir(parents=True, exist_ok=True)
    attributes = {**attributes, "sha256": digest(canonical(attributes))}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    write_whole(folder / "zarr.json", (json.dumps(group, indent=1) + "\n").encode())


def read_group(folder: Path) -> dict[str, Any] | None:
    """The attributes of a group, or None where there is none; ValueError if it is damaged."""
    path = folder / "zarr.json"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        attributes = json.loads(content)["attributes"]
        claimed = attributes.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"path: {path} is damaged: it is not what mindist wrote.") from None
    if claimed != digest(canonical(attributes)):
        raise ValueError(f"path: {path} is damaged: its checksum does not match its content.")
    result: dict[str, Any] = attributes
    return result


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a bank, of a format that this version reads."""
    header = read_group(folder)
    if header is None:
        raise FileNotFoundError(
            f"path: expected a simulation bank, found none at {folder}. Give the path that was "
            "passed to mindist.simulate as out."
        )
    if header.get("kind") != KIND:
        raise ValueError(f"path: {folder} is a Zarr group, but no simulation bank.")
    if not 1 <= int(header["format_version"]) <= FORMAT_VERSION:
        raise ValueError(
            f"path: {folder} has format version {header['format_version']}, newer than "
            f"{FORMAT_VERSION}, the newest that this version of mindist reads. Upgrade mindist."
        )
    return header


def record_of_files(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Sizes and checksums of files in a bank."""
    contents = {name: (folder / name).read_bytes() for name in names}
    return {
        name: {"bytes": len(content), "sha256": digest(content)}
        for name, content in contents.items()
    }


def damage(folder: Path, files: dict[str, dict[str, Any]], *, verify: bool) -> str | None:
    """What is wrong with the files of a record, or None; `verify` compares checksums too."""
    for name, known in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != known["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {known['bytes']}"
        if verify and digest(path.read_bytes()) != known["sha256"]:
            return f"the checksum of {name} does not match its content"
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
    "damage",
    "digest",
    "read_group",
    "read_header",
    "record_of_files",
    "write_group",
]
