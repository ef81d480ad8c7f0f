"""Functions on their way to another process, through a pipe or a socket and never through a file.

This is the only module that pickles: cloudpickle takes functions of a notebook or a script by
value. A worker unpacks the same payload once.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass
from typing import Any

from mindist.simulation.extras import need

_unpacked: dict[str, Any] = {}  # the last payload of this process, by its token


@dataclass(frozen=True)
class Payload:
    """Something packed.

    Arguments:
        token: Its own name.
        content: What to unpack.
    """

    token: str
    content: bytes

    @classmethod
    def of(cls, thing: Any) -> Payload:
        """Pack something, or say why it cannot be sent."""
        return cls(uuid.uuid4().hex, pack(thing))

    def open(self) -> Any:
        """What was packed; unpacked once in each process."""
        if self.token not in _unpacked:
            thing = unpack(self.content)
            _unpacked.clear()
            _unpacked[self.token] = thing
        return _unpacked[self.token]


def pack(thing: Any) -> bytes:
    """As bytes for another process of the same user.

    Example:
        >>> unpack(pack(lambda x: x + 1))(1)
        2
    """
    pickler = _cloudpickle()
    try:
        # A process that was started earlier, for another call, may not look for modules where this
        # one does by now.
        content: bytes = pickler.dumps((sys.path, pickler.dumps(thing)))
    except Exception as error:
        raise TypeError(
            "prior, simulator, summary: expected functions that can be sent to another process, "
            f"got {type(error).__name__}: {error}. Make sockets and locks inside the "
            "function, or use workers=1 and no time_limit."
        ) from error
    return content


def unpack(content: bytes) -> Any:
    """What `pack` packed in a process of the same user."""
    folders, thing = _cloudpickle().loads(content)
    sys.path += [folder for folder in folders if folder not in sys.path]
    return _cloudpickle().loads(thing)


def _cloudpickle() -> Any:
    need("cloudpickle")  # says what to install
    import cloudpickle

    return cloudpickle


__all__ = ["Payload", "pack", "unpack"]
