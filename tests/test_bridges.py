"""One contract for all bridges, then functions: kinds of arrays, seeds, priors, refusals."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, Uniform

from bridged import (
    CONSTRUCTORS,
    TASK,
    Bridged,
    IliPosterior,
    X,
    exact,
    mds_of_means,
    mean,
    simulate,
)  # fmt: skip
from mindist import Entrywise, MinimumDistance, RobustPosterior, checks
from mindist.posteriors import CallablePosterior
from mindist.posteriors.flow_bridge import load_weights, save_weights
from mindist.posteriors.guards import seed_for_others, seeded

# Its training takes 10 s; tests/test_bayesflow_bridge.py asks one that was trained less.
SLOW = {"bayesflow-learned": pytest.mark.slow}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=SLOW.get(name, ())) for name in CONSTRUCTORS],
)
def bridged(request) -> Bridged:
    library = request.param.partition("-")[0]
    if library not in ("ili", "function"):
        pytest.importorskip(library)
    return CONSTRUCTORS[request.param]()


@pytest.fixture(scope="module")
def mds(bridged) -> MinimumDistance:
    learned = bridged.summary is not mean
    own = MinimumDistance(bridged.summary, num_features=128)
    return own.fit(X[:500]) if learned else mds_of_means()


@pytest.fixture(scope="module")
def clean(mds):
    """Three simulated datasets that are not detected as misspecified."""
    x = simulate(20, seed=3)[1]
    return x[~mds.detect(x).misspecified][:3]


@pytest.fixture(scope="module")
def bad(clean):
    """The same with every fifth observation far off."""
    return torch.where((torch.arange(30) % 5 == 0)[:, None], 4.0, clean)


def test_clean_data_are_asked_about_as_the_library_would(bridged, mds, clean):
    robust = bridged.robust(mds)
    expected = bridged.draw(100, clean[0], 7)
    assert torch.equal(robust.sample((100,), clean[0], seed=7), expected)
    assert torch.equal(robust.sample((10, 10), clean[0].numpy(), seed=7).flatten(0, 1), expected)
    torch.manual_seed(7)
    assert torch.equal(robust.sample((100,), clean[0]), expected)
    theta = expected[:5]
    log_p = robust.log_prob(theta, clean[0])
    torch.testing.assert_close(log_p, bridged.log_prob(theta, clean[0]), atol=1e-4, rtol=1e-4)


def test_contaminated_data_are_adapted(bridged, mds, clean, bad):
    robust = bridged.robust(mds)
    adaptation = robust.adapt(bad)
    assert adaptation.adapted.all()
    truth = robust.sample_batched((300,), clean, seed=0).mean(0)
    ours = robust.sample_batched((300,), bad, seed=0).mean(0)
    plain = torch.stack([bridged.draw(300, x, 0).mean(0) for x in bad])
    shift = [(means - truth).norm(dim=1).mean() for means in (ours, plain)]
    assert shift[0] < bridged.left * shift[1], shift
    assert shift[1] > bridged.moved  # a fifth of the observations moved by about 4


def test_draws_are_those_at_the_adapted_summary(bridged, mds, bad):
    robust = bridged.robust(mds, uncertainty=False)
    theta = robust.sample((2_000,), bad[0], seed=1)
    log_p = robust.log_prob(theta, bad[0])
    # The mean of log p under p is minus the entropy; a Gaussian of the same covariance has the
    # most, and these posteriors are close to Gaussian.
    entropy = 0.5 * torch.logdet(2 * math.pi * math.e * theta.T.cov())
    assert -log_p.mean() == pytest.approx(float(entropy), abs=0.15)
    wide = bridged.robust(mds).sample((2_000,), bad[0], seed=1)
    assert wide.var(0).sum() >= theta.var(0).sum()  # an adapted summary is less certain


def test_batches(bridged, mds, clean, bad):
    robust = bridged.robust(mds)
    both = torch.cat([clean[:2], bad[:1]])
    samples = robust.sample_batched((1_000,), both, seed=0)
    assert samples.shape == (1_000, 3, 2)
    for index, x in enumerate(both):
        alone = robust.sample((1_000,), x, seed=1)
        error = (samples[:, index].var(0) / 1_000 + alone.var(0) / 1_000).sqrt()
        assert ((samples[:, index].mean(0) - alone.mean(0)).abs() < 5 * error).all()
    log_p = robust.log_prob_batched(samples[:4], both)
    assert log_p.shape == (4, 3)
    one = robust.log_prob(samples[:4, 2], both[2])
    torch.testing.assert_close(log_p[:, 2], one, atol=1e-4, rtol=1e-4)
    assert robust.sample_batched((5,), both[:0], seed=0).shape == (5, 0, 2)


def test_seeds(bridged, mds, clean, bad):
    robust = bridged.robust(mds)
    for x in (clean[0], bad[0]):
        first = robust.sample((50,), x, seed=3)
        state = torch.get_rng_state()
        assert torch.equal(robust.sample((50,), x, seed=3), first)
        assert torch.equal(torch.get_rng_state(), state)
        assert not torch.equal(robust.sample((50,), x, seed=4), first)
    torch.manual_seed(0)
    a, b = robust.sample((50,), clean[0]), robust.sample((50,), clean[0])
    assert not torch.equal(a, b)
    few = robust.sample((50,), clean[0], seed=3, max_sampling_batch_size=20)
    assert len(few.unique(dim=0)) == 50  # no batch repeats another


def test_save_and_load(bridged, mds, clean, bad, tmp_path):
    bridged.save(tmp_path / "posterior")
    mds.save(tmp_path / "mds")
    again = MinimumDistance.load(tmp_path / "mds", bridged.summary)
    loaded = type(bridged.robust(mds))(bridged.load(tmp_path / "posterior"), again)
    for x in (clean[0], bad[0]):
        expected = bridged.robust(mds).sample((50,), x, seed=3)
        assert torch.equal(loaded.sample((50,), x, seed=3), expected)


@pytest.mark.slow
def test_the_mode_is_near_the_mean(bridged, mds, clean):
    robust = bridged.robust(mds)
    samples = robust.sample((1_000,), clean[0], seed=0)
    mode = robust.map(clean[0], seed=0, num_init_samples=50)
    assert mode.shape == (1, 2)
    assert ((mode[0] - samples.mean(0)).abs() < samples.std(0)).all()


def test_the_posterior_is_left_alone(bridged, mds, bad):
    before, robust = bridged.draw(20, bad[0], 5), bridged.robust(mds)
    backend = robust.queries.backend
    version, known = backend.version, isinstance(backend.version, tuple)
    robust.sample((20,), bad[0])
    robust.log_prob(before[:2], bad[0])
    assert torch.equal(bridged.draw(20, bad[0], 5), before)
    assert (backend.version == version) is known  # of a function nothing is known


# ------------------------------------------------------------------------------ functions


def test_one_vector_with_a_missing_entry(bridged, mds, clean):
    """A posterior over summaries is one over vectors: what is missing widens it."""
    if mds.summary is not mean:
        pytest.skip("its own network makes the vector of a dataset")
    entries = Entrywise().fit(mean(X))
    posterior, s = RobustPosterior(bridged.posterior, entries), mean(clean)[0]
    whole = posterior.sample((500,), x=s, seed=3)
    assert torch.equal(whole, posterior.sample((500,), x=s, seed=3))
    assert whole.shape == (500, TASK.dim_theta)
    lacking = s.clone()
    lacking[0] = torch.nan
    part = posterior.sample((500,), x=lacking, seed=3)
    assert torch.isfinite(part).all()
    assert part.var(0).sum() > 1.2 * whole.var(0).sum()


def test_a_plain_function():
    robust = RobustPosterior(exact, mds_of_means())
    samples = robust.sample((100,), X[0], seed=1)
    torch.manual_seed(1)
    assert torch.equal(samples, exact(mean(X[:1])[0], 100))
    with pytest.raises(NotImplementedError, match=r"CallablePosterior\(sample, log_prob=...\)"):
        robust.log_prob(samples, X[0])
    assert "function over 2 parameters given 2 summaries" in repr(robust)


def test_a_function_of_many_summaries_at_once():
    law = CallablePosterior(
        lambda s, n: TASK.posterior_given_mean(s).sample((n,)),
        lambda theta, s: -(theta - s).square().sum(-1),
        batched=True,
    )
    robust = RobustPosterior(law, mds_of_means())
    samples = robust.sample_batched((50,), X[:4], seed=2)
    torch.manual_seed(2)
    expected = TASK.posterior_given_mean(robust.adapt(X[:4]).s_star).sample((50,))
    assert torch.equal(samples, expected)
    log_p = robust.log_prob_batched(samples[:3], X[:4])
    torch.testing.assert_close(log_p, -(samples[:3] - mean(X[:4])).square().sum(-1))


def test_functions_of_numpy_arrays_and_their_global_generator():
    def numpy_function(s, n):
        return np.random.multivariate_normal(s, 0.1 * np.eye(2), size=n)  # noqa: NPY002

    def with_seed(s, n, seed):
        return np.random.default_rng(seed).normal(s, 0.1, size=(n, 2))

    s = mean(X[:1])[0].numpy()
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    samples = RobustPosterior(numpy_function, mds_of_means()).sample((10,), X[0], seed=3)
    assert np.array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    assert np.allclose(samples, numpy_function(s, 10), atol=1e-6)
    samples = RobustPosterior(with_seed, mds_of_means()).sample((10,), X[0], seed=3)
    assert np.allclose(samples, with_seed(s, 10, seed=3), atol=1e-6)
    both = RobustPosterior(with_seed, mds_of_means()).sample_batched((10,), X[[0, 0]], seed=3)
    assert torch.equal(both[:, 0], samples)
    assert not torch.equal(both[:, 1], samples)


def test_a_prior_with_bounds_cuts_and_normalises():
    box = Independent(Uniform(torch.full((2,), -9.0), torch.tensor([0.0, 9.0])), 1)
    law = CallablePosterior(
        lambda s, n: 0.2 * torch.randn(n, 2),
        lambda theta, s: Independent(Normal(torch.zeros(2), 0.2), 1).log_prob(theta),
        box,
    )
    robust = RobustPosterior(law, mds_of_means())
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
        inside = {"__name__": house, "checks": checks}
        exec("def work(): checks.warn_user('seen here')", inside)
        with pytest.warns(UserWarning, match="seen here") as caught:
            inside["work"]()
        assert caught[0].filename == __file__


def test_what_is_no_posterior():
    with pytest.raises(ValueError, match=r"function sample to return shape \(1, d_theta\), got"):
        RobustPosterior(lambda s, n: torch.zeros(n), mds_of_means())

    def fails(s, n):
        raise ArithmeticError("wrong on purpose")

    with pytest.raises(ValueError, match=r"summary of length 2.*wrong on purpose"):
        RobustPosterior(fails, mds_of_means())
    with pytest.raises(ValueError, match="mds: expected a fitted MinimumDistance"):
        RobustPosterior(exact, MinimumDistance(mean))
    with pytest.raises(TypeError, match="got the class IliPosterior"):
        RobustPosterior(IliPosterior, mds_of_means())
    ratio = pytest.importorskip("lampe.inference").NRE(2, 2, hidden_features=(8,))
    with pytest.raises(TypeError, match=r"got NRE\. A ratio estimator has to be sampled"):
        RobustPosterior(ratio, mds_of_means())


def test_weights_fit_only_a_network_like_the_saved_one(tmp_path):
    save_weights(tmp_path / "net", nn.Linear(2, 3))
    with pytest.raises(ValueError, match="names and shapes of the weights of the Linear"):
        load_weights(tmp_path / "net", nn.Linear(2, 4))
    with pytest.raises(TypeError, match="expected a torch module, got str"):
        save_weights(tmp_path / "no", "net")
