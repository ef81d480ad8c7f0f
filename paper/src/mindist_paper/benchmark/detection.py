"""Detecting misspecified datasets, against sbi's test by the maximum mean discrepancy."""

from __future__ import annotations

import torch

from mindist_paper.benchmark.material import Material
from mindist_paper.benchmark.row import Claim, Row, ratio_row
from mindist_paper.benchmark.sbi_detection import MAX_SAMPLES, sbi_p_value
from mindist_paper.benchmark.timing import Contender, race

TASK = "oup"
DEFAULT, PRESET, SBI = "default", "paper preset", "sbi's MMD"


def detection_rows(material: Material, threads: int) -> list[Row]:
    """Time for a dataset: ours on many at once, sbi's on one."""
    sizes, x = material.sizes, material.observed(TASK).x_obs
    simulated = material.simulated(TASK).x.flatten(0, 1)
    chosen = torch.randperm(len(simulated), generator=torch.Generator().manual_seed(0))
    pooled = simulated[chosen[:MAX_SAMPLES]].flatten(1)
    default, preset = material.default(TASK), material.paper(TASK)
    times = race(
        {
            DEFAULT: Contender(lambda: default.detect(x), len(x)),
            PRESET: Contender(lambda: preset.detect(x), len(x)),
            SBI: Contender(
                lambda: sbi_p_value(x[0].flatten(1), pooled, num_shuffles=sizes.num_shuffles),
                warm=False,
            ),
        },
        sizes.slow_rounds,
    )
    what = f"{len(x):,} OUP datasets"
    note = (
        f"per dataset; sbi on one: its {x.shape[1]} observations against {len(pooled):,} simulated "
        f"ones, {sizes.num_shuffles:,} shuffles"
    )
    return [
        ratio_row(
            what, times, SBI, DEFAULT, claim=Claim("at least", 1_000), threads=threads, note=note
        ),
        ratio_row(what, times, SBI, PRESET, threads=threads, note=note),
    ]


__all__ = ["detection_rows"]
