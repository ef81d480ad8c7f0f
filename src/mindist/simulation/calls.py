"""Calls of the user's functions: seeds, which depend on what is drawn alone, and time limits.

With a time limit a simulator runs in another process, where it interrupts itself by an alarm.
Compiled code may never look at a signal: then the caller kills its process. If the caller is gone,
a timer outside of Python's lock ends it. (pebble leaves a hanging child behind when its caller is
killed; loky has no time limits.) Only this module pickles, through pipes and never to a file.
"""

import atexit
import faulthandler
import inspect
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.threads import one_thread

NumPy = np.ndarray[Any, Any]
RAISED, TIMED_OUT, NOT_FINITE, WRONG_SHAPE = "raised", "timed out", "not finite", "wrong shape"
PREDICTED = 2**30  # the first number of these seeds, which no chunk of a bank has
MAX_TEXT = 500  # characters of an error's text that are kept
GRACE = 1.0  # seconds after the alarm before the process is killed


def draw_seed(seed: int, *key: int) -> int:
    """Return a seed of 63 bits for one place in a bank: chunk, attempt, and what is drawn."""
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002  (what simulators may draw from)
    # Not torch.manual_seed, which would also initialise generators of devices that nobody uses.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def borrowed_globals() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@dataclass(frozen=True)
class Sources:
    prior: Any
    simulator: Callable[..., Any]
    summary: Callable[[Any], Any]

    def __post_init__(self) -> None:
        prior = "an object with .sample((n,)) or a function of n that gives parameters (n, d_theta)"
        expected = {"prior": prior, "simulator": "a function", "summary": "a function"}
        for name, said in expected.items():
            own = getattr(self, name)
            if not callable(own) and not (name == "prior" and callable(getattr(own, "sample", 0))):
                raise checks.wrong(name, said, type(own).__name__, kind=TypeError)

    @property
    def names(self) -> dict[str, str]:
        plain = {name: getattr(part, "func", part) for name, part in vars(self).items()}
        return {k: str(getattr(v, "__qualname__", type(v).__name__)) for k, v in plain.items()}


def draw_prior(prior: Any, num: int, seed: int) -> Any:
    """Return parameters `(num, d_theta)`, a tensor or an array as the prior gives them."""
    seed_globals(seed)
    sample = getattr(prior, "sample", None)
    theta = sample((num,)) if callable(sample) else prior(num, **_named(prior, seed))
    if isinstance(theta, Tensor):
        theta = theta.detach().cpu()
    shape = tuple(np.shape(theta))
    if shape[:1] != (num,) or len(shape) != 2 or not shape[1]:
        said, then = f"parameters of shape ({num}, d_theta)", "One number for each needs [:, None]."
        raise checks.wrong("prior", said, f"shape {shape}", then)
    checks.as_tensor(theta, "prior (its result)")
    return theta


