"""Trained posteriors come back from disk as they were, bit by bit."""

import json
import os
import pickle

import pytest
import torch
from torch import nn

from mindist.posteriors import load_pickled_posterior
from mindist.posteriors.sbi_bridge import split_embedding, train_npe
from mindist.posteriors.sbi_storage import load_posterior, save_posterior
from mindist.tasks import GaussianTask

TASK = GaussianTask(num_obs=10)
G = torch.Generator().manual_seed(0)
THETA = TASK.sample_prior(200, G)
X = TASK.simulate(THETA, generator=G)
HOW = {"max_num_epochs": 2, "learning_rate": 2e-3, "seed": 0}


def assert_equal_samples(a, b, condition):
    def draw(posterior):
        torch.manual_seed(3)
        return posterior.sample((50,), x=condition, show_progress_bars=False)

    first, second = draw(a), draw(b)
    assert torch.equal(first, second)
    assert torch.equal(a.log_prob(first, x=condition), b.log_prob(first, x=condition))


@pytest.mark.parametrize("estimator", ["nsf", "maf", "mdn", "zuko_nsf"])
def test_posterior_over_summaries(estimator, tmp_path):
    posterior = train_npe(TASK.prior, THETA, X.mean(1), density_estimator=estimator, **HOW)
    save_posterior(tmp_path / "npe", posterior, density_estimator=estimator)
    state = torch.get_rng_state()
    loaded, summary = load_posterior(tmp_path / "npe", TASK.prior)
    assert torch.equal(state, torch.get_rng_state())
    assert summary is None
    assert_equal_samples(posterior, loaded, X[:1].mean(1))


def test_one_parameter(tmp_path):
    """sbi builds another network for a single parameter, which cryo-EM has."""
    prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), 1.0), 1)
    posterior = train_npe(prior, THETA[:, :1], X.mean(1), **HOW)
    save_posterior(tmp_path / "npe", posterior, density_estimator="nsf")
    loaded, _ = load_posterior(tmp_path / "npe", prior)
    assert_equal_samples(posterior, loaded, X[:1].mean(1))


@pytest.mark.parametrize("estimator", ["nsf", "mdn"])
def test_learned_summary(estimator, tmp_path):
    """Both ways: the joint network, and the two halves that it is split into."""
    net = TASK.summary_network()
    joint = train_npe(TASK.prior, THETA, X, density_estimator=estimator, embedding_net=net, **HOW)
    save_posterior(tmp_path / "joint", joint, density_estimator=estimator)
    loaded, _ = load_posterior(tmp_path / "joint", TASK.prior, embedding_net=TASK.summary_network())
    assert_equal_samples(joint, loaded, X[:1])

    summary, posterior = split_embedding(joint)
    save_posterior(tmp_path / "split", posterior, density_estimator=estimator, summary=summary)
    loaded, loaded_summary = load_posterior(
        tmp_path / "split", TASK.prior, summary_net=TASK.summary_network()
    )
    assert torch.equal(summary(X), loaded_summary(X))
    assert loaded_summary.condition_shape == summary.condition_shape
    assert_equal_samples(posterior, loaded, summary(X[:1]))
    with pytest.raises(ValueError, match=r"summary_net: .* holds a learned summary"):
        load_posterior(tmp_path / "split", TASK.prior)


def test_what_does_not_fit_is_refused(tmp_path):
    posterior = train_npe(TASK.prior, THETA, X.mean(1), density_estimator="mdn", **HOW)
    save_posterior(tmp_path / "npe", posterior, density_estimator="mdn")
    with pytest.raises(ValueError, match="posterior: expected a network with the names and shapes"):
        load_posterior(tmp_path / "npe", TASK.prior, embedding_net=nn.Linear(2, 3))
    with pytest.raises(TypeError, match="expected a DirectPosterior"):
        save_posterior(tmp_path / "no", object(), density_estimator="mdn")
    files = sorted(file.name for file in (tmp_path / "npe").iterdir())
    assert files == ["mindist.json", "tensors.safetensors"]
    assert json.loads((tmp_path / "npe" / "mindist.json").read_text())["kind"] == "NeuralPosterior"


def dump(value, path):
    path.write_bytes(pickle.dumps(value))


class Trace:
    """Leaves a trace when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("save", [torch.save, dump])
def test_pickles_are_run_only_on_trust(save, tmp_path):
    save(Trace(tmp_path / "trace"), tmp_path / "posterior.pkl")
    for trust in (False, "yes", 1):
        with pytest.raises(
            ValueError, match=r"trust: .* is a pickle, and to load one is to run the"
        ):
            load_pickled_posterior(tmp_path / "posterior.pkl", trust=trust)
    assert not (tmp_path / "trace").exists()
    load_pickled_posterior(tmp_path / "posterior.pkl", trust=True)
    assert (tmp_path / "trace").exists()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_pickled_posterior(tmp_path / "none.pkl", trust=True)


@pytest.mark.parametrize("save", [torch.save, dump])
def test_a_trusted_posterior_is_the_posterior(save, tmp_path):
    posterior = train_npe(TASK.prior, THETA, X.mean(1), density_estimator="mdn", **HOW)
    save(posterior, tmp_path / "posterior.pkl")
    loaded = load_pickled_posterior(tmp_path / "posterior.pkl", trust=True)
    assert_equal_samples(posterior, loaded, X[:1].mean(1))
