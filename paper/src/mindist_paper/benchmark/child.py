"""One measurement in a process of its own, so that peaks of memory are separate.

`python -m mindist_paper.benchmark.child '{"job": "fit", "threads": 1, "setting": {...}}'` prints
seconds and megabytes as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

from mindist_paper.benchmark.job import JOBS, Job, Setting
from mindist_paper.benchmark.memory import MEGABYTE, limit_memory, peak_above
from mindist_paper.benchmark.timing import num_threads, seconds_of

MAX_RUNS, ENOUGH_SECONDS = 5, 2.0  # repeat a short run
MEMORY_SHARE = 0.8  # of the machine, that a measurement may take


@dataclass(frozen=True)
class Measured:
    """What a job took.

    Arguments:
        seconds: The median time, without making the input.
        megabytes: The peak above what was there before, without input and output; None where the
            system does not tell.
    """

    seconds: float
    megabytes: float | None


def measure(job: Job) -> Measured:
    """Run a job: first for its memory, then for its time."""
    job.warm()
    seconds: list[float] = []
    peak = peak_above(lambda: seconds.append(seconds_of(job.run)))
    while len(seconds) < MAX_RUNS and sum(seconds) < ENOUGH_SECONDS:
        seconds.append(seconds_of(job.run))
    taken = statistics.median(seconds) - min(seconds_of(job.input) for _ in range(2))
    above = None if peak is None else max(0.0, peak - job.kept / MEGABYTE)
    return Measured(max(taken, 0.0), above)


def measure_apart(name: str, setting: Setting, threads: int = 1) -> Measured:
    """The same in a process of its own.

    Arguments:
        name: A key of `JOBS`.
        setting: The sizes.
        threads: How many it may use.
    """
    order = json.dumps({"job": name, "threads": threads, "setting": asdict(setting)})
    command = [sys.executable, "-m", "mindist_paper.benchmark.child", order]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["killed, perhaps for want of memory"])[-1]
        raise RuntimeError(f"{name} ended with an error: {last}")
    return Measured(**json.loads(ended.stdout.splitlines()[-1]))


def main(order: str) -> None:
    """What the process does."""
    given = json.loads(order)
    limit_memory(MEMORY_SHARE)
    with num_threads(given["threads"]):
        measured = measure(JOBS[given["job"]](Setting(**given["setting"])))
    print(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main(sys.argv[1])

__all__ = ["Measured", "measure", "measure_apart"]
