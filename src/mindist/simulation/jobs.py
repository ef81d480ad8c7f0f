"""Many jobs through joblib, here, in processes (loky) or on the caller's cluster (Dask, Ray)."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from typing import Any, NoReturn

from mindist import checks
from mindist.simulation.calls import need

WAVE = 16  # jobs for each process whose outcomes may wait: joblib itself would let all of them


def outcomes(
    function: Callable[[Any], Any], jobs: Sequence[Any], workers: int, wave: int | None = None
) -> Iterator[Any]:
    """Yield what a function gives for each job, as they come; up to `wave` may wait in memory."""
    if not jobs or (min(workers, len(jobs)) <= 1 and not on_cluster()):
        yield from map(function, jobs)
        return
    joblib, streams = need("joblib"), True
    if on_cluster():
        backend, chosen = joblib.parallel.get_active_backend()
        num = joblib.effective_n_jobs(chosen if chosen not in (None, 1) else -1)
        streams = backend.supports_return_generator  # outcomes as they come: not on Ray
        how = "generator_unordered" if streams else "list"
        parallel = joblib.Parallel(n_jobs=num, return_as=how, batch_size=1)
    else:
        # The context ends before the first outcome: the caller's own is untouched.
        with joblib.parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        num = parallel.n_jobs
    # Never so few that processes stand idle: the next wave begins when the last one is done.
    size = max(wave or WAVE * num, 4 * num) if streams else 2 * num
    for first in range(0, len(jobs), size):
        results = parallel(joblib.delayed(function)(job) for job in jobs[first : first + size])
        with closing(results) if streams else nullcontext():
            yield from results


def on_cluster() -> bool:
    """Return whether the caller has chosen other processes than loky's: of Dask or Ray, say."""
    joblib = sys.modules.get("joblib")
    if joblib is None:
        return False
    name = type(joblib.parallel.get_active_backend()[0]).__name__
    if name == "ThreadingBackend":
        got, then = "threads, which share their generators", "Choose 'loky', 'dask' or 'ray'."
        raise checks.wrong("joblib", "a backend of processes", got, then)
    return name not in ("LokyBackend", "SequentialBackend")


@cache
def end_with_parent() -> None:
    """In a worker of loky, end this process soon after its parent: a chunk may take hours."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    if multiprocessing.current_process().name.startswith("LokyProcess"):
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()


def bar(total: int, done: int, unit: str, progress: bool | None) -> Any:
    """Make a bar with the time left on a terminal; nothing elsewhere, unless progress is True."""
    from tqdm.auto import tqdm  # looks for a notebook when it is imported

    shown = sys.stderr.isatty() if progress is None else progress
    return tqdm(total=total, initial=done, unit=unit, disable=not shown, smoothing=0.1)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end what is inside as Ctrl-C does, through every `finally`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
