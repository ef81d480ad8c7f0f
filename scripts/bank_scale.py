"""A bank of 1,000,000 datasets, built and fitted: time, disk, and the memory of all processes.

    python scripts/bank_scale.py FOLDER [datasets] [workers]

The Gaussian task, 100 observations each, embedded in two kernels of 512 features. Memory is sampled
five times a second, over this process and all it started: the sum of their proportional set sizes,
in which a page that several share counts once, and of their resident sizes, in which it counts
for each.
"""

import sys
import threading
import time
from pathlib import Path

import torch

import mindist
from mindist.tasks import GaussianTask


class Memory:
    """Peak memory of this process and its descendants while a block runs."""

    def __init__(self) -> None:
        self.pss = self.rss = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            sizes = [of_process(pid) for pid in descendants("self")]
            self.pss = max(self.pss, sum(size.get("Pss", 0) for size in sizes))
            self.rss = max(self.rss, sum(size.get("Rss", 0) for size in sizes))


def descendants(pid: str) -> list[str]:
    """A process and all that it started."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:  # it ended
        return []
    return [pid, *(each for child in children for each in descendants(child))]


def of_process(pid: str) -> dict[str, int]:
    """Sizes in kB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def simulator(theta: torch.Tensor, n_obs: int, generator: torch.Generator) -> torch.Tensor:
    """Datasets `(B, N, 2)`, a batch of parameters at a time."""
    return GaussianTask().simulate(theta, n_obs, generator=generator)


def disk(folder: Path) -> float:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    """Build, fit, and print what the documentation says."""
    folder = Path(sys.argv[1])
    num, workers = (int(arg) for arg in (*sys.argv[2:], 1_000_000, 2)[:2])
    task = GaussianTask()
    with Memory() as memory:
        start = time.perf_counter()
        bank = mindist.simulate(
            task.prior, simulator, task.summary, num, n_obs=100, out=folder, workers=workers
        )
    seconds, size = time.perf_counter() - start, disk(folder)
    print(f"built: {num:,} datasets, {workers} workers, {seconds:.0f} s, {size / 1e9:.2f} GB")
    print(f"  peak memory: {memory.pss / 1e6:.2f} GB (resident {memory.rss / 1e6:.2f} GB)")
    with Memory() as memory:
        start = time.perf_counter()
        mds = mindist.MinimumDistance(task.summary).fit(bank)
        seconds = time.perf_counter() - start
    print(f"fitted: {seconds:.0f} s, {mds}")
    print(f"  peak memory: {memory.pss / 1e6:.2f} GB (resident {memory.rss / 1e6:.2f} GB)")
    generator = torch.Generator().manual_seed(9)
    clean = task.simulate(task.sample_prior(1_000, generator), generator=generator)
    bad = task.contaminate(clean, 0.2, generator=generator)
    rates = [float(mds.detect(x).misspecified.double().mean()) for x in (clean, bad)]
    print(f"detected: {rates[0]:.3f} of clean datasets, {rates[1]:.3f} with 20% contamination")


if __name__ == "__main__":
    main()
