"""What robustness adds to neural posterior estimation: offline to its training, online to a query.

Offline is all of `MinimumDistance.fit`: embed, fit, calibrate. It is given the summaries, which the
posterior is trained on and which both would need. The posterior is trained as in the paper: a
neural spline flow, Adam at 5e-4, sbi's early stopping, at most 100 passes.
"""

from __future__ import annotations

from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.guards import seeded
from mindist_paper.benchmark.material import EPSILON, Material
from mindist_paper.benchmark.row import Claim, Row, ratio_row
from mindist_paper.benchmark.timing import Contender, race

FIT, TRAIN = "fit", "training the NPE"
ADAPT, DETECT, SAMPLE = "adapt", "detect", "drawing posterior samples"


def overhead_rows(material: Material, threads: int) -> list[Row]:
    """Offline and online, on each task."""
    rows: list[Row] = []
    for name in material.sizes.posterior_tasks:
        rows += [_offline(material, name, threads), *_online(material, name, threads)]
    return rows


def _offline(material: Material, name: str, threads: int) -> Row:
    simulated, summary = material.simulated(name), material.task(name).summary
    x, s = simulated.x, simulated.s
    times = race(
        {
            FIT: Contender(lambda: MinimumDistance(summary).fit(x, s)),
            TRAIN: Contender(lambda: material.train_npe(name), warm=False),
        },
        material.sizes.slow_rounds,
    )
    return ratio_row(
        f"offline, {name}, {len(x):,} simulations",
        times,
        FIT,
        TRAIN,
        claim=Claim("at most", 0.05),
        threads=threads,
    )


def _online(material: Material, name: str, threads: int) -> list[Row]:
    """One contaminated dataset, whose posterior is asked at its summary when it was clean."""
    mds, npe, data = material.default(name), material.npe(name), material.observed(name)
    s, size = material.task(name).summary(data.x_clean[:1])[0], material.sizes.samples
    x = data.x_obs[0]

    def sample() -> None:
        with seeded(0, s.device):
            npe.sample((size,), x=s, show_progress_bars=False)

    times = race(
        {
            ADAPT: Contender(lambda: mds.adapt(x)),
            DETECT: Contender(lambda: mds.detect(x)),
            SAMPLE: Contender(sample),
        },
        material.sizes.rounds,
    )
    what = f"online, one {name} dataset, epsilon {EPSILON:g}"
    note = f"{size:,} samples; the dataset is {'' if mds.detect(x).misspecified else 'not '}adapted"
    at_most = Claim("at most", 1)
    return [
        ratio_row(what, times, ADAPT, SAMPLE, claim=at_most, threads=threads, note=note),
        ratio_row(what, times, DETECT, SAMPLE, threads=threads, note=note),
    ]


__all__ = ["overhead_rows"]
