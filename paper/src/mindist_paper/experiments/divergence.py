"""KL in place of the MMD (appendix Choice of Divergence)."""

from __future__ import annotations

from mindist_paper.experiments import verdicts
from mindist_paper.experiments.claims import SIMILAR, Claim, verdict
from mindist_paper.experiments.experiment import Experiment, Panel
from mindist_paper.experiments.gaussian import BY_DELTA, by_delta, by_epsilon

DIVERGENCES = ("npe", "mds-kl", "mds-dec", "mds-rf", "oracle")
KL = Experiment(
    name="kl",
    title="KL against MMD by contaminated fraction",
    shows="the KL divergence in place of the MMD is not robust, by epsilon",
    source="appendix Choice of Divergence, first figure",
    cells=by_epsilon(DIVERGENCES),
    panels=[Panel("rmse"), Panel("reference_mmd"), Panel("predictive_mmd")],
    minutes={"smoke": 0.2, "quick": 1, "paper": 25},
    verdict=verdict(
        Claim("mds-dec", "mds-kl", at=(0.1, 0.2, 0.3)),
        Claim("mds-rf", "mds-kl", at=(0.1, 0.2, 0.3)),
        Claim("mds-kl", "npe", relation=SIMILAR, at=(0.1, 0.2, 0.3, 0.5)),
        explain="mds-kl",
    ),
)
KL_DELTA = Experiment(
    name="kl-delta",
    title="KL against MMD by shift of the outliers (ε = 0.2)",
    shows="the KL divergence in place of the MMD is not robust, by delta",
    source="appendix Choice of Divergence, second figure",
    cells=by_delta(DIVERGENCES),
    panels=[
        Panel("rmse", by="delta", where=BY_DELTA),
        Panel("reference_mmd", by="delta", where=BY_DELTA),
        Panel("predictive_mmd", by="delta", where=BY_DELTA),
    ],
    minutes={"smoke": 0.2, "quick": 0.8, "paper": 25},
    verdict=verdicts.joined(
        verdict(
            Claim("mds-rf", "mds-kl", by="delta", at=(3.0, 4.0, 5.0)),
            Claim("mds-kl", "npe", by="delta", relation=SIMILAR),
            explain="mds-kl",
        ),
        verdicts.rises_and_falls("mds-rf", "rmse", "delta"),
    ),
)

ENTRIES = (KL, KL_DELTA)

__all__ = ["ENTRIES"]
