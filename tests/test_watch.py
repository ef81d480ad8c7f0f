"""`mindist.watch`: the same posterior and draws, and a warning where the data do not fit."""

import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch

import mindist
from bridged import TASK, THETA, IliPosterior, X, mds_of_means, mean, simulate, train_workflow
from mindist import MinimumDistance, MisspecificationWarning, RobustPosterior, watch

pytest.importorskip("sbi")

from sbi.inference import NLE
from sbi.inference.posteriors import DirectPosterior
from sbi.inference.posteriors.posterior_parameters import MCMCPosteriorParameters

from mindist.posteriors.guards import quiet
from mindist.posteriors.sbi_training import NoTracker, train_npe

HOW = {"density_estimator": "mdn", "max_num_epochs": 2, "seed": 0}


@pytest.fixture(scope="module")
def mds() -> MinimumDistance:
    return mds_of_means()


@pytest.fixture(scope="module")
def over_data() -> DirectPosterior:
    torch.manual_seed(0)
    return train_npe(TASK.prior, THETA, X, embedding_net=TASK.summary_network(width=8), **HOW)


@pytest.fixture(scope="module")
def over_summaries() -> DirectPosterior:
    return train_npe(TASK.prior, THETA, mean(X), **HOW)


@pytest.fixture(scope="module")
def clean(mds):
    x = simulate(20, seed=3)[1]
    return x[~mds.detect(x).misspecified][:3]


@pytest.fixture(scope="module")
def bad(clean):
    return torch.where((torch.arange(30) % 5 == 0)[:, None], 4.0, clean)


def drawn(posterior, x, method="sample", **options):
    torch.manual_seed(0)
    return getattr(posterior, method)((20,), x=x, show_progress_bars=False, **options)


WARNING = r"p-value 0\.\d+.*mds\.adapt\(x\).*RobustPosterior\(posterior, mds\)"


@pytest.mark.parametrize("kind", ["data", "summary"])
def test_the_same_draws_and_a_warning(kind, over_data, over_summaries, mds, clean, bad):
    posterior = over_data if kind == "data" else over_summaries
    watched = watch(posterior, mds)
    own = (lambda x: x) if kind == "data" else (lambda x: mean(x[None])[0])
    assert torch.equal(drawn(watched, clean[0]), drawn(posterior, own(clean[0])))
    with pytest.warns(MisspecificationWarning, match=WARNING) as caught:
        samples = drawn(watched, bad[0])
    assert caught[0].filename == __file__
    assert torch.equal(samples, drawn(posterior, own(bad[0])))  # warned, not adapted
    with pytest.warns(MisspecificationWarning, match="x does not look"):
        log_p = watched.log_prob(samples[:2], bad[0])  # by position too
    assert torch.equal(log_p, posterior.log_prob(samples[:2], own(bad[0])))


def test_batches_name_the_datasets(over_data, mds, clean, bad):
    both = torch.stack([clean[0], bad[0], clean[1], bad[1]])
    with pytest.warns(MisspecificationWarning, match=r"2 of 4 datasets \(number 1, 3\)"):
        samples = drawn(watch(over_data, mds), both, "sample_batched")
    assert torch.equal(samples, drawn(over_data, both, "sample_batched"))


def test_the_default_dataset_is_tested_when_it_is_set(over_data, mds, clean, bad):
    """As issue 1426 of sbi wants it."""
    posterior = pickle.loads(pickle.dumps(over_data))
    watched = watch(posterior, mds)
    with pytest.warns(MisspecificationWarning):
        assert watched.set_default_x(bad[0]) is watched
    with pytest.warns(MisspecificationWarning):
        watched.default_x = bad[1]
    watched.set_default_x(clean[0])
    assert torch.equal(posterior.default_x.reshape(30, 2), clean[0])
    torch.manual_seed(0)
    assert torch.equal(watched.sample((20,), show_progress_bars=False), drawn(over_data, clean[0]))


def test_all_else_is_the_posteriors(over_data, mds):
    watched = watch(over_data, mds)
    assert watched.posterior_estimator is over_data.posterior_estimator
    assert watched.prior is over_data.prior
    assert repr(watched).startswith("watch(")
    with pytest.raises(AttributeError, match="no_such"):
        watched.no_such_method()


