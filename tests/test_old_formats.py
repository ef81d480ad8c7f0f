"""What older versions of mindist have saved is loaded and gives the values that it gave then."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from mindist import MinimumDistance, RobustPosterior
from mindist.evaluation.cell import BankSpec, Cell, Recipe, TestSpec
from mindist.evaluation.store import Store
from mindist.posteriors.sbi_storage import load_posterior
from mindist.tasks import GaussianTask

V1 = Path(__file__).parent / "fixtures" / "v1"
VALUES = json.loads((V1 / "values.json").read_text(encoding="utf-8"))
TASK = GaussianTask(num_obs=10)
X_OBS = torch.tensor(VALUES["x_obs"])


def assert_close(got, expected):
    torch.testing.assert_close(got.double(), torch.tensor(expected).double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("decoder", ["ridge", "mlp", "flow"])
def test_estimators_of_version_1(decoder):
    mds = MinimumDistance.load(V1 / decoder, summary=TASK.summary)
    result = mds.adapt(X_OBS, force=True)
    for name, expected in VALUES[decoder].items():
        assert_close(getattr(result, name), expected)


def test_posteriors_of_version_1():
    npe, _ = load_posterior(V1 / "posterior", TASK.prior)
    robust = RobustPosterior(npe, MinimumDistance.load(V1 / "ridge", summary=TASK.summary))
    theta = torch.tensor(VALUES["posterior"]["theta"])[:, None].expand(-1, 2, -1)
    assert_close(robust.log_prob_batched(theta, x=X_OBS), VALUES["posterior"]["log_prob"])


def test_results_of_version_1(tmp_path):
    shutil.copytree(V1 / "store", tmp_path / "store")
    store = Store(tmp_path / "store")
    cell = Cell(BankSpec("gaussian", 100), Recipe("npe"), TestSpec(0.1))
    assert cell.address == VALUES["store"]["address"]
    assert store.read(cell).rmse.tolist() == [0.1 + 0.2, 1e-30]
    assert store.read_samples(cell).samples[0].tolist() == VALUES["store"]["samples"]["0"]
