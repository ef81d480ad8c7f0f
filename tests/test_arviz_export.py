"""Posteriors as ArviZ data, of ArviZ 0.23 and 1: groups, values, NetCDF, ArviZ's own plots."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from bridged import TASK, THETA, X, exact, exact_log_prob, mds_of_means
from mindist import RobustPosterior
from mindist.posteriors import CallablePosterior

az = pytest.importorskip("arviz")
plt.switch_backend("Agg")

NAMES = ["growth", "decay"]
OLD = "InferenceData" in vars(az)  # ArviZ 0.23; ArviZ 1 has trees of xarray
GROUPS = {"posterior", "sample_stats", "posterior_predictive", "observed_data", "constant_data"}


@pytest.fixture(scope="module")
def robust() -> RobustPosterior:
    return RobustPosterior(CallablePosterior(exact, exact_log_prob), mds_of_means())


@pytest.fixture(scope="module")
def x_bad():
    x = TASK.simulate(torch.zeros(1, 2), generator=torch.Generator().manual_seed(3))[0]
    return torch.where((torch.arange(30) % 5 == 0)[:, None], 4.0, x)


@pytest.fixture(scope="module")
def data(robust, x_bad):
    return robust.to_arviz(x_bad, 400, names=NAMES, simulator=TASK.simulate, seed=1)


def test_groups_and_values(robust, x_bad, data):
    assert type(data).__name__ == ("InferenceData" if OLD else "DataTree")
    assert set(data.groups() if OLD else data.children) == GROUPS
    samples, result = robust.sample((400,), x_bad, seed=1), robust.adapt(x_bad)
    assert result.adapted
    for column, name in enumerate(NAMES):
        assert data.posterior[name].dims == ("chain", "draw")
        assert np.array_equal(data.posterior[name].values[0], samples[:, column])
    log_p = robust.log_prob(samples, x_bad)
    assert np.allclose(data.sample_stats["lp"].values[0], log_p, atol=1e-5)
    assert np.array_equal(data.observed_data["x"].values, x_bad)
    constants = data.constant_data
    assert np.array_equal(constants["s_obs"].values, result.s_obs)
    assert np.array_equal(constants["s_star"].values, result.s_star)
    assert float(constants["p_value"]) == float(result.p_value)
    assert bool(constants["misspecified"])
    assert np.array_equal(constants["weights"].values, result.weights)
    assert data.posterior.attrs["inference_library"] == "mindist"


def test_the_posterior_predictive_is_simulated_from_the_draws(data):
    x = data.posterior_predictive["x"]
    assert x.dims == ("chain", "draw", "observation", "event_0")
    theta = np.stack([data.posterior[name].values[0] for name in NAMES], -1)
    # The mean of 30 observations with unit variance, each draw from its own theta.
    error = x.values[0].mean(1) - theta
    assert np.abs(error.std(0) - 30**-0.5).max() < 4 * 30**-0.5 / np.sqrt(2 * 400)
    assert np.abs(error.mean(0)).max() < 4 * 30**-0.5 / np.sqrt(400)


def test_a_simulator_of_one_theta_and_a_seed(robust, x_bad):
    def simulator(theta, rng):
        return rng.normal(theta, size=(30, 2))

    def made(seed):
        options = {"simulator": simulator, "seed": seed}
        return robust.to_arviz(x_bad, 5, **options).posterior_predictive["x"].values

    assert np.array_equal(made(1), made(1))
    assert not np.array_equal(made(1), made(2))
    with pytest.raises(ValueError, match=r"simulator: expected a dataset .* expected shape"):
        robust.to_arviz(x_bad, 5, simulator=lambda theta: theta)


def test_before_and_after(robust, x_bad, data):
    before = robust.to_arviz(x_bad, 400, names=NAMES, at="observed", seed=1)
    plain, adapted = (
        np.array([float(made.posterior[name].mean()) for name in NAMES]) for made in (before, data)
    )
    assert np.abs(plain - robust.adapt(x_bad).s_obs.numpy()).max() < 0.1
    assert np.abs(adapted).max() < 0.5 < plain.min()  # the truth is (0, 0)
    assert before.posterior.attrs["queried_at"] == "observed summaries"


def test_batches_have_an_axis_of_datasets(robust):
    data = robust.to_arviz(X[:3], 20, seed=1, simulator=TASK.simulate)
    assert data.posterior["theta_0"].dims == ("chain", "draw", "dataset")
    assert data.constant_data["s_star"].dims == ("dataset", "summary")
    assert data.posterior_predictive["x"].shape == (1, 20, 3, 30, 2)
    expected = robust.sample_batched((20,), X[:3], seed=1)[..., 1]
    assert np.array_equal(data.posterior["theta_1"].values[0], expected)
    summary = az.summary(data, kind="stats")
    assert list(summary.index[:2]) == ["theta_0[0]", "theta_0[1]"]


def test_through_netcdf_and_arvizs_plots(data, tmp_path):
    data.to_netcdf(tmp_path / "posterior.nc")
    loaded = az.from_netcdf(tmp_path / "posterior.nc")
    for group in GROUPS:
        assert loaded[group].equals(data[group]), group
        assert loaded[group].attrs == data[group].attrs
    if OLD:
        drawn = [
            az.plot_posterior(loaded),
            az.plot_pair(loaded, var_names=NAMES),
            az.plot_forest(loaded),
            az.plot_ppc(loaded, num_pp_samples=20, random_seed=0),
            az.plot_trace(loaded),
        ]
        assert all(np.ravel(axes)[0].has_data() for axes in drawn)
    else:
        plots = (az.plot_dist, az.plot_pair, az.plot_forest, az.plot_ppc_dist, az.plot_trace)
        for plot in plots:
            made = plot(loaded, backend="matplotlib").viz["figure"].item()
            assert any(axes.has_data() for axes in made.axes), plot
    assert list(az.summary(loaded, kind="stats").index) == NAMES
    plt.close("all")


def test_default_data_and_wrong_options(robust):
    robust = RobustPosterior(robust.posterior, robust.mds).set_default_x(X[0])
    assert np.array_equal(robust.to_arviz(num_samples=3).observed_data["x"].values, X[0])
    for names in (["a"], ["a", "a"], "ab"):
        with pytest.raises(ValueError, match="names: expected 2 different names"):
            robust.to_arviz(X[0], names=names)
    with pytest.raises(ValueError, match="at: expected one of 'adapted', 'observed'"):
        robust.to_arviz(X[0], at="prior")
    assert len(THETA) == len(X)
