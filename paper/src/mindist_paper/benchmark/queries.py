"""Asking a robust posterior for many datasets: at once, or in a loop."""

from __future__ import annotations

from mindist.posteriors import RobustPosterior
from mindist_paper.benchmark.material import Material
from mindist_paper.benchmark.row import Row, ratio_row
from mindist_paper.benchmark.timing import Contender, race

TASK = "oup"
BATCHED, LOOP = "sample_batched", "loop of sample"
SAMPLES = 100


def query_rows(material: Material, threads: int) -> list[Row]:
    """Samples for each dataset, from the data; nothing is remembered from one run to the next."""
    x, npe, mds = material.observed(TASK).x_obs, material.npe(TASK), material.default(TASK)
    few = x[: material.sizes.one_by_one]

    def batched() -> None:
        RobustPosterior(npe, mds).sample_batched((SAMPLES,), x, seed=0)

    def loop() -> None:
        posterior = RobustPosterior(npe, mds)
        for one in few:
            posterior.sample((SAMPLES,), one, seed=0)

    times = race(
        {BATCHED: Contender(batched, len(x)), LOOP: Contender(loop, len(few))},
        material.sizes.slow_rounds,
    )
    what = f"{SAMPLES} samples for each of {len(x):,} OUP datasets"
    note = f"per dataset; the loop over {len(few)}"
    return [ratio_row(what, times, LOOP, BATCHED, threads=threads, note=note)]


__all__ = ["query_rows"]
