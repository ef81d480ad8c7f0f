"""What older versions of mindist have saved is loaded and gives the values that it gave then."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mindist import MinimumDistance, RobustPosterior, SimulationBank
from mindist.posteriors.sbi_storage import load_posterior
from mindist.tasks import GaussianTask

V1 = Path(__file__).parent / "fixtures" / "v1"
VALUES = json.loads((V1 / "values.json").read_text(encoding="utf-8"))
TASK = GaussianTask(num_obs=10)
X_OBS = torch.tensor(VALUES["x_obs"])


def assert_close(got, expected):
    torch.testing.assert_close(got.double(), torch.tensor(expected).double(), rtol=1e-3, atol=1e-4)


def load(decoder):
    """Load an estimator, which weighed observations, and says that it does not any more."""
    with pytest.warns(UserWarning, match="loaded as the paper's method"):
        return MinimumDistance.load(V1 / decoder, summary=TASK.summary)


@pytest.mark.parametrize("decoder", ["ridge", "mlp", pytest.param("flow", marks=pytest.mark.slow)])
def test_estimators_of_version_1(decoder):
    """They embed and decode as they did; they search as the paper does, without weights."""
    mds, values = load(decoder), VALUES[decoder]
    result = mds.adapt(X_OBS, force=True)
    for name in ("s_obs", "distance_obs"):
        assert_close(getattr(result, name), values[name])
    assert not mds.sorting
    assert (result.objective_star <= result.objective_obs).all()
    # Without weights the distance itself is minimised: no summary of the first edition is nearer.
    assert (result.distance_star <= torch.tensor(values["distance_star"]) + 1e-4).all()


def test_posteriors_of_version_1():
    npe, _ = load_posterior(V1 / "posterior", TASK.prior)
    robust = RobustPosterior(npe, load("ridge"))
    theta = torch.tensor(VALUES["posterior"]["theta"])[:, None].expand(-1, 2, -1)
    s_star = robust.adapt(X_OBS).s_star
    expected = npe.log_prob_batched(theta, x=s_star)
    torch.testing.assert_close(robust.log_prob_batched(theta, x=X_OBS), expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("bank", {"representation": "raw"}), ("bank_with_data", {})],
)
def test_banks_of_version_1(name, settings):
    """They open, hold what they held, and an estimator is fitted to them."""
    bank, values = SimulationBank.open(V1 / name, verify=True), VALUES[name]
    assert bank.complete
    assert bank.report() == values["report"]
    assert [str(failure) for failure in bank.failures] == values["failures"]
    chunks = list(bank.chunks())
    assert [len(chunk.theta) for chunk in chunks] == [8, 8 if name == "bank" else 7, 8]
    for part in ("theta", "s", "z_bar"):
        stored = np.concatenate([getattr(chunk, part) for chunk in chunks])[:, :4]
        np.testing.assert_array_equal(stored, np.float32(values[part]))
    x, s = bank.pilot
    assert torch.equal(x, torch.tensor(values["pilot"]["x"]))
    assert torch.equal(s, torch.tensor(values["pilot"]["s"]))
    if bank.x is not None:
        np.testing.assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), x.numpy())
    mds = MinimumDistance(TASK.summary, num_features=16, alpha=0.5, **settings).fit(bank)
    result = mds.adapt(x[:2] + 3, force=True)
    torch.testing.assert_close(result.s_obs, s[:2] + 3)
    assert result.s_star.isfinite().all()
