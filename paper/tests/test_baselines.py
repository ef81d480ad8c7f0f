"""One contract over all methods: how they are trained, queried, repeated, and refused."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from mindist.tasks import GaussianTask
from mindist_paper.baselines import METHODS, Method, Options, Training, train_method
from mindist_paper.baselines.npe_pfn import CHECKPOINT

TASK = GaussianTask(num_obs=20)
QUICK = Training("mdn", learning_rate=2e-3, max_num_epochs=3)
WEIGHTS = Path(os.environ.get("MINDIST_TABPFN", CHECKPOINT)).expanduser()
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("tabpfn") is None or not WEIGHTS.is_file(),
    reason="TabPFN or its weights are not there: make tabpfn",
)

MARKS = {
    "mds-dec": pytest.mark.slow,
    "mds-kl": pytest.mark.slow,
    "npe-pfn": (needs_weights, pytest.mark.slow),
    "npe-pfn-mds": (needs_weights, pytest.mark.slow),
}


def simulate(num, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = TASK.sample_prior(num, generator)
    return theta, TASK.simulate(theta, generator=generator)


THETA, X = simulate(1_000, 0)
X_OBS = TASK.contaminate(simulate(3, 1)[1], 0.3, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def npe():
    return train_method("npe", TASK, THETA, X, Options(training=QUICK, learned_summary=True))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name, ())) for name in METHODS],
)
def method(request, npe):
    if "pfn" in request.param:  # the cost of a query grows with its context
        return train_method(request.param, TASK, THETA[:400], X[:400])
    options = Options(training=QUICK, x_obs=X_OBS, npe=npe)
    return train_method(request.param, TASK, THETA, X, options)


@pytest.mark.filterwarnings("ignore:The chains of latent summaries disagree")
def test_every_method_keeps_the_contract(method):
    assert isinstance(method, Method)
    state = torch.get_rng_state()
    samples = method.sample_batched((5, 2), X_OBS, seed=1)
    assert samples.shape == (5, 2, 3, 2)
    assert torch.isfinite(samples).all()
    torch.testing.assert_close(method.sample_batched((5, 2), X_OBS, seed=1), samples)
    assert not torch.equal(method.sample_batched((5, 2), X_OBS, seed=2), samples)
    assert torch.equal(state, torch.get_rng_state())
    assert method.sample((4,), X_OBS[0], seed=1).shape == (4, 2)
    assert method.sample((4,), X_OBS[:1].numpy(), seed=1).shape == (4, 2)
    with pytest.raises(ValueError, match=r"x: expected one dataset .* got a batch of 3"):
        method.sample((4,), X_OBS)
    with pytest.raises(ValueError, match="x: expected finite observations"):
        method.sample((4,), torch.full((20, 2), torch.nan))
    used = method.used_summary(X_OBS)
    assert used is None or used.shape == (3, 2)
    if used is not None:
        torch.testing.assert_close(method.used_summary(X_OBS), used)
        assert method.used_summary(X_OBS[0]).shape == (1, 2)


def test_given_summaries_are_used_as_they_are():
    """NPE on the task's summaries trains on those that were handed over."""
    options = Options(training=QUICK)
    given = train_method("npe", TASK, THETA, X, options, s=TASK.summary(X))
    chunks = train_method("npe", TASK, THETA, list(X.split(300)), options)
    first, second = (m.sample_batched((3,), X_OBS, seed=0) for m in (given, chunks))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(given.used_summary(X_OBS), X_OBS.mean(1))


def test_bad_requests_are_refused(npe):
    with pytest.raises(ValueError, match=r"name: expected one of 'npe', 'nnpe', .*, got 'abc'"):
        train_method("abc", TASK, THETA, X)
    with pytest.raises(ValueError, match="x: expected one entry for each of the 1000 parameters"):
        train_method("npe", TASK, THETA, X[:10])
    with pytest.raises(ValueError, match="x_obs: NPE-RS is trained for the observed datasets"):
        train_method("npe-rs", TASK, THETA, X, Options(npe=npe))
    with pytest.raises(ValueError, match="penalty: expected lambda of at least 0, got -1"):
        train_method("npe-rs", TASK, THETA, X, Options(npe=npe, x_obs=X_OBS, penalty=-1.0))


def test_missing_libraries_are_named_with_their_extra(monkeypatch, npe, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.svm", None)
    with pytest.raises(ImportError, match=r"scikit-learn.*pip install 'mindist\[baselines\]'"):
        train_method("npe-or", TASK, THETA, X, Options(npe=npe))
    find_spec = importlib.util.find_spec
    for found, error, message in (
        (None, ImportError, r"pip install 'mindist\[pfn\]'"),
        (object(), FileNotFoundError, "`make tabpfn`"),
    ):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest, found=found: found if name == "tabpfn" else find_spec(name, *rest),
        )
        with pytest.raises(error, match=message):
            train_method("npe-pfn", TASK, THETA, X, Options(checkpoint=tmp_path / "none.ckpt"))
