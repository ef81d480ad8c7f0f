"""The other side of `limited`: a process that calls a simulator, and ends when told or too late."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

import torch

from mindist.simulation.limited import GRACE, timed_out
from mindist.simulation.payload import pack, unpack
from mindist.simulation.threads import one_core


class TimeUp(BaseException):
    """The alarm: no `except Exception` of a simulator catches it."""


def main(handle: int) -> None:
    """Fork a child for each pipe that comes through the socket, until it closes."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a child ended
    with socket.socket(fileno=handle) as requests:
        while True:
            message, handles, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            if not os.fork():
                requests.detach()
                os.close(handle)
                serve(Connection(handles[0]))
                os._exit(0)
            os.close(handles[0])


def serve(pipe: Connection[Any, Any]) -> None:
    """Answer calls until the pipe closes."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, _ring)
    try:
        call = unpack(pipe.recv_bytes())
    except EOFError:
        return
    except Exception as error:
        pipe.send_bytes(pack((0, f"{type(error).__name__}: {error}")))
        return
    pipe.send_bytes(pack((os.getpid(), "")))
    with open(os.devnull, "w") as nowhere, one_core():
        result: Any = None
        with suppress(EOFError, ConnectionError):
            while True:
                theta, seed, batch, limit = unpack(pipe.recv_bytes())
                with alarm(limit, nowhere) as rung:
                    result = call(theta, seed, batch)
                pipe.send_bytes(pack(timed_out(limit) if rung else result))


@contextmanager
def alarm(limit: float, nowhere: Any) -> Iterator[list[bool]]:
    """End what is inside after `limit` seconds, and say so; or the process, a while later.

    Arguments:
        limit: Seconds.
        nowhere: An open file for the traceback of the end, which nobody reads.
    """
    rung: list[bool] = []
    faulthandler.dump_traceback_later(limit + 2 * GRACE, exit=True, file=nowhere)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        yield rung
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeUp:
        rung.append(True)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _ring(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeUp


if __name__ == "__main__":
    main(int(sys.argv[1]))
