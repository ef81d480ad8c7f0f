"""The Gaussian task of the paper, end to end, with the exact posterior in place of an NPE.

The exact posterior mean given the sample mean is s N / (N + 1), so the RMSE is that of a perfect
NPE; tests/test_demo.py repeats it with a trained one.
"""

import math

import pytest
import torch
from scipy import stats

from exact_models import levenberg_marquardt
from mindist.adaptation.search import EmbeddingDistance
from mindist.solvers import lbfgs

pytestmark = pytest.mark.slow
OFFICIAL = {0.1: 0.109, 0.2: 0.147, 0.3: 0.196}  # ANCHORS.md, MDS (RF) official, delta 3
NUM_TEST = 250


@pytest.fixture(scope="module")
def rmse(task, mds, mds_paper):
    """Mean RMSE of the posterior mean, by epsilon, for every method, on 250 test datasets."""
    generator = torch.Generator().manual_seed(42)
    theta = task.sample_prior(NUM_TEST, generator)
    x = task.simulate(theta, generator=generator)

    def error(s):
        mean = task.posterior_given_mean(s).mean
        return float((mean - theta).square().mean(1).sqrt().mean())

    table = {}
    for epsilon in (0.0, 0.1, 0.2, 0.3):
        x_obs = task.contaminate(x, epsilon, generator=generator)
        table[epsilon] = {
            "npe": error(x_obs.mean(1)),
            "paper": error(mds_paper.adapt(x_obs).s_star),
            "default": error(mds.adapt(x_obs).s_star),
        }
    return table


def test_the_paper_preset_reproduces_the_official_numbers(rmse):
    for epsilon, official in OFFICIAL.items():
        assert rmse[epsilon]["paper"] == pytest.approx(official, rel=0.15)


def test_the_default_is_no_worse_than_the_paper_and_free_on_clean_data(rmse):
    for row in rmse.values():
        assert row["default"] <= 1.01 * row["paper"]
    for epsilon, most in {0.1: 0.110, 0.2: 0.122, 0.3: 0.133}.items():
        assert rmse[epsilon]["default"] <= most
    assert rmse[0.0]["default"] <= 1.03 * rmse[0.0]["npe"]


def test_the_batched_solver_matches_lbfgs_for_each_dataset(task, mds, mds_paper):
    """Same decoder, same start: no worse by more than 1e-8 relative in 99% of 300 datasets."""
    generator = torch.Generator().manual_seed(7)
    x = task.simulate(task.sample_prior(300, generator), generator=generator)
    x_obs = task.contaminate(x, 0.2, generator=generator)
    for estimator in (mds, mds_paper):
        fitted = estimator.fitted_
        distance = EmbeddingDistance(
            fitted.wide.decoder, fitted.embedding.features.mean(x_obs).double()
        )
        start, every = task.summary(x_obs).double(), torch.arange(300)
        with torch.no_grad():
            batched = distance(levenberg_marquardt(distance.residual, start).value, every)
        single = lbfgs(distance, start).objective
        assert ((batched - single) / single <= 1e-8).double().mean() >= 0.99


@pytest.mark.parametrize("num_obs", [50, 100, 200])
def test_size_of_the_paper_preset(task, mds_paper, num_obs):
    """2,000 clean datasets: the error of the threshold, from 500 held-out simulations, counts.

    Given the null sample the level is Beta distributed around alpha, so that rejections among
    2,000 are beta-binomial; two samples are compared by the two-sample KS test.
    """
    generator = torch.Generator().manual_seed(200 + num_obs)
    theta = task.sample_prior(2_000, generator)
    result = mds_paper.detect(task.simulate(theta, num_obs, generator=generator))
    null = mds_paper.fitted_.null.distances(num_obs)
    rank = math.floor(0.05 * (len(null) + 1))
    low, high = stats.betabinom.interval(0.99, 2_000, rank, len(null) + 1 - rank)
    assert low <= int(result.misspecified.sum()) <= high
    assert stats.ks_2samp(result.distance_obs.numpy(), null.numpy()).pvalue > 0.01