def _named(function: Callable[..., Any], seed: int, n_obs: int | None = None) -> dict[str, Any]:
    """Return the arguments that a function asks for by name: generators from one seed, and N."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return {}
    wanted = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    given = {"rng": np.random.default_rng(seed), "generator": torch.Generator().manual_seed(seed)}
    sizes = {} if n_obs is None else {"n_obs": n_obs, "num_observations": n_obs}
    return {name: value for name, value in (given | sizes).items() if name in wanted}


class Problem(NamedTuple):  # why a call of the simulator or the summary gave nothing
    kind: str
    error: str  # what was said

    @classmethod
    def of(cls, error: BaseException, whose: str = "") -> "Problem":
        return cls(RAISED, f"{whose}{type(error).__name__}: {error}"[:MAX_TEXT])


class Data(NamedTuple):
    x: NumPy  # (N, *event) or (B, N, *event)
    numpy: bool  # whether they came as an array


NAN = Problem(NOT_FINITE, "the data hold NaN or infinite values")
# Calls the simulator with one theta, or a batch of so many, from a seed: here or elsewhere.
Caller = Callable[[Any, int, int | None], Data | Problem]


# A simulator and what is expected of it: N, and the shape of an observation if it is known.
@dataclass(frozen=True)
class Call:
    simulator: Callable[..., Any]
    n_obs: int
    event: tuple[int, ...] | None = None

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        seed_globals(seed)
        try:
            value = self.simulator(theta, **_named(self.simulator, seed, self.n_obs))
        except Exception as error:
            return Problem.of(error)
        try:
            x = checks.as_tensor(value, "simulator (its result)").detach().cpu()
        except TypeError as error:
            return Problem(WRONG_SHAPE, str(error))
        known = (self.n_obs,) if batch is None else (batch, self.n_obs)
        shape, event = tuple(x.shape[: len(known)]), tuple(x.shape[len(known) :])
        if shape != known or self.event not in (None, event):
            rest = ("*event",) if self.event is None else self.event
            expected = str((*known, *rest)).replace("'", "")
            return Problem(WRONG_SHAPE, f"expected shape {expected}, got {tuple(x.shape)}")
        return Data(x.numpy(), isinstance(value, np.ndarray))


def predict_data(
    simulator: Callable[..., Any], theta: Tensor, shape: tuple[int, ...], seed: int
) -> tuple[Tensor, str]:
    """Simulate a dataset `(N, *event)` for each theta; return those made, and the first error."""
    # With all rows or with one, as tensors or arrays, whichever works; not from `seed` itself.
    theta, call = theta.detach().cpu(), Call(simulator, shape[0], tuple(shape[1:]))
    # A batch of N or d_theta rows might be taken for one theta by chance: pad it.
    taken = (call.n_obs, theta.shape[1])
    num = next(n for n in range(len(theta), len(theta) + 3) if n not in taken)
    padded = torch.cat([theta, theta[:1].expand(num - len(theta), -1)])
    with borrowed_globals(), torch.no_grad():
        for given in (padded, padded.numpy()):
            together = call(given, draw_seed(seed, PREDICTED), num)
            if isinstance(together, Data):
                return torch.from_numpy(together.x)[: len(theta)], ""
        made, error = [], ""
        for i, one in enumerate(theta):
            first = result = call(one, draw_seed(seed, PREDICTED, i), None)
            if isinstance(first, Problem):
                result = call(one.numpy(), draw_seed(seed, PREDICTED, i), None)
            if isinstance(result, Data):
                made.append(torch.from_numpy(result.x))
            elif isinstance(first, Problem):
                error = error or first.error
    return torch.stack(made) if made else torch.empty(0, *shape), error


need = partial(checks.need, "Simulation banks", "bank")


def pack(thing: Any) -> bytes:
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


# A simulator in a process of its own, with seconds for each simulation, B times for a batch.
class LimitedCall:
    def __init__(self, call: Call, limit: float) -> None:
        if os.name != "posix":
            said = "time_limit: expected None on this system, where processes have no alarms."
            raise NotImplementedError(f"{said} Limit the time inside the simulator.")
        self.call, self.limit, self._pid = call, limit, 0
        self._pipe: Connection[Any, Any] | None = None
        self._socket, theirs = socket.socketpair()
        # The path as it is here, however it came about: the other process may need all of it.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        program = f"from mindist.simulation.calls import main; main({theirs.fileno()})"
        with theirs:  # to a process that forks others, in which no code of the user runs
            command, handles = [sys.executable, "-c", program], [theirs.fileno()]
            self._nursery = subprocess.Popen(command, pass_fds=handles, env=env)

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        pipe, limit = self._start(), self.limit * (batch or 1)
        try:
            pipe.send_bytes(pack((theta, seed, batch, limit)))
            if pipe.poll(limit + GRACE):
                result: Data | Problem = unpack(pipe.recv_bytes())
                return result
            problem = Problem(TIMED_OUT, f"took more than {limit:g} s")
        except (EOFError, ConnectionError):
            problem = Problem(RAISED, "its process ended: it crashed, or the system ended it")
        except BaseException:
            self._kill()  # what it still computes belongs to nobody
            raise
        self._kill()
        return problem

    def _start(self) -> "Connection[Any, Any]":
        if self._pipe is not None:
            return self._pipe
        self._pipe, theirs = Pipe()
        try:
            with theirs:
                socket.send_fds(self._socket, [b"1"], [theirs.fileno()])
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
        with suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
        if pipe is not None:
            pipe.close()

    def close(self) -> None:
        self._kill()
        self._socket.close()
        self._nursery.kill()
        self._nursery.wait()


_idle: dict[str, list[LimitedCall]] = {}  # processes of the last run, to be used again


@contextmanager
def calling(call: Call, limit: float | None, run: str) -> Iterator[Caller]:
    """Call a simulator here or, with seconds as a limit, in a process that its `run` uses again."""
    if limit is None:
        yield call
        return
    if run not in _idle:
        close_idle()
    waiting = _idle.setdefault(run, [])
    caller = waiting.pop() if waiting else LimitedCall(call, limit)
    try:
        yield caller
        waiting.append(caller)
    except BaseException:
        caller.close()
        raise


@atexit.register
def close_idle() -> None:
    """End the processes that wait for more work."""
    while _idle:
        for caller in _idle.popitem()[1]:
            caller.close()


class TimeUp(BaseException):  # the alarm: no `except Exception` of a simulator catches it
    pass


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


def _serve(pipe: "Connection[Any, Any]") -> None:
    def ring(*_: object) -> NoReturn:
        raise TimeUp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, ring)
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
            result: Data | Problem = Problem(TIMED_OUT, f"took more than {limit:g} s")
            with suppress(TimeUp):
                signal.setitimer(signal.ITIMER_REAL, limit)
                got = call(theta, seed, batch)
                signal.setitimer(signal.ITIMER_REAL, 0)
                result = got
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(pack(result))
