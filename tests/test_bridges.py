"""One contract for all bridges: what `RobustPosterior` does is the same whatever it wraps."""

import math

import pytest
import torch

from bridged import CONSTRUCTORS, Bridged, X, mds_of_means, mean, simulate
from mindist import MinimumDistance

pytest.importorskip("sbi")
pytest.importorskip("bayesflow")
pytest.importorskip("lampe")


@pytest.fixture(scope="module", params=list(CONSTRUCTORS))
def bridged(request) -> Bridged:
    return CONSTRUCTORS[request.param]()


@pytest.fixture(scope="module")
def mds(bridged) -> MinimumDistance:
    learned = bridged.summary is not mean
    return MinimumDistance(bridged.summary, num_features=128).fit(X) if learned else mds_of_means()


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
