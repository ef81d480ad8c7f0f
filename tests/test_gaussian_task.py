import math

import pytest
import torch
from scipy import stats

from mindist.tasks import GaussianTask
from mindist_paper.tasks import GaussianFactorTask


def test_simulations_have_the_right_moments(task):
    generator = torch.Generator().manual_seed(0)
    theta = task.sample_prior(4_000, generator)
    x = task.simulate(theta, 50, generator=generator)
    assert x.shape == (4_000, 50, 2)
    assert stats.kstest(theta.flatten().numpy(), "norm").pvalue > 0.01
    residual = (x - theta[:, None])[:, :10].flatten()
    assert stats.kstest(residual.numpy(), "norm").pvalue > 0.01


def test_the_posterior_is_conjugate():
    task = GaussianTask(dim=1)
    x = torch.tensor([[[1.0], [2.0], [6.0]]])
    posterior = task.posterior(x)
    assert float(posterior.mean) == pytest.approx(3 * 3.0 / 4)
    assert float(posterior.variance) == pytest.approx(1 / 4)
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    log_joint = stats.norm.logpdf(grid.numpy()) + sum(
        stats.norm.logpdf(value, loc=grid.numpy()) for value in (1.0, 2.0, 6.0)
    )
    density = torch.from_numpy(log_joint).exp()
    density = density / torch.trapezoid(density, grid)
    exact = task.posterior(x.double()).log_prob(grid[:, None]).exp()
    torch.testing.assert_close(density, exact, rtol=1e-6, atol=1e-9)


def test_contamination_replaces_the_right_fraction_by_points_at_delta(task):
    generator = torch.Generator().manual_seed(1)
    x = task.simulate(torch.zeros(200, 2), generator=generator)
    dirty = task.contaminate(x, 0.3, delta=4.0, generator=generator)
    changed = (dirty != x).any(-1)
    low, high = stats.binom.interval(0.999, 20_000, 0.3)
    assert low <= int(changed.sum()) <= high
    outliers = dirty[changed]
    assert torch.equal(outliers.abs(), torch.full_like(outliers, 4.0))
    assert torch.equal(outliers[:, 0], outliers[:, 1])  # one sign for all coordinates
    positive = int((outliers[:, 0] > 0).sum())
    low, high = stats.binom.interval(0.999, len(outliers), 0.5)
    assert low <= positive <= high
    assert torch.equal(dirty[~changed], x[~changed])
    assert torch.equal(task.contaminate(x, 0.0, generator=generator), x)


def test_the_summary_network_is_invariant_to_order_and_takes_any_number(task):
    torch.manual_seed(0)
    network = task.summary_network()
    x = torch.randn(3, 20, 2)
    shuffled = x[:, torch.randperm(20)]
    torch.testing.assert_close(network(x), network(shuffled))
    assert network(x[:, :7]).shape == (3, 2)
    assert math.isfinite(float(network(x).sum().detach()))


DIMENSIONS = [2, 5, 10, 50, 100]


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_factors_are_an_orthonormal_pair_that_depends_on_the_seed_alone(dim):
    A = GaussianFactorTask(dim).projection.double()
    torch.testing.assert_close(A.T @ A, torch.eye(2).double(), rtol=0, atol=1e-6)
    assert torch.equal(GaussianFactorTask(dim, num_obs=7).projection.double(), A)
    assert not torch.equal(GaussianFactorTask(dim, seed=1).projection.double(), A)


def test_factors_are_uniform_over_the_seeds():
    A = torch.stack([GaussianFactorTask(3, seed=seed).projection for seed in range(1_000)])
    # Archimedes: each coordinate of a uniform point on the sphere is uniform on [-1, 1].
    for column in A.flatten(1).T:
        assert stats.kstest(column.numpy(), "uniform", (-1, 2)).pvalue > 0.01
    shift = A.sum(1).square().sum(1)  # of the summary by an outlier (1, 1, 1)
    assert float(shift.mean()) == pytest.approx(2, abs=4 * float(shift.std()) / 1_000**0.5)


@pytest.mark.parametrize("dim", [2, 50])
def test_factor_simulations_are_noise_around_the_plane(dim):
    task, generator = GaussianFactorTask(dim), torch.Generator().manual_seed(0)
    theta = task.sample_prior(200, generator)
    x = task.simulate(theta, generator=generator)
    residual = x - (theta @ task.projection.T)[:, None]
    assert stats.kstest(residual.flatten()[:20_000].numpy(), "norm").pvalue > 0.01
    error = (task.summary(x) - theta) * task.num_obs**0.5
    assert stats.kstest(error.flatten().numpy(), "norm").pvalue > 0.01
    pseudo_inverse = torch.linalg.pinv(task.projection.double()).float()
    torch.testing.assert_close(task.summary(x), x.mean(1) @ pseudo_inverse.T, rtol=0, atol=1e-5)


def test_the_factor_posterior_is_bayes_rule_for_a_linear_gaussian_model():
    task, generator = GaussianFactorTask(7, num_obs=4), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(3, generator), generator=generator).double()
    A = task.projection.double()
    covariance = torch.linalg.inv(torch.eye(2) + 4 * A.T @ A)
    mean = x.sum(1) @ A @ covariance
    posterior = task.posterior(x)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=1e-6)
    expected = covariance.diagonal().expand(3, 2)
    torch.testing.assert_close(posterior.variance, expected, rtol=0, atol=1e-6)


def test_a_factor_task_needs_two_coordinates():
    with pytest.raises(ValueError, match=r"dim: expected at least 2, one for each factor, got 1"):
        GaussianFactorTask(1)


def test_outliers_of_the_factor_model_lie_at_delta_five():
    task, generator = GaussianFactorTask(), torch.Generator().manual_seed(0)
    x = task.simulate(torch.zeros(2, 2), generator=generator)
    dirty = task.contaminate(x, 1.0, generator=generator)
    assert dirty.abs().unique().tolist() == [5.0]
