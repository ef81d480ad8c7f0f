"""Files and folders that are there whole or not at all, even after a crash.

What is new is written under another name in the same folder, forced to the disk, and renamed to its
place; then the folder that holds it is forced to the disk too. Every file that mindist writes goes
through here. (Zarr stores, whose chunks count only once they are complete, have their own way.)
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all.

    Example:
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_whole(path, b"done")
        >>> path.read_bytes(), [file.name for file in path.parent.iterdir()]
        (b'done', ['note.txt'])
    """
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
    """A folder to be filled, which takes the place of `path` once the block has ended well.

    An older folder there is moved aside first, to `.NAME.old.*` beside it, and deleted at the end:
    a crash between the two renames leaves both the old and the new one on the disk.

    Example:
        >>> path = Path(tempfile.mkdtemp()) / "folder"
        >>> with whole_folder(path) as scratch:
        ...     _ = (scratch / "a.txt").write_text("a")
        >>> [file.name for file in path.iterdir()]
        ['a.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch
        for file in scratch.iterdir():
            file.chmod(0o644)
            _sync(file)
        scratch.chmod(0o755)
        sync_folder(scratch)
        _put(scratch, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def left_aside(path: Path) -> Path | None:
    """Where a save that was killed between its two renames has left the older folder."""
    found = path.parent.glob(f".{path.name}.old.*/{OLD}") if path.parent.is_dir() else ()
    return next(iter(sorted(found)), None)


OLD = "artefact"


def _put(scratch: Path, path: Path) -> None:
    if not path.is_dir() or not any(path.iterdir()):
        os.replace(scratch, path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    os.replace(path, old / OLD)
    os.replace(scratch, path)
    shutil.rmtree(old)


def _sync(file: Path) -> None:
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Force to the disk which files a folder has, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


__all__ = ["left_aside", "sync_folder", "whole_folder", "write_whole"]
