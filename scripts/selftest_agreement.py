"""Compare what the self-test predicts with what fresh data of the same contaminations show.

    python scripts/selftest_agreement.py OUT.md --models line location-scale --datasets 200

For each model of the zoo, or published benchmark (`ricker`): fit to 5,000 simulations, run the
self-test, contaminate fresh simulations in the same ways with other seeds, and compare the overall
errors of adapted summaries. Agreement means within 20%.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from mindist import MinimumDistance, selftest
from mindist_paper.zoo.models import MODELS
from mindist_paper.zoo.published import BENCHMARKS

NEAR = 0.2


def compare(name: str, datasets: int, seed: int) -> str:
    """Return the row of one model."""
    model = BENCHMARKS[name].model if name in BENCHMARKS else MODELS[name]
    rng = np.random.default_rng(seed)

    def simulated(num: int) -> torch.Tensor:
        return torch.from_numpy(model.simulate(model.sample_prior(num, rng), model.num_obs, rng))

    start = time.process_time()
    mds = MinimumDistance(model.summary).fit(simulated(5_000))
    fitted = time.process_time() - start
    found = mds.selftest()
    tested = time.process_time() - start - fitted
    fresh = simulated(2_000)
    predicted, before = found.summaries.overall[1], found.summaries.overall[0]
    selftest.DATASETS, few = datasets, selftest.DATASETS
    truth = selftest.run_selftest(mds, fresh, seed=seed + 1)
    selftest.DATASETS = few
    measured = truth.summaries.overall[1]
    near = ((predicted / measured - 1).abs() <= NEAR).float().mean()
    mended = bool((measured <= 1.3).all())
    off = (predicted / measured).log().abs().median()
    return (
        f"| {name} | {float(near):.2f} | {float(off):.3f} | {len(truth.harmful)} | "
        f"{len(found.harmful)} | {len(found.warnings)} | {'yes' if mended else 'no'} | "
        f"{tested / fitted:.1f} | {float(before.max()):.3g} |"
    )


def main() -> None:
    """Write the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--seed", type=int, default=17)
    given = parser.parse_args()
    head = (
        "| model | cells within 20% | median log ratio | cells truly worse | said to be worse | "
        "warnings | all within 1.3 | self-test / fit | largest error of doing nothing |\n"
    )
    given.out.write_text(head + "|---|" + "---|" * 8 + "\n")
    for name in given.models:
        with given.out.open("a") as file:
            file.write(compare(name, given.datasets, given.seed) + "\n")


if __name__ == "__main__":
    main()
