"""A clear word when the disk is full."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FullDiskError(OSError):
    """There was no room for a result."""


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


__all__ = ["FullDiskError", "room_for"]
