"""Time the first `fit` and `adapt` on a machine that has never run mindist, and the second.

    python scripts/cold_start.py [pairs]

Each pair is two processes with one folder for all caches (bytecode and what libraries keep under
the home folder), empty when the first one starts. Both run the README's example. Prints the times,
and the ratio of the first process to the second, without the import, as the median over pairs:
nothing may be compiled on the user's machine, so it has to be at most 1.3.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST = 1.3  # issue 17


def example() -> dict[str, float]:
    """Run the README's example, and return the seconds of import, fit and adapt."""
    start = time.perf_counter()
    import torch

    import mindist
    from mindist.tasks import GaussianTask

    imported = time.perf_counter()
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    x_train = task.simulate(task.sample_prior(2_000, generator), generator=generator)
    x_obs = torch.randn(100, 2, generator=generator)
    x_obs[:20] = 3 + torch.randn(20, 2, generator=generator) / 2
    before = time.perf_counter()
    mds = mindist.MinimumDistance(task.summary).fit(x_train)
    fitted = time.perf_counter()
    mds.adapt(x_obs)
    adapted = time.perf_counter()
    return {"import": imported - start, "fit": fitted - before, "adapt": adapted - fitted}


def in_a_process(caches: Path) -> dict[str, float]:
    """Run the example in a process of its own, with all its caches in a folder."""
    names = ("PYTHONPYCACHEPREFIX", "HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    environment = {**os.environ, **{name: str(caches / name) for name in names}}
    command = [sys.executable, __file__, "--example"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return seconds


def ratio(cold: dict[str, float], warm: dict[str, float]) -> float:
    """Return how many times as long `fit` and `adapt` took in the first process."""
    return (cold["fit"] + cold["adapt"]) / (warm["fit"] + warm["adapt"])


def main(pairs: int) -> None:
    """Print both processes of each pair, and the median ratio."""
    ratios = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = in_a_process(Path(folder)), in_a_process(Path(folder))
        ratios.append(ratio(cold, warm))
        for name, seconds in (("cold", cold), ("warm", warm)):
            print(name, ", ".join(f"{step} {taken:.2f} s" for step, taken in seconds.items()))
    median = statistics.median(ratios)
    print(f"cold / warm, fit and adapt: {median:.2f} (at most {MOST})")
    sys.exit(median > MOST)


if __name__ == "__main__":
    if sys.argv[1:] == ["--example"]:
        print(json.dumps(example()))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 3)
