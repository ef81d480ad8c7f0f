"""Functions as posteriors: kinds of arrays, seeds, priors, and what is said of wrong ones."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Uniform

from bridged import TASK, IliPosterior, X, exact, mds_of_means, mean
from mindist import MinimumDistance, RobustPosterior
from mindist.posteriors import CallablePosterior
from mindist.posteriors.flow_bridge import load_weights, save_weights
from mindist.posteriors.guards import seed_for_others, seeded, warn_user


@pytest.fixture(scope="module")
def mds() -> MinimumDistance:
    return mds_of_means()


def test_a_plain_function(mds):
    robust = RobustPosterior(exact, mds)
    samples = robust.sample((100,), X[0], seed=1)
    torch.manual_seed(1)
    assert torch.equal(samples, exact(mean(X[:1])[0], 100))
    with pytest.raises(NotImplementedError, match=r"CallablePosterior\(sample, log_prob=...\)"):
        robust.log_prob(samples, X[0])
    assert "function over 2 parameters given 2 summaries" in repr(robust)


def test_a_function_of_many_summaries_at_once(mds):
    law = CallablePosterior(
        lambda s, n: TASK.posterior_given_mean(s).sample((n,)),
        lambda theta, s: -(theta - s).square().sum(-1),
        batched=True,
    )
    robust = RobustPosterior(law, mds)
    samples = robust.sample_batched((50,), X[:4], seed=2)
    torch.manual_seed(2)
    expected = TASK.posterior_given_mean(robust.adapt(X[:4]).s_star).sample((50,))
    assert torch.equal(samples, expected)
    log_p = robust.log_prob_batched(samples[:3], X[:4])
    torch.testing.assert_close(log_p, -(samples[:3] - mean(X[:4])).square().sum(-1))


def test_functions_of_numpy_arrays_and_their_global_generator(mds):
    def numpy_function(s, n):
        return np.random.multivariate_normal(s, 0.1 * np.eye(2), size=n)  # noqa: NPY002

    def with_seed(s, n, seed):
        return np.random.default_rng(seed).normal(s, 0.1, size=(n, 2))

    s = mean(X[:1])[0].numpy()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    samples = RobustPosterior(numpy_function, mds).sample((10,), X[0], seed=3)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    assert np.allclose(samples, numpy_function(s, 10), atol=1e-6)
    samples = RobustPosterior(with_seed, mds).sample((10,), X[0], seed=3)
    assert np.allclose(samples, with_seed(s, 10, seed=3), atol=1e-6)
    both = RobustPosterior(with_seed, mds).sample_batched((10,), X[[0, 0]], seed=3)
    assert torch.equal(both[:, 0], samples)
    assert not torch.equal(both[:, 1], samples)


def test_a_prior_with_bounds_cuts_and_normalises(mds):
    box = Independent(Uniform(torch.full((2,), -9.0), torch.tensor([0.0, 9.0])), 1)
    law = CallablePosterior(
        lambda s, n: 0.2 * torch.randn(n, 2),
        lambda theta, s: Independent(torch.distributions.Normal(torch.zeros(2), 0.2), 1).log_prob(
            theta
        ),
        box,
    )
    robust = RobustPosterior(law, mds)
    samples = robust.sample((500,), X[0], seed=0)
    assert (samples[:, 0] <= 0).all()
    theta = torch.tensor([[-0.1, 0.0], [0.1, 0.0]])
    raw = robust.log_prob(theta, X[0], norm_posterior=False)
    normed = robust.log_prob(theta, X[0])
    assert normed[0] - raw[0] == pytest.approx(np.log(2), abs=0.05)  # half of the mass is inside
    assert normed[1] == -torch.inf
    assert robust.queries.backend.sample_prior(5).shape == (5, 2)


def test_a_seed_for_others_leaves_torch_draws_alone():
    with seeded(4), seed_for_others() as seed:
        inside = torch.rand(3)
    torch.manual_seed(4)
    assert torch.equal(inside, torch.rand(3))
    assert seed == 4


def test_warnings_point_outside_both_houses():
    for house in ("mindist.report.page", "mindist_paper.evaluation.store"):
        inside = {"__name__": house, "warn_user": warn_user}
        exec("def work(): warn_user('seen here')", inside)
        with pytest.warns(UserWarning, match="seen here") as caught:
            inside["work"]()
        assert caught[0].filename == __file__


def test_what_is_no_posterior(mds):
    with pytest.raises(ValueError, match=r"function sample to return shape \(1, d_theta\), got"):
        RobustPosterior(lambda s, n: torch.zeros(n), mds)

    def fails(s, n):
        raise ArithmeticError("wrong on purpose")

    with pytest.raises(ValueError, match=r"summary of length 2.*wrong on purpose"):
        RobustPosterior(fails, mds)
    with pytest.raises(ValueError, match="mds: expected a fitted MinimumDistance"):
        RobustPosterior(exact, MinimumDistance(mean))
    with pytest.raises(TypeError, match="got the class IliPosterior"):
        RobustPosterior(IliPosterior, mds)
    ratio = pytest.importorskip("lampe.inference").NRE(2, 2, hidden_features=(8,))
    with pytest.raises(TypeError, match=r"got NRE\. A ratio estimator has to be sampled"):
        RobustPosterior(ratio, mds)


def test_weights_fit_only_a_network_like_the_saved_one(tmp_path):
    save_weights(tmp_path / "net", nn.Linear(2, 3))
    with pytest.raises(ValueError, match="names and shapes of the weights of the Linear"):
        load_weights(tmp_path / "net", nn.Linear(2, 4))
    with pytest.raises(TypeError, match="expected a torch module, got str"):
        save_weights(tmp_path / "no", "net")
