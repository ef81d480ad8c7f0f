"""Count the files of src/mindist that data pass through.

    python scripts/trace_files.py [--list]

A file counts if the body of at least one of its functions runs, in any thread; what an import runs
does not count. One observed dataset goes from `MinimumDistance.adapt` to `RobustPosterior.sample`,
with a posterior that is a function and, where sbi is installed, with one of sbi's. One training set
goes through `fit`. The task is the README's, the mean of Gaussian observations.
"""

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import Tensor

import mindist
from mindist.tasks import GaussianTask

SOURCE = Path(mindist.__file__).resolve().parent
LIMITS = {"adapt and sample": 30, "fit": 20}


def files_of(run: Callable[[], object]) -> list[str]:
    """Return the files of mindist, relative to its folder, whose functions a call runs."""
    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    run()  # imports what is imported lazily
    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    paths = {Path(code.co_filename) for code in seen if code.co_name != "<module>"}
    ours = [path.relative_to(SOURCE) for path in paths if path.is_relative_to(SOURCE)]
    return sorted(str(path) for path in ours)


def summary(x: Tensor) -> Tensor:
    """Return the mean `(B, d)` of each dataset `(B, N, d)`."""
    return x.mean(1)


def example(num: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate parameters, training datasets, and an observed dataset of which a fifth is wrong."""
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    theta = task.sample_prior(num, generator)
    x = task.simulate(theta, generator=generator)
    x_obs = torch.randn(100, 2, generator=generator)
    x_obs[:20] = 3 + torch.randn(20, 2, generator=generator) / 2
    return theta, x, x_obs


def trace(*, sbi: bool) -> dict[str, list[str]]:
    """Return the files of each way; with the posterior of sbi as well if asked for."""
    theta, x, x_obs = example()
    mds = mindist.MinimumDistance(summary).fit(x)
    posteriors: list[object] = [lambda s, n: s + 0.1 * torch.randn(n, 2)]
    if sbi:
        posteriors.append(sbi_posterior(theta, summary(x)))

    def adapt_and_sample(posterior: object) -> None:
        robust = mindist.RobustPosterior(posterior, mds)

        def run() -> None:
            mds.adapt(x_obs)
            robust.sample((100,), x=x_obs, seed=0)

        found.append(files_of(run))

    found: list[list[str]] = []
    for posterior in posteriors:
        adapt_and_sample(posterior)
    names = ("adapt and sample", "adapt and sample, sbi")[: len(found)]
    fitted = files_of(lambda: mindist.MinimumDistance(summary).fit(x))
    return {**dict(zip(names, found, strict=True)), "fit": fitted}


def sbi_posterior(theta: Tensor, s: Tensor) -> object:
    """Train a small posterior of sbi on parameters `(M, d)` and summaries `(M, d_s)`."""
    from mindist.posteriors.sbi_bridge import train_npe

    return train_npe(
        GaussianTask().prior, theta, s, density_estimator="mdn", max_num_epochs=2, seed=0
    )


def main(arguments: Iterable[str]) -> None:
    """Print how many files each way has, and which."""
    for way, files in trace(sbi=importlib.util.find_spec("sbi") is not None).items():
        limit = LIMITS[way.partition(",")[0]]
        print(f"{way}: {len(files)} files (at most {limit})")
        if "--list" in arguments:
            print("".join(f"  {file}\n" for file in files), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
