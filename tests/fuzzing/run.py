"""Runs the worker, starts it again after a crash or a hang, and counts.

python tests/fuzzing/run.py --num 10000 [--first 0] [--seed 0] [--json FILE] [FORMAT ...]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 300.0  # to import torch and sbi on a busy machine
FILE_SECONDS = 60.0  # the longest was 6 on a busy machine; HDF5's library may run for ever


@dataclass
class Count:
    """What became of the mutated files of a format.

    Arguments:
        outcomes: How many were loaded, or refused with which error.
        bad: The numbers of those that crashed, hung, ran something or raised another error.
        seconds: The longest time that one took.
        peak: Memory in KB that the worker took at most.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    bad: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    peak: int = 0

    def add(self, index: int, outcome: str) -> None:
        """Count a file."""
        self.outcomes[outcome] += 1
        if outcome.isupper() or outcome.split("-")[0].isupper():
            self.bad[index] = outcome


def fuzz(name: str, first: int, end: int, seed: int = 0, errors: IO[bytes] | None = None) -> Count:
    """Load the mutated files of a format with the numbers `first` to `end - 1`.

    Arguments:
        name: Of the format.
        first: The first number.
        end: One past the last.
        seed: Of the mutations.
        errors: Where tracebacks go.
    """
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        while first < end:
            first = _session(count, [name, folder, first, end, seed], errors)
    return count


def _session(count: Count, arguments: list[object], errors: IO[bytes] | None) -> int:
    """Run a worker to its end; the number to go on with."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=errors or subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HDF5_PLUGIN_PATH": "/nonexistent"},
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    now, ready, began = int(str(arguments[2])) - 1, False, time.monotonic()
    try:
        while True:
            line = lines.get(timeout=FILE_SECONDS if ready else START_SECONDS)
            word, *rest = line.split() or [""]
            if word == "ready":
                ready = True
            elif word == "begin":
                now, began = int(rest[0]), time.monotonic()
            elif word == "end":
                count.seconds = max(count.seconds, time.monotonic() - began)
                count.add(int(rest[0]), rest[1])
                now = int(rest[0])
            elif word == "peak":
                count.peak = max(count.peak, int(rest[0]))
                return int(str(arguments[3]))
            elif not line:
                process.wait()
                if not ready:
                    raise RuntimeError(f"the worker ended with {process.returncode} at its start")
                count.add(now, f"CRASH-{process.returncode}")
                return now + 1
    except queue.Empty:
        if not ready:
            raise RuntimeError("the worker did not start in time") from None
        count.add(now, "HANG")
        return now + 1
    finally:
        process.kill()
        process.wait()


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def main() -> None:
    """The command line."""
    sys.path.insert(0, str(WORKER.parents[1]))
    from fuzzing.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=list(TARGETS))
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name in options.formats:
        began = time.monotonic()
        end = options.first + options.num
        count = fuzz(name, options.first, end, options.seed, sys.stderr.buffer)
        results[name] = {"files": options.num, "outcomes": dict(count.outcomes), "bad": count.bad}
        results[name] |= {"longest_seconds": count.seconds, "peak_kb": count.peak}
        print(name, json.dumps(results[name]), f"{time.monotonic() - began:.0f} s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
