"""Figures of docs/simulations.md: throughput of two processes, and a simulator that fails.

python scripts/measure_bank.py throughput
python scripts/measure_bank.py failures
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mindist

PRIOR = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
REPEATS = 3


def ten_milliseconds(theta: Tensor, n_obs: int) -> Tensor:
    """Waits: on a machine that others use too, two busy loops would compare their neighbours."""
    time.sleep(0.01)
    return theta + torch.randn(n_obs, 2)


def faulty(theta: Tensor, n_obs: int) -> Tensor:
    """Raises in 1% of the draws; hangs in 0.1%, half of them in C with every signal blocked."""
    u = np.random.random()  # noqa: NPY002
    if u < 0.01:
        raise ArithmeticError("it diverged")
    if u < 0.0105:
        time.sleep(3_600)
    if u < 0.011:
        every = ctypes.create_string_buffer(b"\xff" * 128, 128)
        ctypes.PyDLL(None).sigprocmask(0, every, None)
        ctypes.PyDLL(None).sleep(3_600)
    return theta + torch.randn(n_obs, 2)


def mean(x: Any) -> Any:
    """The summary."""
    return x.mean(1)


def throughput() -> None:
    """Seconds for 2,000 datasets of 10 ms in one and in two processes, taking turns."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for workers in times:
            # Processes are started, and the embedding is compiled, before the clock is.
            _timed(workers, 20 * workers)
            times[workers].append(_timed(workers, 2_000))
    ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
    print(f"one {times[1]}\ntwo {times[2]}\nratios {ratios}, median {np.median(ratios):.2f}")


def _timed(workers: int, num: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "bank", time.perf_counter()
        mindist.simulate(PRIOR, ten_milliseconds, mean, num, n_obs=20, out=out, workers=workers)
        return time.perf_counter() - start


def failures() -> None:
    """10,000 datasets of a simulator that raises and hangs, with a time limit of 2 s."""
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "bank", time.perf_counter()
        bank = mindist.simulate(
            PRIOR, faulty, mean, 10_000, n_obs=20, out=out, workers=2, time_limit=2.0
        )
        print(f"{bank.report()} {time.perf_counter() - start:.0f} s, complete: {bank.complete}")


if __name__ == "__main__":
    {"throughput": throughput, "failures": failures}[sys.argv[1]]()
