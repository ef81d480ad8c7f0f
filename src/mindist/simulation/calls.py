"""One draw: seeds, which depend on what is drawn alone, and calls of the prior and simulator."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks

NumPy = np.ndarray[Any, Any]
RAISED, TIMED_OUT, NOT_FINITE, WRONG_SHAPE = "raised", "timed out", "not finite", "wrong shape"
PREDICTED = 2**30  # the first number of these seeds, which no chunk of a bank has
MAX_TEXT = 500  # characters of an error's text that are kept


def draw_seed(seed: int, *key: int) -> int:
    """Return a seed of 63 bits for one place in a bank: chunk, attempt, and what is drawn."""
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # noqa: NPY002  (what simulators may draw from)
    # Not torch.manual_seed, which would also initialise generators of devices that nobody uses.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def borrowed_globals() -> Iterator[None]:
    """Give the global generators back as they were."""
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
    """The user's prior, simulator and summary."""

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
        """Names of the three, for the record of a bank."""
        parts = {name: getattr(self, name) for name in ("prior", "simulator", "summary")}
        plain = {name: getattr(part, "func", part) for name, part in parts.items()}  # of a partial
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
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return {}
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = {name for name, parameter in parameters.items() if parameter.kind in kinds}
    given: dict[str, Any] = {}
    if "generator" in wanted:
        given["generator"] = torch.Generator().manual_seed(seed)
    if "rng" in wanted:
        given["rng"] = np.random.default_rng(seed)
    if n_obs is not None:
        given |= dict.fromkeys(wanted & {"n_obs", "num_observations"}, n_obs)
    return given


@dataclass(frozen=True)
class Problem:
    """Why a call of the simulator or the summary gave nothing: a kind, and what was said."""

    kind: str
    error: str

    @classmethod
    def of(cls, error: BaseException, whose: str = "") -> Problem:
        """Describe an error that was raised."""
        return cls(RAISED, f"{whose}{type(error).__name__}: {error}"[:MAX_TEXT])


NAN = Problem(NOT_FINITE, "the data hold NaN or infinite values")


@dataclass(frozen=True)
class Data:
    """Datasets of a simulator, `(N, *event)` or `(B, N, *event)`, and whether as NumPy arrays."""

    x: NumPy
    numpy: bool


Caller = Callable[[Any, int, int | None], Data | Problem]
"""Calls the simulator with one theta, or a batch of so many, from a seed: here or elsewhere."""


@dataclass(frozen=True)
class Call:
    """A simulator and what is expected of it: N, and the shape of an observation if it is known."""

    simulator: Callable[..., Any]
    n_obs: int
    event: tuple[int, ...] | None = None

    def __call__(self, theta: Any, seed: int, batch: int | None) -> Data | Problem:
        """Seed the global generators, call, check."""
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
    """Simulate a dataset `(N, *event)` for each theta; return those made, and the first error.

    The simulator is called with all rows or with one, as tensors or as NumPy arrays, whichever
    works; from other streams than `seed` itself, with which theta may have been drawn.
    """
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