def test_any_kind_of_sbi_posterior(mds, clean, bad):
    """MCMC over a synthetic likelihood, which `RobustPosterior` does not take."""
    inference = NLE(TASK.prior, density_estimator="mdn", tracker=NoTracker())
    with quiet("Maximum number of epochs", stdout=True):
        inference.append_simulations(THETA[:200], mean(X)[:200]).train(max_num_epochs=1)
    how = MCMCPosteriorParameters(num_chains=2, warmup_steps=2)
    posterior = inference.build_posterior(posterior_parameters=how)
    with pytest.raises(ValueError, match="Pass given='data' for datasets of 30 observations"):
        watch(posterior, mds)
    watched = watch(posterior, mds, given="summary")
    assert watched.sample((4,), x=clean[0], show_progress_bars=False).shape == (4, 2)
    with pytest.warns(MisspecificationWarning):
        watched.set_default_x(bad[0])


def test_a_summary_alone_cannot_be_tested(over_summaries, mds):
    for s in (torch.zeros(2), torch.zeros(1, 2)):
        with pytest.raises(ValueError, match=r"pass the data, whose summary is computed"):
            watch(over_summaries, mds).sample((3,), x=s)


def test_of_clean_data_a_share_alpha_is_rejected(over_data, mds):
    """One in twenty, within four standard errors of 200 trials."""
    x, watched, count = simulate(200, seed=8)[1], watch(over_data, mds), 0
    for one in x:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watched.sample((1,), x=one, show_progress_bars=False)
        count += len(caught)
    assert abs(count / 200 - 0.05) < 4 * (0.05 * 0.95 / 200) ** 0.5


def test_robust_posteriors_and_ones_own(over_summaries, mds, clean, bad):
    robust = RobustPosterior(over_summaries, mds)
    with pytest.warns(MisspecificationWarning):
        samples = watch(robust, mds).sample((5,), bad[0], seed=0)
    assert torch.equal(samples, robust.sample((5,), bad[0], seed=0))
    own = watch(IliPosterior(0.1), mds)
    torch.manual_seed(0)
    assert own.sample((5,), x=clean[0], show_progress_bars=False).shape == (5, 2)


class Holder:
    """A posterior whose `sample` is whatever it is given, and no method."""

    def __init__(self, sample):
        self.sample = sample


def exact(shape, x):
    return x.mean(0) + 0.1 * torch.randn(*shape, 2)


def loose(shape, **given):
    return exact(shape, **given)


def shifted(offset, shape, x):
    return exact(shape, x) + offset


class Called:
    def __call__(self, shape, x):
        return exact(shape, x)


@pytest.mark.parametrize(
    "sample",
    [exact, loose, partial(shifted, 0.0), partial(exact), Called()],
    ids=["function", "keywords", "partial", "bare partial", "object"],
)
def test_a_sample_that_is_no_method(sample, mds, clean, bad):
    """Functions and partials are seen too, whichever way the data come."""
    watched = watch(Holder(sample), mds, given="data")
    torch.manual_seed(0)
    expected = exact((5,), clean[0])
    torch.manual_seed(0)
    assert torch.equal(watched.sample((5,), x=clean[0]), expected)  # warnings are errors here
    with pytest.warns(MisspecificationWarning, match=WARNING):
        watched.sample((5,), x=bad[0])
    if sample is not loose:
        with pytest.warns(MisspecificationWarning, match=WARNING):
            watched.sample((5,), bad[0])


def test_what_is_no_query_is_left_as_it_is(mds):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x

    holder = Holder(exact)
    holder.net, holder.size = Net(), len
    watched = watch(holder, mds, given="data")
    assert watched.net is holder.net
    assert watched.size is len


@pytest.mark.parametrize("learned", [True, False])
def test_bayesflow(learned, mds, clean, bad):
    pytest.importorskip("bayesflow")
    workflow = train_workflow(learned=learned, epochs=1)
    for posterior in (workflow, workflow.approximator):
        watched = watch(posterior, mds)
        for x in (clean[:2].numpy(), bad[:2].numpy()):
            own = {"x": x} if learned else {"s": x.mean(1)}
            expected = posterior.sample(num_samples=5, conditions=own, seed=1)["theta"]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", MisspecificationWarning)
                samples = watched.sample(num_samples=5, conditions={"x": x}, seed=1)["theta"]
            assert np.allclose(samples, expected, atol=1e-5)
            told = [w for w in caught if w.category is MisspecificationWarning]
            assert len(told) == (x[0, 0, 0] == 4.0)
    with pytest.raises(ValueError, match="expected the data under the name 'x'"):
        watched.sample(num_samples=5, conditions={"y": clean[:2].numpy()})


def test_what_cannot_be_watched(over_data, mds):
    with pytest.raises(TypeError, match="expected a posterior with a method sample"):
        watch("posterior", mds)
    for nothing in (None, MinimumDistance, MinimumDistance(mean)):
        with pytest.raises(TypeError, match="mds: expected a fitted MinimumDistance"):
            watch(over_data, nothing)
    assert issubclass(mindist.MisspecificationWarning, UserWarning)
