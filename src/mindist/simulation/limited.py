"""A time limit that holds whatever the simulator does: calls in a process that can be ended.

The process interrupts itself by an alarm, which ends a loop of Python or a sleep and costs nothing.
Compiled code may never look at a signal: then the caller kills the process and starts another. And
if the caller itself is gone, a timer outside of Python's lock ends the process.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        """Call the simulator in the other process."""
        pipe, limit = self._start(), self.limit * (batch or 1)
        pipe.send_bytes(pack((theta, seed, batch, limit)))
        try:
            if pipe.poll(limit + GRACE):
                result: Data | Problem = unpack(pipe.recv_bytes())
                return result
            self.close()
            return timed_out(limit)
        except (EOFError, ConnectionError):
            return Problem(RAISED, f"its process ended ({self._ended()})")
        except BaseException:
            self.close()  # what it still computes belongs to nobody
            raise

    def _start(self) -> Connection[Any, Any]:
        if self._pipe is not None:
            return self._pipe
        ours, theirs = Pipe()
        # The path as it is here, however it came about: the other process may need all of it.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mindist.simulation.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path},
        )
        theirs.close()
        self._pipe = ours
        try:
            ours.send_bytes(pack(self.call))
            ready = unpack(ours.recv_bytes())
        except (EOFError, ConnectionError):
            ready = self._ended()
        if ready != "ready":
            self.close()
            raise RuntimeError(f"simulator: its process could not be started ({ready}).")
        return ours

    def _ended(self) -> str:
        """How the process ended, which it has."""
        code = None if self._process is None else self._process.wait()
        self.close()
        return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"

    def close(self) -> None:
        """End the process, if there is one."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None and pipe is not None:
            process.kill()
            process.wait()
            pipe.close()


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
