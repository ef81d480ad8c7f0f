"""Metrics on cases whose answer is known."""

import math

import pytest
import torch

from mindist.tasks import GaussianTask
from mindist_paper.evaluation import metrics
from mindist_paper.evaluation.metrics import coverage, reference_mmd, rmse

LEVELS = (0.5, 0.8, 0.95)


def test_rmse_and_distances_of_summaries_are_euclidean():
    theta_mean = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    expected = torch.tensor([math.sqrt(12.5), 0.0])
    torch.testing.assert_close(rmse(theta_mean, torch.zeros(2, 2)), expected)
    s, oracle = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 0.0]])
    torch.testing.assert_close(metrics.summary_distance(s, oracle), torch.tensor([5.0, 0.0]))
    scaled = metrics.summary_distance(s, oracle, torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(scaled, torch.tensor([math.sqrt(10.0), 0.0]))


@pytest.mark.parametrize("stretch", [1.0, 2.0, 0.5], ids=["exact", "conservative", "overconfident"])
def test_coverage_in_three_regimes(stretch):
    """Posteriors with the right, twice and half the right spread, on 1,000 datasets."""
    task, generator = GaussianTask(num_obs=10), torch.Generator().manual_seed(0)
    theta = task.sample_prior(1_000, generator)
    exact = task.posterior(task.simulate(theta, generator=generator))
    noise = torch.randn(1_000, *theta.shape, generator=generator)
    found = coverage(exact.mean + stretch * exact.stddev * noise, theta, LEVELS)
    normal = torch.distributions.Normal(0.0, 1.0)
    for level, rate in zip(LEVELS, found.mean(1).tolist(), strict=True):
        width = float(normal.icdf(torch.tensor((1 + level) / 2)))
        expected = 2 * float(normal.cdf(torch.tensor(stretch * width))) - 1
        # 2,000 independent intervals, and 1,000 samples in each quantile.
        assert rate == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 2_000))
    with pytest.raises(ValueError, match="levels: expected numbers between 0 and 1, got"):
        coverage(torch.zeros(3, 1, 1), torch.zeros(1, 1), (0.5, 1.0))


@pytest.mark.slow
def test_reference_mmd_agrees_with_the_anchors():
    """The exact posterior given contaminated means, against the one given clean means.

    The paper's NPE: 1.58, 2.94, 4.00, 5.18; a trained NPE adds to the small ones.
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
