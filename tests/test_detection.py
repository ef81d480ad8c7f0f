import math

import pytest
import torch
from scipy import stats

from mindist.detection import NullDistances

SIZES = (50, 100, 200)


def test_p_values_count_the_null_distances_at_least_as_large():
    null = NullDistances.of(torch.tensor([3.0, 1.0, 2.0, 2.0]), num_obs=10)
    observed = torch.tensor([0.5, 1.0, 2.0, 2.5, 3.0, 4.0])
    expected = torch.tensor([5, 5, 4, 2, 2, 1], dtype=torch.float64) / 5
    torch.testing.assert_close(null.p_value(observed, num_obs=10), expected)


def test_the_null_is_rescaled_by_the_number_of_observations():
    null = NullDistances.of(torch.arange(1.0, 100.0), num_obs=100)
    distance = torch.tensor([30.5])
    assert torch.equal(null.p_value(distance, 100), null.p_value(2 * distance, 50))
    assert null.threshold(0.1, 50) == 2 * null.threshold(0.1, 100)


def test_an_error_of_the_decoder_does_not_shrink_with_the_number_of_observations():
    """Residuals error + noise with the noise rescaled by hand."""
    generator = torch.Generator().manual_seed(0)
    noise, error = torch.randn(2, 200, 5, dtype=torch.float64, generator=generator)
    null = NullDistances.split(noise, error, num_obs=100)
    for num_obs in (25, 100, 400):
        residual = error + math.sqrt(100 / num_obs) * noise
        expected = residual.square().sum(-1).sort().values
        torch.testing.assert_close(null.distances(num_obs), expected)


@pytest.mark.parametrize("size", [19, 20, 99, 100, 1000])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_the_threshold_separates_p_values_at_alpha(size, alpha):
    null = NullDistances.of(torch.rand(size, generator=torch.Generator().manual_seed(0)), num_obs=7)
    threshold = null.threshold(alpha, 7)
    around = threshold * torch.tensor([1 - 1e-9, 1.0, 1 + 1e-9], dtype=torch.float64)
    assert (null.p_value(around, 7) <= alpha).tolist() == [False, False, True]
    exceeded = int((null.distances(7) > threshold).sum())
    assert exceeded <= alpha * size < exceeded + 2


def test_too_few_null_distances_never_reject():
    null = NullDistances.of(torch.ones(10), num_obs=1)
    assert null.threshold(0.05, 1) == math.inf
    assert null.p_value(torch.tensor([1e9]), 1) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("num_obs", SIZES)
def test_size_of_the_default_preset(task, mds, num_obs):
    """2,000 clean datasets: no level is above its 99% interval, and .05 as simulated is inside.

    Given the n simulations of the null the level is Beta distributed around alpha, so that
    rejections are beta-binomial. Each simulation of the null was left out of what judges it, which
    makes p-values a little too large (conservative) in the middle. With fewer observations than
    simulated, summaries are noisier, and how far they may lie from simulated ones grows with that.
    """
    generator = torch.Generator().manual_seed(100 + num_obs)
    theta = task.sample_prior(2_000, generator)
    p = mds.detect(task.simulate(theta, num_obs, generator=generator)).p_value
    null = len(mds.fitted_.procedure.test.null)
    for alpha in (0.01, 0.05, 0.1, 0.2):
        rank = math.floor(alpha * (null + 1))
        low, high = stats.betabinom.interval(0.99, 2_000, rank, null + 1 - rank)
        rejected = int((p <= alpha).sum())
        assert rejected <= high, (alpha, rejected)
        assert alpha != 0.05 or num_obs != mds.fitted_.num_obs or rejected >= low, rejected


@pytest.mark.slow
def test_power_rises_with_contamination(task, mds):
    """ANCHORS.md: power .74 at epsilon .05 and delta 3, median bandwidth."""
    generator = torch.Generator().manual_seed(3)
    x = task.simulate(task.sample_prior(1_000, generator), generator=generator)
    power = [
        float(
            mds.detect(task.contaminate(x, epsilon, generator=generator))
            .misspecified.float()
            .mean()
        )
        for epsilon in (0.0, 0.05, 0.1, 0.2)
    ]
    assert power == sorted(power)
    assert power[1] > 0.6
    assert power[2] > 0.95
    assert power[3] > 0.99
