"""What the embedding says of the summary, as a test statistic."""

import pytest
import torch

from exact_models import normal
from mindist import MinimumDistance
from mindist.detection import statistics as module
from mindist.detection.statistics import SummaryRegression


@pytest.fixture(scope="module")
def sample():
    """Summaries that are linear in five of six coordinates, in other units, and one constant."""
    z = normal(80, 6, seed=1) * torch.tensor([1.0, 0.5, 2.0, 1.0, 0.1, 1.0]).double() + 3
    noise = 0.3 * normal(80, 2, seed=2)
    s = z[:, :5] @ normal(5, 2, seed=3) + noise
    return z, torch.cat([s * torch.tensor([1.0, 1e4]).double(), torch.ones(80, 1).double()], 1)


def test_left_out_residuals_are_those_of_regressions_without_each(sample, monkeypatch):
    z, s = sample
    monkeypatch.setattr(module, "STRENGTHS", (0.05,))
    regression, left_out = SummaryRegression.of(z, s)
    centred = z - z.mean(0)
    penalty = 0.05 * torch.linalg.eigvalsh(centred.T @ centred)[-1] * torch.eye(6).double()
    for i in (0, 17, 79):
        rest = torch.arange(80) != i
        mean_z, mean_s = z[rest].mean(0), s[rest].mean(0)
        Z, S = z[rest] - mean_z, s[rest] - mean_s
        B = torch.linalg.solve(Z.T @ Z + penalty, Z.T @ S)
        expected = (s[i] - mean_s - (z[i] - mean_z) @ B) / regression.s_scale
        torch.testing.assert_close(left_out[i], expected)
    torch.testing.assert_close(left_out[:, 2], torch.zeros(80).double())


def test_the_strength_has_the_least_left_out_error(sample):
    z, s = sample
    _, chosen = SummaryRegression.of(z, s[:, :2])
    errors = []
    for strength in module.STRENGTHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "STRENGTHS", (strength,))
            errors.append(float(SummaryRegression.of(z, s[:, :2])[1].square().mean(0).log().mean()))
    assert float(chosen.square().mean(0).log().mean()) == min(errors)


def test_more_features_than_simulations_and_constant_embeddings():
    z, s = normal(30, 100), normal(30, 2, seed=1)
    _, left_out = SummaryRegression.of(z, s)
    assert torch.isfinite(left_out).all()
    _, alone = SummaryRegression.of(torch.ones(30, 4), s)
    mean = s.mean(0)
    scale = s.std(0, unbiased=False)
    torch.testing.assert_close(alone, (s - mean) / scale * 30 / 29)


def test_a_summary_that_the_embedding_contradicts_is_found():
    """The largest of a hundred moves with one observation, the embedding hardly."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(2_100, 1, 1, generator=generator)
    x = theta + torch.randn(2_100, 100, 1, generator=generator)
    mds = MinimumDistance(lambda x: torch.cat([x.mean(1), x.square().mean(1)], 1), num_features=64)
    mds.fit(x[:2_000])
    detector = mds.fitted_.detector
    assert detector.test.names[-1] == "regressed summary"
    assert detector.other_test.names == detector.test.names[:-1]
    x_obs = x[2_000:].clone()
    clean = mds.detect(x_obs).misspecified.double().mean()
    x_obs[:, 0] = 40.0
    assert clean < 0.15 < 0.95 < mds.detect(x_obs).misspecified.double().mean()
    assert mds.detect(x_obs[:, :60]).misspecified.all()  # of another size: without the regression
