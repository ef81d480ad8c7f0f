"""One writer for a bank: a lock that vanishes with its process.

The system's lock (`flock`) on a file beside the bank is released when its process ends, however it
ends: by SIGKILL too. On Linux it holds between the machines that mount one NFS (since kernel
2.6.12) and on Lustre mounted with `flock`. Where a file system has none, the name in the file is
all there is: a process of this machine that no longer runs has left it behind, one of another
machine is believed.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class BankLockedError(RuntimeError):
    """Another process writes this bank."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a bank, or say who does.

    Arguments:
        folder: Of the bank; the lock is the file `.NAME.lock` beside it, while it is held.
    """
    path = folder.parent / f".{folder.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, folder)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock goes: whoever waits looks again
        os.close(handle)


def _acquire(path: Path, folder: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            owner = _read(handle)
            if not _lock(handle, owner):
                raise _taken(folder, path, owner)
            if not _same_file(handle, path):  # it was removed by its last owner a moment ago
                os.close(handle)
                continue
            _sign(handle)
            return handle
        except BaseException:
            os.close(handle)
            raise


def _lock(handle: int, owner: dict[str, Any]) -> bool:
    """Whether the lock is ours now."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "no flock")
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in NO_LOCKS and not _alive(owner)
    return True


def _alive(owner: dict[str, Any]) -> bool:
    """Whether the process that signed the file may still run."""
    if not owner:
        return False
    if owner.get("host") != socket.gethostname():
        return True
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(owner["pid"]) != os.getpid()


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": began}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(owner).encode(), 0)


def _read(handle: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(handle, 4_096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _taken(folder: Path, path: Path, owner: dict[str, Any]) -> BankLockedError:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
    return BankLockedError(
        f"out: {folder} is being written by {who} (since {owner.get('since', '?')}). Wait for it, "
        "or end it and give the same call, which will go on from there. If that machine is gone, "
        f"delete {path}."
    )


__all__ = ["BankLockedError", "locked"]
