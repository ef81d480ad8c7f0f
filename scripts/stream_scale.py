"""Adapt 100,000 observed datasets in a stream: time, peak memory, and that none is lost.

    python scripts/stream_scale.py [datasets]

The Gaussian task, 100 observations each, 20% of them contaminated; some datasets are broken on
purpose, at known places, and have to be the failures that the report lists.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mindist import MinimumDistance
from mindist.tasks import GaussianTask

BATCH = 1_000
NAN, SHAPE, RAISES, SINGLE = 997, 9_973, 33_331, 49_999  # every so many datasets one of each kind


def broken(index: int) -> str | None:
    """How a dataset is broken, if it is."""
    for kind, every in (("nan", NAN), ("shape", SHAPE), ("raises", RAISES), ("single", SINGLE)):
        if index and index % every == 0:
            return kind
    return None


def observed(task: GaussianTask, num: int) -> Iterator[Tensor]:
    """Contaminated datasets, simulated as they are asked for."""
    generator = torch.Generator().manual_seed(2)
    for first in range(0, num, BATCH):
        theta = task.sample_prior(min(BATCH, num - first), generator)
        x = task.simulate(theta, generator=generator)
        x = task.contaminate(x, 0.2, generator=generator)
        for index, dataset in enumerate(x, first):
            kind = broken(index)
            if kind == "nan":
                dataset[7, 1] = torch.nan
            elif kind == "raises":
                dataset[0, 0] = 1e6
            yield {"shape": dataset[:, :1], "single": dataset[:1]}.get(kind or "", dataset)


def summary(x: Tensor) -> Tensor:
    """The mean; raises for one kind of broken dataset."""
    if (x[:, 0, 0] == 1e6).any():
        raise ArithmeticError("this dataset cannot be summarised")
    return x.mean(1)


def peak() -> int:
    """Largest memory of this process since `forget_peak`, in MB; on Linux."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024


def forget_peak() -> None:
    """Let the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Fit, adapt, check, and print what the documentation says."""
    num = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    x = task.simulate(task.sample_prior(20_000, generator), generator=generator)
    mds = MinimumDistance(summary).fit(x)
    del x
    print(f"fit: peak {peak()} MB", flush=True)
    forget_peak()
    print(f"before the stream: {peak()} MB", flush=True)
    start, cpu, indices = time.perf_counter(), time.process_time(), []
    stream = mds.adapt_stream(observed(task, num))
    for index, _ in stream:
        indices.append(index)
        if len(indices) % 10_000 == 0:
            seconds = time.perf_counter() - start
            print(f"{len(indices):,} adapted in {seconds:.0f} s, peak {peak()} MB", flush=True)
    seconds, busy = time.perf_counter() - start, time.process_time() - cpu
    print(f"{seconds:.0f} s, of which {busy:.0f} s of CPU, peak {peak()} MB")
    report = stream.report
    failed = [failure.index for failure in report.failures]
    expected = [index for index in range(num) if broken(index)]
    assert indices == sorted(set(range(num)) - set(expected)), "a dataset was lost, or out of order"
    assert set(expected) <= set(failed), "a broken dataset was not listed"
    print(f"broken on purpose: {len(expected)}; listed: {len(failed)}")
    print(str(report).splitlines()[0])
    for kind in ("nan", "shape", "raises", "single"):
        print(kind, next((f for f in report.failures if broken(f.index) == kind), None))
    print("others:", [f for f in report.failures if not broken(f.index)][:3])


if __name__ == "__main__":
    main()
