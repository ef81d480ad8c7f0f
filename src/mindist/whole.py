"""Files that are there whole or not at all, and a clear word when the disk is full."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FullDiskError(OSError):
    """There was no room for a result."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, even after a crash."""
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
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def room_for(folder: Path, what: str) -> Iterator[None]:
    """Say clearly that the disk is full, if it is what stops the writing inside."""
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
            f"The disk is full: no room for {what} in {folder}, {free:.1f} MB are free. What "
            "is finished is kept: free some space and give the same command, which will go on from "
            "here."
        ) from error


__all__ = ["FullDiskError", "room_for", "write_whole"]
