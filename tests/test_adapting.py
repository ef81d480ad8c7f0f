"""What becomes of datasets with faults of several kinds."""

import pytest
import torch

from mindist import MinimumDistance
from mindist.adaptation import Status
from mindist.tasks import GaussianTask


@pytest.fixture(scope="module")
def fitted():
    task, generator = GaussianTask(), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(1_000, generator), generator=generator)
    return MinimumDistance(task.summary, num_features=256).fit(x)


@pytest.fixture(scope="module")
def clean():
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    theta = task.sample_prior(40, generator)
    return theta, task.simulate(theta, generator=generator)


def error(s, theta):
    return float((s - theta).square().mean().sqrt())


def test_data_wider_than_the_model_keep_their_summary(fitted, clean):
    """Any part of them that looks like the model would do: the mean of all is the best guess."""
    theta, x = clean
    x = theta[:, None] + 1.2 * (x - theta[:, None])
    result = fitted.adapt(x)
    assert result.misspecified.double().mean() > 0.6
    # The sample mean has sqrt(1.2^2 / 100); 1.2 covers 80 errors, and the few that are sorted.
    # Twice the variance is no longer told from contamination in half of the datasets (limits.md).
    assert error(result.s_star, theta) < 1.2 * 0.12


def test_contaminated_data_are_sorted(fitted, clean):
    theta, x = clean
    shift = torch.randn(len(x), 20, 2, generator=torch.Generator().manual_seed(2))
    x = torch.cat([x[:, 20:], 4 + 0.3 * shift], 1)
    result = fitted.adapt(x)
    assert result.misspecified.all()
    # Where the prior puts the truth at the contamination there is nothing to tell apart.
    far = (theta - 4).norm(dim=1) > 3
    assert far.double().mean() > 0.5
    assert result[far].status == (Status.SORTED,) * int(far.sum())
    assert result.weights[far][:, 80:].mean() < 0.1 < 0.8 < result.weights[far][:, :80].mean()
    assert error(result.s_star[far], theta[far]) < 1.3 * (1 / 80) ** 0.5


def test_copies_of_one_observation_lose_their_excess(fitted, clean):
    theta, x = clean
    x = torch.cat([x[:, 30:], x[:, :1].expand(-1, 30, -1)], 1)
    result = fitted.adapt(x)
    assert result.misspecified.all()
    assert error(result.s_obs, theta) > 0.2
    assert error(result.s_star, theta) < 0.2
    assert (result.epsilon >= 0).all()


def test_copies_count_where_simulations_have_them():
    generator = torch.Generator().manual_seed(0)
    rate = 1 + 4 * torch.rand(600, 1, 1, generator=generator)
    x = torch.poisson(rate.expand(-1, 50, 2), generator=generator)
    mds = MinimumDistance(lambda x: x.mean(1), num_features=64).fit(x)
    result = mds.adapt(x[:100])
    assert result.outliers.double().mean() < 0.02  # a false alarm may set a third of them aside


def test_the_paper_sorts_nothing(clean):
    task, generator = GaussianTask(), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(500, generator), generator=generator)
    mds = MinimumDistance.paper(task.summary)
    mds.decoder.max_epochs = 10
    mds.fit(x)
    stuck = torch.cat([clean[1][:2, 30:], clean[1][:2, :1].expand(-1, 30, -1)], 1)
    result = mds.adapt(stuck, force=True)
    assert result.weights.eq(1).all()
    assert not result.excess.any()
    assert not result.outliers.any()


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_datasets_do_not_change_a_result(fitted, clean, monkeypatch, threads):
    """Nor do the threads that take them, nor the memory that one leaves to the next."""
    _, x = clean
    x = torch.cat([x[:, 20:], x[:, :20] + 4], 1)
    together = fitted.adapt(x)
    # Seven datasets of 100 observations with 256 features.
    monkeypatch.setattr("mindist.minimum_distance.BLOCK_BYTES", 7 * 100 * 256 * 4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        apart = fitted.adapt(x)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for name in ("s_star", "weights", "influence", "covariance", "outlier_score", "epsilon"):
        torch.testing.assert_close(
            getattr(apart, name), getattr(together, name), rtol=1e-4, atol=1e-5
        )
    assert apart.status == together.status
