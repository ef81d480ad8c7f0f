"""Functions in another process, and a time limit that holds whatever the simulator does.

A simulator interrupts itself by an alarm. Compiled code may never look at a signal: then the caller
kills its process. If the caller is gone, a timer outside of Python's lock ends it. (pebble leaves a
hanging child behind when its caller is killed; loky has no time limits.) This is the only module
that pickles, through pipes and never to a file.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from multiprocessing.connection import Connection, Pipe
from types import FrameType
from typing import Any, NoReturn

from mindist.simulation.calls import RAISED, TIMED_OUT, Call, Caller, Data, Problem
from mindist.threads import one_thread

GRACE = 1.0  # seconds after the alarm before the process is killed


def need(name: str) -> Any:
    """Import a library that only banks need, or say what to install."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        old = missing == "zarr" and sys.version_info < (3, 11)
        raise ImportError(
            f"Simulation banks need {missing}. Install it with: pip install 'mindist[bank]'"
            + " (Python 3.11 or newer)" * old
        ) from error


def pack(thing: Any) -> bytes:
    """Return something as bytes for another process of the same user."""
    pickler = need("cloudpickle")
    try:
        # A process that was started earlier may not look for modules where this one does by now.
        content: bytes = pickler.dumps((sys.path, pickler.dumps(thing)))
    except Exception as error:
        raise TypeError(
            "prior, simulator, summary: expected functions that can be sent to another process, "
            f"got {type(error).__name__}: {error}. Make sockets and locks inside the "
            "function, or use workers=1 and no time_limit."
        ) from error
    return content


def unpack(content: bytes) -> Any:
    """Return what `pack` packed in a process of the same user."""
    import cloudpickle

    folders, thing = cloudpickle.loads(content)
    sys.path += [folder for folder in folders if folder not in sys.path]
    return cloudpickle.loads(thing)


unpack_once = lru_cache(maxsize=1)(unpack)  # for workers, which get the same with every job


@contextmanager
def one_core() -> Iterator[None]:
    """Keep torch and NumPy's libraries on one thread: the last bits of a sum depend on it."""
    with one_thread(), _controller().limit(limits=1):
        yield


@cache
def _controller() -> Any:
    """Return a handle on the libraries that are loaded by now; looking for them takes a while."""
    return need("threadpoolctl").ThreadpoolController()


class LimitedCall:
    """A simulator in a process of its own, with seconds for each simulation, B times for a batch.

    It is forked from a nursery, with imports and one thread, in which no code of the user has run.
    """

    def __init__(self, call: Call, limit: float) -> None:
        if os.name != "posix":
            said = "time_limit: expected None on this system, where processes have no alarms."
            raise NotImplementedError(f"{said} Limit the time inside the simulator.")
        self.call, self.limit = call, limit
        self._nursery: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._pid = 0

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        """Call the simulator in the other process."""
        pipe, limit = self._start(), self.limit * (batch or 1)
        try:
            pipe.send_bytes(pack((theta, seed, batch, limit)))
            if pipe.poll(limit + GRACE):
                result: Data | Problem = unpack(pipe.recv_bytes())
                return result
            self._kill()
            return _timed_out(limit)
        except (EOFError, ConnectionError):
            self._kill()
            return Problem(RAISED, "its process ended: it crashed, or the system ended it")
        except BaseException:
            self._kill()  # what it still computes belongs to nobody
            raise

    def _start(self) -> Connection[Any, Any]:
        if self._pipe is not None:
            return self._pipe
        if self._nursery is None:
            self._nursery = _nursery()
        self._pipe, theirs = Pipe()
        try:
            with theirs:
                socket.send_fds(self._nursery[1], [b"1"], [theirs.fileno()])
            self._pipe.send_bytes(pack(self.call))
            self._pid, problem = unpack(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            problem = "it ended at once"
        if problem:
            self.close()
            raise RuntimeError(f"simulator: its process could not be started ({problem}).")
        return self._pipe

    def _kill(self) -> None:
        pid, pipe, self._pid, self._pipe = self._pid, self._pipe, 0, None
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        """End the processes, if there are any."""
        self._kill()
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery[1].close()
            nursery[0].kill()
            nursery[0].wait()


def _nursery() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that forks others, and the socket to ask it for one."""
    ours, theirs = socket.socketpair()
    # The path as it is here, however it came about: the other process may need all of it.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with theirs:
        program = f"from mindist.simulation.limited import main; main({theirs.fileno()})"
        command, env = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": path}
        return subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env), ours


def _timed_out(limit: float) -> Problem:
    return Problem(TIMED_OUT, f"took more than {limit:g} s")


_idle: dict[str, list[LimitedCall]] = {}  # processes of the last run, to be used again


@contextmanager
def calling(call: Call, limit: float | None, run: str) -> Iterator[Caller]:
    """Call a simulator here or, with seconds as a limit, in a process that its `run` uses again."""
    if limit is None:
        yield call
        return
    for other in [name for name in _idle if name != run]:
        close_idle(other)
    waiting = _idle.setdefault(run, [])
    caller = waiting.pop() if waiting else LimitedCall(call, limit)
    try:
        yield caller
    finally:
        waiting.append(caller)


def close_idle(run: str) -> None:
    """End the processes of a run that wait for work."""
    for caller in _idle.pop(run, []):
        caller.close()


@atexit.register
def _close_all() -> None:
    for run in list(_idle):
        close_idle(run)


class TimeUp(BaseException):
    """The alarm: no `except Exception` of a simulator catches it."""


def main(handle: int) -> None:
    """Fork a child for each pipe that comes through the socket, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a child ended
    with one_thread(), socket.socket(fileno=handle) as requests:
        while True:
            message, handles, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            if not os.fork():
                requests.close()
                _serve(Connection(handles[0]))
                os._exit(0)
            os.close(handles[0])


def _serve(pipe: Connection[Any, Any]) -> None:
    """Answer calls until the pipe closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, _ring)
    with suppress(EOFError, ConnectionError), open(os.devnull, "w") as nowhere, one_core():
        try:
            call = unpack(pipe.recv_bytes())
        except Exception as error:
            pipe.send_bytes(pack((0, f"{type(error).__name__}: {error}")))
            return
        pipe.send_bytes(pack((os.getpid(), "")))
        while True:
            theta, seed, batch, limit = unpack(pipe.recv_bytes())
            faulthandler.dump_traceback_later(limit + 2 * GRACE, exit=True, file=nowhere)
            result: Data | Problem = _timed_out(limit)
            with suppress(TimeUp):
                signal.setitimer(signal.ITIMER_REAL, limit)
                got = call(theta, seed, batch)
                signal.setitimer(signal.ITIMER_REAL, 0)
                result = got
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(pack(result))


def _ring(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeUp
