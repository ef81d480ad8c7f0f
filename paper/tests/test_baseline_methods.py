"""NPE-OR, NPE-RS, NPE-PFN and the variants of MDS on the Gaussian task: what each should show."""

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mindist.tasks import GaussianTask
from mindist_paper.baselines import Options, Simulations, Training, train_method
from mindist_paper.baselines.npe_or import OutlierRemoval
from mindist_paper.baselines.npe_pfn import CHECKPOINT
from mindist_paper.baselines.npe_rs import penalised_loss, trainable_copy
from mindist_paper.evaluation import rmse

TASK = GaussianTask()
WEIGHTS = Path(os.environ.get("MINDIST_TABPFN", CHECKPOINT)).expanduser()
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("tabpfn") is None or not WEIGHTS.is_file(),
    reason="TabPFN or its weights are not there: make tabpfn",
)
# The paper's figure, Gaussian task, NPE-OR, delta 3
ANCHORS = {0.0: 0.124, 0.1: 0.128, 0.2: 0.136, 0.3: 0.142, 0.5: 0.177}
QUICK = Training("mdn", learning_rate=2e-3, max_num_epochs=30)


def simulate(num, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = TASK.sample_prior(num, generator)
    return theta, TASK.simulate(theta, generator=generator)


@pytest.fixture(scope="module")
def simulations():
    return simulate(3_000, 1)


@pytest.fixture(scope="module")
def npe(simulations):
    return train_method("npe", TASK, *simulations, Options(training=QUICK))


@pytest.fixture(scope="module")
def outlier_removal(simulations, npe):
    return train_method("npe-or", TASK, *simulations, Options(npe=npe))


# ------------------------------------------------------------------------------ NPE-OR


def test_npe_or_is_within_20_percent_of_the_anchors(outlier_removal):
    """By the exact posterior mean of what is left."""
    theta, x = simulate(400, 5)
    generator = torch.Generator().manual_seed(6)
    for epsilon, anchor in ANCHORS.items():
        x_obs = TASK.contaminate(x, epsilon, generator=generator)
        mean = TASK.posterior_given_mean(outlier_removal.used_summary(x_obs)).mean
        assert float(rmse(mean, theta).mean()) == pytest.approx(anchor, rel=0.2)


def test_five_percent_of_simulated_observations_are_removed(outlier_removal):
    kept = outlier_removal.inliers(simulate(2_000, 7)[1])
    # The threshold comes from the 5% quantile of 4,000 observations: standard error .0034.
    assert 1 - float(kept.double().mean()) == pytest.approx(0.05, abs=0.012)


def test_cleaned_datasets_hold_the_inliers_and_nothing_else(outlier_removal):
    x = simulate(1, 8)[1]
    x[0, :30] = torch.tensor([30.0, -30.0])
    kept, cleaned = outlier_removal.inliers(x), outlier_removal.cleaned(x)
    assert not kept[0, :30].any()
    assert cleaned.shape == x.shape
    inliers = x[0][kept[0]]
    torch.testing.assert_close(cleaned[0, : len(inliers)], inliers)
    assert all((row == inliers).all(1).any() for row in cleaned[0])
    both = outlier_removal.cleaned(torch.cat([simulate(1, 9)[1], x]))
    torch.testing.assert_close(both[1], cleaned[0])  # not a matter of the batch


def test_where_all_are_outliers_all_are_kept(outlier_removal):
    x = torch.full((2, 100, 2), 50.0)
    x[1] = simulate(1, 8)[1][0]
    assert isinstance(outlier_removal, OutlierRemoval)
    with pytest.warns(UserWarning, match=r"every observation of 1 of 2 datasets .* dataset 0\)"):
        torch.testing.assert_close(outlier_removal.cleaned(x)[0], x[0])


def test_observations_are_pooled_evenly_and_once():
    x = torch.arange(20.0).reshape(4, 5, 1)
    generator = torch.Generator().manual_seed(0)
    for data in (x, list(x.split(3))):
        pooled = Simulations(torch.zeros(4, 1), data).pooled_observations(8, generator)
        assert pooled.shape == (8, 1)
        assert len(pooled.unique()) == 8
        assert torch.equal((pooled.flatten() // 5).long().bincount(), torch.full((4,), 2))


# ------------------------------------------------------------------------------ MDS


@pytest.mark.slow
def test_the_decoder_variant_agrees_with_random_features_and_kl_is_not_robust(simulations, npe):
    theta, x = simulate(40, 5)
    x_obs = TASK.contaminate(x, 0.2, generator=torch.Generator().manual_seed(6))
    error = {}
    for name in ("mds-rf", "mds-dec", "mds-kl", "mds"):
        method = train_method(name, TASK, *simulations, Options(npe=npe))
        mean = TASK.posterior_given_mean(method.used_summary(x_obs)).mean
        error[name] = rmse(mean, theta)
    plain = rmse(TASK.posterior_given_mean(x_obs.mean(1)).mean, theta)
    difference = error["mds-dec"] - error["mds-rf"]
    standard_error = float(difference.std()) / len(difference) ** 0.5
    assert abs(float(difference.mean())) < max(3 * standard_error, 0.02)
    for robust in ("mds", "mds-rf", "mds-dec"):
        assert error[robust].mean() < 0.85 * plain.mean()
    # The likelihood minds the outliers as much as the sample mean does, as the paper says.
    assert error["mds-kl"].mean() == pytest.approx(float(plain.mean()), rel=0.2)
    assert error["mds-kl"].mean() > 1.3 * error["mds-rf"].mean()


# ------------------------------------------------------------------------------ NPE-RS


def test_the_penalty_is_the_mmd_of_summaries(npe):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(200, 2))
    with pytest.raises(ValueError, match="npe: NPE-RS trains the summary"):
        trainable_copy(npe)
    theta, x = simulate(20, 3)
    estimator = npe.posterior.posterior_estimator

    def loss(x_obs, penalty):
        with torch.no_grad():
            return penalised_loss(network, estimator, (theta, x, x_obs), penalty)

    losses = [loss(x, penalty) for penalty in (0.0, 1.0)]
    torch.testing.assert_close(*losses, atol=1e-5, rtol=0)  # the MMD of a sample from itself
    apart = [loss(x + 99, penalty) for penalty in (0.0, 1.0, 3.0)]
    first, second = apart[1] - apart[0], apart[2] - apart[0]
    assert 0.5 < float(first) < 2
    torch.testing.assert_close(second, 3 * first, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_robust_statistics_are_better_than_npe_under_contamination():
    """Both with a learned summary; NPE-RS starts from the NPE that it is compared with."""
    simulations, (theta, x) = simulate(5_000, 1), simulate(100, 5)
    x_obs = TASK.contaminate(x, 0.2, generator=torch.Generator().manual_seed(6))
    options = Options(training=QUICK, learned_summary=True, x_obs=x_obs)
    npe = train_method("npe", TASK, *simulations, options)
    rs = train_method("npe-rs", TASK, *simulations, replace(options, npe=npe))
    plain, robust = (
        rmse(method.sample_batched((300,), x_obs, seed=0).mean(0), theta) for method in (npe, rs)
    )
    gain = plain - robust
    assert float(gain.mean()) > 2 * float(gain.std()) / len(gain) ** 0.5
    clean = rmse(rs.sample_batched((300,), x, seed=0).mean(0), theta)
    assert float(clean.mean()) < 0.115  # the exact posterior: .095


# ------------------------------------------------------------------------------ NPE-PFN


@needs_weights
@pytest.mark.slow
def test_npe_pfn_is_better_with_minimum_distance_summaries(simulations):
    theta, x = simulate(5, 5)
    x_obs = TASK.contaminate(x, 0.3, generator=torch.Generator().manual_seed(6))
    error = {}
    for name in ("npe-pfn", "npe-pfn-mds"):
        method = train_method(name, TASK, *simulations, Options(checkpoint=WEIGHTS))
        samples = method.sample_batched((100,), x_obs, seed=0)
        error[name] = float(rmse(samples.mean(0), theta).mean())
    assert error["npe-pfn-mds"] < error["npe-pfn"]
