"""What becomes of datasets with faults that weights could take for contamination."""

import pytest
import torch

from exact_models import features
from mindist import MinimumDistance
from mindist.adaptation import Observations, Problem, Search, Status
from mindist.features.embedding import Embedding
from mindist.tasks import GaussianTask


@pytest.fixture(scope="module")
def fitted():
    task, generator = GaussianTask(), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(4_000, generator), generator=generator)
    return MinimumDistance(task.summary, num_features=256).fit(x)


@pytest.fixture(scope="module")
def clean():
    task, generator = GaussianTask(), torch.Generator().manual_seed(1)
    theta = task.sample_prior(40, generator)
    return theta, task.simulate(theta, generator=generator)


def error(s, theta):
    return float((s - theta).square().mean().sqrt())


def test_data_wider_than_the_model_are_not_weighed(fitted, clean):
    """Any part of them that looks like the model would do: the mean of all is the best guess."""
    theta, x = clean
    x = theta[:, None] + 1.5 * (x - theta[:, None])
    result = fitted.adapt(x)
    assert result.adapted.all()
    alike = (result.weights == 1).all(1)
    assert alike.double().mean() > 0.7  # the feedback of two in three is above .75
    # The sample mean has sqrt(1.5^2 / 100); 1.2 covers the kernel's efficiency and 80 errors.
    assert error(result.s_star, theta) < 1.2 * 0.15
    status = {result.status[i] for i in alike.nonzero()[:, 0]}
    assert status <= {Status.CONVERGED, Status.STALLED}
    assert (result.objective_star <= result.objective_obs).all()


def test_contaminated_data_are_weighed(fitted, clean):
    theta, x = clean
    shift = torch.randn(len(x), 20, 2, generator=torch.Generator().manual_seed(2))
    x = torch.cat([x[:, 20:], 4 + 0.3 * shift], 1)
    result = fitted.adapt(x)
    assert result.weights[:, 80:].mean() < 0.1 < 0.8 < result.weights[:, :80].mean()
    assert error(result.s_star, theta) < 1.3 * (1 / 80) ** 0.5


def test_copies_of_one_observation_count_once(fitted, clean):
    theta, x = clean
    x = torch.cat([x[:, 30:], x[:, :1].expand(-1, 30, -1)], 1)
    result = fitted.adapt(x)
    assert result.misspecified.all()
    assert error(result.s_obs, theta) > 0.2
    assert error(result.s_star, theta) < 1.3 * (1 / 71) ** 0.5
    assert (result.weights[:, 70:] <= 1 / 30 + 1e-12).all()
    # Every copy counts for the contaminated fraction, of which nothing is known here but its sign.
    assert (result.epsilon >= 0).all()


def test_copies_count_where_simulations_have_them():
    generator = torch.Generator().manual_seed(0)
    rate = 1 + 4 * torch.rand(2_000, 1, 1, generator=generator)
    x = torch.poisson(rate.expand(-1, 50, 2), generator=generator)
    mds = MinimumDistance(lambda x: x.mean(1), num_features=64).fit(x)
    assert not mds.fitted_.continuous
    stuck = torch.cat([x[:1, :30], x[:1, :1].expand(-1, 20, -1)], 1)
    result = mds.adapt(stuck, force=True)
    assert result.weights.max() == 1  # of one that agrees with the model, however often it occurs


def test_the_paper_weighs_nothing(clean):
    task, generator = GaussianTask(), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(500, generator), generator=generator)
    mds = MinimumDistance.paper(task.summary).fit(x)
    stuck = torch.cat([clean[1][:2, 30:], clean[1][:2, :1].expand(-1, 30, -1)], 1)
    result = mds.adapt(stuck, force=True)
    assert result.weights.eq(1).all()
    assert not result.excess.any()


def test_the_feedback_decides(fitted, clean):
    """With no limit all are weighed, with a limit of 0 none."""
    _, x = clean
    x = torch.cat([x[:, 20:], x[:, :20] + 4], 1)[:6]

    def adapt(**search):
        mds = MinimumDistance(fitted.summary, num_features=256, search=Search(**search))
        mds.fitted_ = fitted.fitted_
        return mds.adapt(x)

    plain = adapt(feedback=0)
    assert plain.weights.eq(1).all()
    torch.testing.assert_close(plain.s_star, adapt(reweight=0).s_star)
    assert (adapt(feedback=10).weights < 1).any(1).all()


def test_copies_count_if_asked_to(fitted, clean):
    stuck = torch.cat([clean[1][:4, 30:], clean[1][:4, :1].expand(-1, 30, -1)], 1)
    mds = MinimumDistance(fitted.summary, num_features=256, search=Search(distinct=False))
    mds.fitted_ = fitted.fitted_
    assert (mds.adapt(stuck, force=True).weights[:, 70:] > 1 / 30).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_datasets_do_not_change_a_result(fitted, clean, monkeypatch, threads):
    """Nor do the threads that take them, nor the memory that one leaves to the next."""
    _, x = clean
    x = torch.cat([x[:, 20:], x[:, :20] + 4], 1)
    together = fitted.adapt(x)
    # Seven datasets of 100 observations with the features of two kernels.
    monkeypatch.setattr("mindist.minimum_distance.BLOCK_BYTES", 7 * 100 * 512 * 4)
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


def test_a_permutation_of_all_datasets_is_a_selection():
    x = torch.arange(3.0)[:, None, None].expand(3, 4, 1)
    problem = Problem(x, x[:, 0], x[:, 0].expand(3, 2))
    turned, every = torch.tensor([2, 0, 1]), torch.arange(3)
    assert problem[every] is problem
    assert problem[turned].s_obs.flatten().tolist() == [2, 0, 1]
    seen = Observations.of(Embedding(features((1,), 4, 1.0), None, None), x)
    assert seen[every] is seen
    assert torch.equal(seen[turned].wide, seen.wide[turned])
