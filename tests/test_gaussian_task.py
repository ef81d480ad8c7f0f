import math

import pytest
import torch
from scipy import stats

from mindist.tasks import GaussianTask


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
