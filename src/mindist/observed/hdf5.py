"""HDF5: datasets that lie in the file itself, read slice by slice in a process of its own.

What is read, what is refused and why there is another process: `hdf5_process.py`.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from mindist.observed.arrays import ArraySource, chosen_keys, plan
from mindist.observed.hdf5_process import receive, send
from mindist.observed.shape import check_array
from mindist.observed.source import Request, needs

PROGRAM = Path(__file__).with_name("hdf5_process.py")
WAIT_SECONDS = 600.0  # for an answer of a process that is asleep: a busy one ends itself earlier
BROKEN = (ValueError, TypeError, KeyError, OSError, OverflowError, MemoryError)
DIED = (
    "the HDF5 library crashed on it, or did not come to an end. That happened in a process of its "
    "own: nothing else was harmed"
)


class Helper:
    """The other process: started when it is needed, again when it has died, and by each fork."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._lock = 0, threading.Lock()

    def ask(self, path: Path, key: str | None = None, index: int | None = None) -> Any:
        """The answer to a request: the arrays of a file, or the numbers of one."""
        with self._lock:
            process = self._running()
            timer = threading.Timer(WAIT_SECONDS, process.kill)
            timer.start()
            try:
                send(process.stdin, {"path": str(path.resolve()), "key": key, "index": index})
                message = receive(process.stdout)
            except (OSError, ValueError):
                message = None
            finally:
                timer.cancel()
            if message is None:
                self.stop()
                raise ValueError(DIED)
        if "error" in message[0]:
            raise ValueError(str(message[0]["error"]))
        return message

    def _running(self) -> Any:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.stop()
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
            self._owner = os.getpid()
        return self._process

    def stop(self) -> None:
        """End the process, if this one has started it."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # what was not sent yet cannot be sent any more
                    cast(IO[bytes], stream).close()


HELPER = Helper()
atexit.register(HELPER.stop)


def read_hdf5(request: Request) -> ArraySource:
    """The datasets in an HDF5 file."""
    if importlib.util.find_spec("h5py") is None:
        raise needs("h5py", "HDF5")
    with request.reading("HDF5", BROKEN):
        found = HELPER.ask(request.path)[0]["arrays"]
    keys, arrays = chosen_keys(list(found), request), {}
    for key in keys:
        kind, shape, refused = found[key]
        where = f"path: {request.path}, {key[:80]!r}"
        if refused:
            raise ValueError(f"{where} {refused}")
        with request.reading("HDF5", BROKEN):
            arrays[key] = (np.dtype(kind), tuple(shape))
        check_array(where, *arrays[key], request)
    names, event, many = plan(arrays, request)

    @contextmanager
    def opened() -> Iterator[Callable[[str, bool], Iterator[NDArray[Any]]]]:
        with request.reading("HDF5", BROKEN):
            yield lambda key, many: _datasets(request, key, *arrays[key], many)

    return ArraySource(names, event, many, opened)


def _datasets(
    request: Request, key: str, dtype: Any, shape: tuple[int, ...], many: bool
) -> Iterator[NDArray[Any]]:
    """The datasets of an array, one request each."""
    indices: list[int | None] = list(range(shape[0])) if many else [None]
    for index in indices:
        _, data = HELPER.ask(request.path, key, index)
        yield np.frombuffer(data, dtype).reshape(shape[1:] if many else shape)


__all__ = ["read_hdf5"]
