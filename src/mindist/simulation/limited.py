"""A time limit that holds whatever the simulator does: calls in a process that can be ended.

The process interrupts itself by an alarm, which ends a loop of Python or a sleep and costs nothing.
Compiled code may never look at a signal: then the caller kills the process and takes another. And
if the caller itself is gone, a timer outside of Python's lock ends the process.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from mindist.simulation.calls import Call, Data
from mindist.simulation.failure import RAISED, TIMED_OUT, Problem
from mindist.simulation.payload import pack, unpack

GRACE = 1.0  # seconds after the alarm before the process is killed

_idle: dict[str, list[LimitedCall]] = {}  # processes of the last run, to be used again


class LimitedCall:
    """A simulator in a process of its own, with a time limit for each simulation.

    Arguments:
        call: The simulator and what is expected of it.
        limit: Seconds for one simulation; for a batch of B, B times as many.
    """

    def __init__(self, call: Call, limit: float) -> None:
        if os.name != "posix":
            raise NotImplementedError(
                "time_limit: expected None on this system, where processes have no alarms. Limit "
                "the time inside the simulator."
            )
        self.call, self.limit = call, limit
        self._nursery: Nursery | None = None
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
            return timed_out(limit)
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
            self._nursery = Nursery()
        self._pipe = self._nursery.child()
        try:
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
        if pipe is not None:
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pipe.close()

    def close(self) -> None:
        """End the processes, if there are any."""
        self._kill()
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.close()


class Nursery:
    """A process that has imported everything and does nothing but fork: a new child is quick.

    It has one thread, and no code of the user has run in it: its forks are safe.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        # The path as it is here, however it came about: the other process may need all of it.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mindist.simulation.child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
            )

    def child(self) -> Connection[Any, Any]:
        """A pipe to a new child, which waits for what it shall call."""
        ours, theirs = Pipe()
        with theirs, suppress(ConnectionError):  # the caller finds the pipe closed
            socket.send_fds(self._socket, [b"1"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End it; children end when their pipe closes."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def timed_out(limit: float) -> Problem:
    """The problem of a simulation that took too long."""
    return Problem(TIMED_OUT, f"took more than {limit:g} s")


@contextmanager
def limited(call: Call, limit: float, run: str) -> Iterator[LimitedCall]:
    """A process that calls the simulator; those of the same run are used again.

    Arguments:
        call: The simulator and what is expected of it.
        limit: Seconds for one simulation.
        run: A name for the run: a process for another one is ended.
    """
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


__all__ = ["LimitedCall", "close_idle", "limited", "timed_out"]
