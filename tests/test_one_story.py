"""Fields of a result do not contradict each other, on random datasets of ten models of the zoo.

3,000 datasets in CI; `STORIES=1000 pytest tests/test_one_story.py` takes 10,000 (three minutes).
"""

from __future__ import annotations

import os
import warnings
import zlib

import numpy as np
import pytest
import torch

from mindist import Adaptation, MinimumDistance
from mindist.result import Status
from mindist_paper.zoo.cases import contaminate
from mindist_paper.zoo.models import MODELS

NAMES = (
    *("line", "line-scale", "location", "scale", "location-scale-n30"),
    *("exponential", "gamma", "poisson", "binary-items", "ar1"),
)
DATASETS, SIMULATIONS = int(os.environ.get("STORIES", "300")), 1_000
USED = {Status.SORTED, Status.CONVERGED, Status.MAX_ITERATIONS, Status.STALLED}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_results_tell_one_story(name):
    model, rng = MODELS[name], np.random.default_rng([3, zlib.crc32(name.encode())])

    def simulated(num: int) -> tuple[np.ndarray, np.ndarray]:
        theta = model.sample_prior(num, rng)
        return theta, model.simulate(theta, model.num_obs, rng)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of summaries that sorting cannot see
        x_train = torch.from_numpy(simulated(SIMULATIONS)[1])
        mds = MinimumDistance(model.summary, num_features=128).fit(x_train)
    theta, x = simulated(DATASETS)
    parts = np.array_split(np.arange(DATASETS), len(model.cases) + 1)  # the last ones stay clean
    for case, rows in zip(model.cases, parts, strict=False):
        x[rows] = contaminate(model, case, x[rows], theta[rows], rng)
    tell_one_story(mds.adapt(x))
    tell_one_story(mds.adapt(x[:50], force=True), forced=True)


def tell_one_story(result: Adaptation, *, forced: bool = False) -> None:
    torch.testing.assert_close(result.epsilon, 1 - result.weights.mean(1))
    torch.testing.assert_close(result.outlier_score, 1 - result.weights)
    assert torch.equal(result.outliers, result.weights < 0.5)
    assert torch.equal(result.misspecified, result.p_value <= result.alpha)
    assert torch.equal(result.adapted, (result.s_star != result.s_obs).any(1))
    assert forced or result.misspecified[result.adapted].all()
    assert not result.excess[~result.misspecified & ~result.adapted].any() or forced
    assert torch.isfinite(result.s_star).all()
    for i, status in enumerate(result.status):
        assert (status in USED) == bool(result.adapted[i])
        if status is Status.WELL_SPECIFIED:
            assert not result.misspecified[i]
            assert not result.outlier_score[i].any()
        if status in (Status.UNMOVED, Status.UNEXPLAINED) and result.outliers[i].any():
            assert "weights are not used" in result.message[i]
