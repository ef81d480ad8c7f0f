"""Metrics on cases whose answer is known."""

import math

import pytest
import torch

from mindist.features import mmd_squared
from mindist.tasks import GaussianTask
from mindist_paper.evaluation import (
    coverage,
    detection_rate,
    mean_and_standard_error,
    pooled_bandwidths,
    predictive_mmd,
    reference_mmd,
    rmse,
    summary_distance,
)

LEVELS = (0.5, 0.8, 0.95)


def test_rmse_averages_over_parameters():
    theta_mean = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    expected = torch.tensor([math.sqrt(12.5), 0.0])
    torch.testing.assert_close(rmse(theta_mean, torch.zeros(2, 2)), expected)


@pytest.mark.parametrize(
    ("stretch", "relation"), [(1.0, "exact"), (2.0, "conservative"), (0.5, "overconfident")]
)
def test_coverage_in_three_regimes(stretch, relation):
    """Posteriors with the right, twice and half the right spread, on 1,000 datasets."""
    task, generator = GaussianTask(num_obs=10), torch.Generator().manual_seed(0)
    theta = task.sample_prior(1_000, generator)
    exact = task.posterior(task.simulate(theta, generator=generator))
    noise = torch.randn(1_000, *theta.shape, generator=generator)
    found = coverage(exact.mean + stretch * exact.stddev * noise, theta, LEVELS)
    assert found.shape == (3, 1_000)
    normal = torch.distributions.Normal(0.0, 1.0)
    for level, rate in zip(LEVELS, found.mean(1).tolist(), strict=True):
        width = float(normal.icdf(torch.tensor((1 + level) / 2)))
        expected = 2 * float(normal.cdf(torch.tensor(stretch * width))) - 1
        # 2,000 independent intervals, and 1,000 samples in each quantile.
        assert rate == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 2_000))
        if relation != "exact":
            assert (rate > level) == (relation == "conservative")


@pytest.mark.parametrize("levels", [(0.0,), (0.5, 1.0), (1.5,)])
def test_levels_outside_the_unit_interval_are_refused(levels):
    with pytest.raises(ValueError, match="levels: expected numbers between 0 and 1, got"):
        coverage(torch.zeros(3, 1, 1), torch.zeros(1, 1), levels)


def test_summary_distance_is_euclidean_or_standardised():
    s, oracle = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 0.0]])
    torch.testing.assert_close(summary_distance(s, oracle), torch.tensor([5.0, 0.0]))
    scaled = summary_distance(s, oracle, torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(scaled, torch.tensor([math.sqrt(10.0), 0.0]))


def test_pooled_bandwidths_come_from_the_mean_squared_distance():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 3, generator=generator), torch.randn(4, 3, generator=generator) + 2
    mean_square = torch.nn.functional.pdist(torch.cat([x, y])).square().mean()
    expected = [math.sqrt(m * float(mean_square) / 2) for m in (0.25, 0.5, 1, 2, 4)]
    assert pooled_bandwidths(x, y) == pytest.approx(expected, rel=1e-5)


def test_reference_mmd_agrees_with_the_anchors():
    """The exact posterior given contaminated means, against the one given clean means.

    ANCHORS.md, NPE: 1.58, 2.94, 4.00, 5.18; a trained NPE adds to the small ones.
    """
    task, generator = GaussianTask(), torch.Generator().manual_seed(5)
    x = task.simulate(task.sample_prior(60, generator), generator=generator)
    reference = task.posterior(x).sample((500,))
    clean = reference_mmd(task.posterior(x).sample((500,)), reference)
    assert clean.shape == (60,)
    assert clean.mean() < 0.05
    for epsilon, anchor in ((0.2, 2.94), (0.3, 4.00), (0.5, 5.18)):
        x_obs = task.contaminate(x, epsilon, generator=generator)
        found = reference_mmd(task.posterior(x_obs).sample((500,)), reference)
        assert found.mean() == pytest.approx(anchor, rel=0.2)
        assert found.max() <= 10


def test_predictive_mmd_is_the_mmd_of_each_dataset():
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randn(3, 20, 2, 2, generator=generator)
    clean = torch.randn(3, 10, 2, 2, generator=generator)
    found = predictive_mmd(predicted, clean, (1.0, 2.0))
    for i in range(3):
        expected = mmd_squared(predicted[i].flatten(1), clean[i].flatten(1), (1.0, 2.0))
        torch.testing.assert_close(found[i], expected)


def test_means_come_with_standard_errors_over_datasets():
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    mean, error = mean_and_standard_error(values)
    torch.testing.assert_close(mean, torch.tensor([2.5, 2.0]))
    torch.testing.assert_close(error, torch.tensor([math.sqrt(5 / 3) / 2, 0.0]))
    assert mean_and_standard_error(torch.tensor([3.0]))[1].isnan()
    assert detection_rate(torch.tensor([True, False])) == 0.5
