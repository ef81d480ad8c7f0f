"""What only BayesFlow's bridge has: adapters, kinds of networks, autograd, files, refusals."""

import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch

from bridged import TASK, THETA, X, mds_of_means, mean, simulate, train_workflow, workflow
from mindist import MinimumDistance, RobustPosterior

pytest.importorskip("bayesflow")

import bayesflow
import keras

from mindist.posteriors.bayesflow_bridge import (
    bridge,
    learned_summary,
    load_posterior,
    save_posterior,
)


@pytest.fixture(scope="module")
def mds() -> MinimumDistance:
    return mds_of_means()


@pytest.fixture(scope="module")
def learned():
    return train_workflow(learned=True, epochs=1)


def quick(network, adapter=None, **options):
    made = bayesflow.BasicWorkflow(
        inference_network=network, adapter=adapter, standardize="all", **options
    )
    s, positive = mean(X).numpy(), np.exp(THETA.numpy())
    data = {"a": positive[:, :1], "b": positive[:, 1:], "s": s, "t": s[:, :1], "u": s[:, 1:]}
    made.fit_offline({k: v[:200] for k, v in data.items()}, epochs=1, batch_size=100, verbose=0)
    return made


def flow():
    return bayesflow.networks.CouplingFlow(depth=1, subnet_kwargs={"widths": (8,)})


def test_the_version_whose_private_side_is_used():
    """`get_build_config`, `sampler.repeat_and_flatten_conditions`, `standardizer`, adapters."""
    assert version("bayesflow") == "2.0.12"
    assert keras.backend.backend() == "torch"


# ------------------------------------------------------------------------------ adapters


def test_adapters_that_transform_and_join_variables(mds):
    """Parameters in logs, two of them, and a summary in two parts: names, order, Jacobians."""
    adapter = (
        bayesflow.Adapter()
        .convert_dtype("float64", "float32")
        .log(["a", "b"])
        .drop("s")
        .concatenate(["b", "a"], into="inference_variables")
        .concatenate(["t", "u"], into="inference_conditions")
    )
    made = quick(flow(), adapter)
    robust = RobustPosterior(made, mds)
    assert robust.parameter_names == ("b", "a")
    x = X[:1]
    s = robust.adapt(x[0]).s_star.numpy()[None]
    expected = made.sample(num_samples=30, conditions={"t": s[:, :1], "u": s[:, 1:]}, seed=2)
    theta = robust.sample((30,), x[0], seed=2)
    assert (theta > 0).all()
    for column, name in enumerate(("b", "a")):
        assert np.array_equal(theta[:, column].numpy(), expected[name][0, :, 0].astype("f4"))
    rows = {"a": theta[:, 1:].numpy(), "b": theta[:, :1].numpy()}
    parts = {"t": s[:, :1].repeat(30, 0), "u": s[:, 1:].repeat(30, 0)}
    log_p = torch.as_tensor(made.log_prob({**rows, **parts}))
    torch.testing.assert_close(robust.log_prob(theta, x[0]), log_p.float(), atol=1e-4, rtol=1e-4)


def test_a_consistency_model_can_be_sampled_only(mds):
    network = bayesflow.networks.ConsistencyModel(total_steps=10, subnet_kwargs={"widths": (8,)})
    made = quick(network, inference_variables=["a", "b"], inference_conditions=["s"])
    robust = RobustPosterior(made, mds)
    s = robust.adapt(X[0]).s_star.numpy()[None]
    expected = made.sample(num_samples=5, conditions={"s": s}, seed=2)
    theta = robust.sample((5,), X[0], seed=2)
    both = np.concatenate([expected["a"][0], expected["b"][0]], -1)
    assert np.array_equal(theta.numpy(), both.astype("f4"))
    with pytest.raises(NotImplementedError, match="no density for a ConsistencyModel"):
        robust.log_prob(theta, X[0])
    pytest.importorskip("arviz")
    assert "sample_stats" not in robust.to_arviz(X[0], 10)


# ------------------------------------------------------------------------------ learned


def test_the_learned_summary_is_bayesflows_and_frozen(learned):
    summary = learned_summary(learned)
    before = learned.approximator.summarize({"x": X[:7].numpy()})
    assert np.array_equal(summary(X[:7]).numpy(), before)
    assert torch.equal(summary(X[:7].double().numpy()), summary(X[:7]))
    assert not summary(X[:7]).requires_grad
    shuffled = X[:7, torch.randperm(30)]
    torch.testing.assert_close(summary(shuffled), summary(X[:7]), atol=1e-4, rtol=1e-4)
    weights = learned.approximator.get_weights()
    learned.approximator.set_weights([w + 0.1 for w in weights])
    assert np.array_equal(summary(X[:7]).numpy(), before)
    learned.approximator.set_weights(weights)


def test_large_data_are_summarised_in_parts(learned, monkeypatch):
    summary = learned_summary(learned)
    whole = summary(X[:10])
    monkeypatch.setattr("mindist.posteriors.bayesflow_bridge.MAX_NUMBERS", 3 * 60)
    torch.testing.assert_close(summary(X[:10]), whole, atol=1e-5, rtol=1e-5)


