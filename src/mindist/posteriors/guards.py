"""Guards around foreign code: threads take turns, seeds are borrowed, pickles need trust.

Libraries draw from torch's global generator and store queries. No other file unpickles.
"""

import io
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mindist import checks

_turn = [threading.RLock()]  # a query may be part of another
if hasattr(os, "register_at_fork"):  # a forked process finds the lock free
    os.register_at_fork(after_in_child=lambda: _turn.__setitem__(0, threading.RLock()))


@contextmanager
def seeded(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Take a turn; with a seed, borrow torch's global generators, freshly seeded."""
    with _turn[0]:
        if seed is None:
            yield
            return
        cuda = [device] if device is not None and device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            # Not torch.manual_seed, which would reseed devices that were not forked.
            torch.default_generator.manual_seed(checks.seed(seed))
            for borrowed in cuda:
                with torch.cuda.device(borrowed):
                    torch.cuda.manual_seed(seed)
            yield


@contextmanager
def seed_for_others() -> Iterator[int]:
    """Yield a seed, decided by torch's global generator, for code that does not draw from it.

    Right after `torch.manual_seed(n)` or `seeded(n)` it is n itself; later it is drawn. NumPy's
    global generator is seeded too. Torch's moves on where nobody drew from it.
    """
    state = torch.get_rng_state()
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    seed = torch.initial_seed() % 2**32
    if not torch.equal(state, fresh.get_state()):
        fresh.set_state(state)
        seed = int(torch.randint(2**31, (), generator=fresh))
    numpy_state = np.random.get_state()  # noqa: NPY002  (foreign code draws from it)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield seed
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch.equal(torch.get_rng_state(), state):
            torch.rand(())


@contextmanager
def quiet(*messages: str, stdout: bool = False) -> Iterator[None]:
    """Ignore user warnings that begin with these patterns, and printed text where `stdout`."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO() if stdout else sys.stdout):
        for message in messages:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield


def no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise TypeError(f"The wrapped posterior does not take the option {', '.join(options)}.")


def load_pickled_posterior(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Load a posterior that was saved with `pickle.dump` or `torch.save`.

    Warning:
        With `trust=True` the file runs as a program, with your rights, before anything can be
        checked. Say so only of files that you have made yourself, or got from someone you trust by
        a way that nobody else could write to.

    Example:
        >>> load_pickled_posterior("posterior.pkl")
        Traceback (most recent call last):
            ...
        ValueError: trust: posterior.pkl is a pickle, and to load one is to run the program in it...
    """
    file = Path(path)
    if trust is not True:
        raise ValueError(
            f"trust: {file} is a pickle, and to load one is to run the program in it: whoever "
            "wrote the file can do with it all that you can do on this machine. If you made it "
            "yourself, or trust whoever did and the way it came, pass trust=True. Then save it "
            "anew with mindist.posteriors.sbi_storage.save_posterior, whose files run nothing."
        )
    if not file.is_file():
        raise FileNotFoundError(f"path: there is no file {file}.")
    content = file.read_bytes()
    if content.startswith(b"PK\x03\x04"):  # as what torch.save writes does
        return torch.load(file, map_location="cpu", weights_only=False)
    return pickle.loads(content)