def test_the_version_follows_the_weights(learned):
    backend = bridge(learned)
    before = backend.version
    learned.approximator.set_weights(learned.approximator.get_weights())
    assert backend.version != before


# ------------------------------------------------------------------------------ files


def test_what_keras_saves_can_be_wrapped(learned, tmp_path):
    learned.approximator.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")  # safe_mode is on by default
    mds = MinimumDistance(learned_summary(loaded), num_features=32, sorting=False).fit(X[:400])
    a, b = (RobustPosterior(p, mds).sample((20,), X[0], seed=1) for p in (loaded, learned))
    assert torch.equal(a, b)


def test_weights_fit_only_a_workflow_like_the_saved_one(learned, tmp_path):
    save_posterior(tmp_path / "learned", learned)
    files = sorted(file.name for file in (tmp_path / "learned").iterdir())
    assert files == ["mindist.json", "tensors.safetensors"]
    with pytest.raises(ValueError, match="expected a workflow made like the one"):
        load_posterior(tmp_path / "learned", workflow(learned=False))
    other = bayesflow.BasicWorkflow(
        inference_network=flow(),
        summary_network=bayesflow.networks.DeepSet(summary_dim=2, depth=1),
        inference_variables=["theta"],
        summary_variables=["x"],
        standardize="all",
    )
    with pytest.raises(ValueError, match="expected a workflow made like the one"):
        load_posterior(tmp_path / "learned", other)
    with pytest.raises(ValueError, match="not built"):
        save_posterior(tmp_path / "none", workflow(learned=False))


# ------------------------------------------------------------------------------ refusals


def test_what_cannot_be_asked_is_refused(mds, learned):
    with pytest.raises(ValueError, match="got one that is not built"):
        RobustPosterior(workflow(learned=False), mds)
    over_s = quick(flow(), inference_variables=["a", "b"], inference_conditions=["s"])
    with pytest.raises(ValueError, match="without: it was trained on summaries"):
        learned_summary(over_s)
    with pytest.raises(TypeError, match="expected a BayesFlow workflow or approximator"):
        RobustPosterior(bayesflow.Adapter(), mds)
    with pytest.raises(ValueError, match="device: this posterior computes on cpu"):
        RobustPosterior(learned, mds).queries.backend.to(torch.device("meta"))
    small = MinimumDistance(learned_summary(learned), num_features=32, sorting=False).fit(X[:400])
    robust = RobustPosterior(learned, small)
    with pytest.raises(ValueError, match="got 'prior'"):
        robust.map(X[0], init_method="prior")


# ------------------------------------------------------------------------------ autograd

SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import torch
import mindist.posteriors.bayesflow_bridge
assert torch.is_grad_enabled()          # our import leaves it as it was
import importlib, bayesflow
importlib.reload(bayesflow)             # what a user's own import does
assert not torch.is_grad_enabled()
from torch.distributions import Independent, Normal
from mindist import MinimumDistance, RobustPosterior, Search
from mindist.decoders import FlowDecoder, MLPDecoder
from mindist.posteriors.sbi_bridge import split_embedding, train_npe
from mindist.tasks import GaussianTask

task, g = GaussianTask(num_obs=20), torch.Generator().manual_seed(0)
theta = task.sample_prior(400, g)
x = task.simulate(theta, generator=g)
bad = x[0].clone()
bad[::4] = 4.0
few = {"num_features": 32}
for decoder, search in (
    (MLPDecoder(max_epochs=1), Search(solver="lbfgs")),
    ("ridge", Search(solver="gradient-descent")),
    (FlowDecoder(max_epochs=1), Search(solver="adam", divergence="kl")),
):
    mds = MinimumDistance(task.summary, decoder=decoder, search=search, **few).fit(x)
    mds.adapt(bad, force=True)
how = {"density_estimator": "mdn", "max_num_epochs": 2}
npe = train_npe(task.prior, theta, x, embedding_net=task.summary_network(), **how)
summary, over_s = split_embedding(npe)
robust = RobustPosterior(over_s, MinimumDistance(summary, **few).fit(x))
robust.map(bad, num_iter=3, num_to_optimize=2)
point = torch.zeros(1, 2, requires_grad=True)
robust.log_prob(point, bad, track_gradients=True).backward()
assert point.grad.abs().sum() > 0
assert not torch.is_grad_enabled()      # and the user's setting is left alone
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(1_800)  # 20 s on an idle machine; it has timed out on a loaded one
def test_mindist_works_with_autograd_turned_off_by_bayesflow(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert run.stdout.strip().endswith("done"), run.stderr[-3_000:]


def test_adaptation_does_not_depend_on_autograd(mds):
    x = TASK.contaminate(simulate(3, seed=9)[1], 0.3, generator=torch.Generator().manual_seed(0))
    with torch.enable_grad():
        on = mds.adapt(x)
    with torch.no_grad():
        off = mds.adapt(x)
    torch.testing.assert_close(on.s_star, off.s_star)
