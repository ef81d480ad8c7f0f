"""Compiled loops of detection and of the excess against the tensor operations they stand for."""

import numpy as np
import pytest
import torch

from mindist import MinimumDistance
from mindist.adaptation import noise_loops
from mindist.adaptation.noise import SummaryNoise, positive_excess
from mindist.detection import CombinedTest, ResidualStatistics, mahalanobis, neighbours
from mindist.detection.mahalanobis import Mahalanobis
from mindist.detection.neighbours import Neighbours
from mindist.detection.regression import SummaryRegression
from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num", [0, 1, 3, 30, 1_500])
@pytest.mark.parametrize("width", [1, 6, 37])
def test_squares_of_residuals(num, width, dtype):
    lengths = Mahalanobis.of(draw(200, width))
    residual = draw(num, width, seed=1, dtype=dtype)
    residual[1:2] = 1e-8  # nothing but rounding
    squares = lengths.squares(residual)
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 0.0}
    expected = torch.stack([residual.double().square().sum(1), lengths.squared(residual)])
    torch.testing.assert_close(squares, expected, **tolerance)
    assert (squares[1, 1:2] == 0).all()


def test_squares_with_a_whitener_that_is_not_triangular(monkeypatch):
    residual = draw(3, 20, dtype=torch.float32)
    turned = Mahalanobis(draw(20, 20, seed=2), 100)
    torch.testing.assert_close(turned.squares(residual)[1], turned.squared(residual))
    monkeypatch.setattr(mahalanobis, "MAX_DIRECTIONS", 5)
    leading = Mahalanobis.of(draw(200, 20))
    assert leading.rest
    torch.testing.assert_close(leading.squares(residual)[1], leading.squared(residual))


def test_a_residual_of_nan_stays_nan():
    residual = torch.full((1, 4), torch.nan)
    assert Mahalanobis.of(draw(50, 4)).squares(residual).isnan().all()


def test_the_scale_at_summaries_inside_and_outside_of_the_simulated():
    generator = torch.Generator().manual_seed(0)
    s = draw(500, 2)
    statistics = ResidualStatistics.of(s[:, :1].exp() * draw(500, 8, seed=1), s, generator)
    at = 3 * draw(100, 2, seed=2)
    inside = at.clamp(statistics.low, statistics.high)
    expected = statistics.log_scale(inside).clamp(*statistics.span)[:, 0]
    torch.testing.assert_close(statistics._log_scale(at), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_residuals_of_the_summary_given_the_embedding(dtype):
    z_bar, s = draw(300, 9, dtype=dtype), draw(300, 2, seed=1)
    regression, _ = SummaryRegression.of(z_bar, s)
    standardised = (s - regression.s_centre) / regression.s_scale
    expected = standardised - (z_bar.double() - regression.z_centre) @ regression.weight
    torch.testing.assert_close(regression(z_bar, s), expected, rtol=1e-11, atol=1e-11)
    assert set(regression.state()[1]) == {"z_centre", "s_centre", "s_scale", "weight"}


@pytest.mark.parametrize("levels", [2, 5, 10_000])
def test_combined_p_values_with_and_without_ties(levels):
    statistics = draw(400, 3).mul(levels).round() / levels
    names = ("a", "b", "c")
    null = statistics[:199]  # k * (1 / 200) is not k / 200
    fast, slow = CombinedTest(null, names), CombinedTest(null, names)
    slow.__dict__["_arrays"] = None
    assert fast._arrays is not None
    assert torch.equal(fast.p_value(statistics), slow.p_value(statistics))


@pytest.mark.parametrize("dim", range(1, 9))
def test_the_nearest_points_are_those_of_a_tree_to_the_last_bit(dim, monkeypatch):
    points = draw(600, dim).mul(4).round() / 7  # with ties
    at = torch.cat([points[:40], draw(40, dim, seed=1), 1e200 * torch.ones(1, dim).double()])
    few = torch.cat([Neighbours(points).distance(one[None], 5) for one in at])
    monkeypatch.setattr(neighbours, "FEW", 0)
    assert torch.equal(few, Neighbours(points).distance(at, 5))


def test_a_point_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        Neighbours(draw(10, 2)).distance(torch.tensor([[0.0, torch.nan]]).double(), 1)


@pytest.mark.parametrize("dim", [1, 2, 5, 12])
def test_eigenvectors_by_rotations(dim):
    A = draw(dim, dim)
    A = A + A.T
    turned, vectors = A.numpy().copy(), np.empty((dim, dim))
    noise_loops.eigen(turned, vectors)
    values = np.sort(turned.diagonal())
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.numpy()), atol=1e-13)
    np.testing.assert_allclose(vectors @ np.diag(turned.diagonal()) @ vectors.T, A, atol=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_the_excess_of_covariances(dim):
    s, deviation = draw(200, dim), 0.3 * draw(200, 16, dim, seed=1)
    if dim > 2:
        deviation[..., 1], deviation[..., 2] = deviation[..., 0], 0.0  # a copy, and a constant
    noise = SummaryNoise(s, deviation, s.std(0), s.amin(0), s.amax(0))
    half, at = draw(40, dim, dim, seed=2), draw(40, dim, seed=3)
    C = half @ half.mT
    C[0], C[1] = torch.nan, 0.0
    expected = positive_excess(C, noise.covariance(at))
    torch.testing.assert_close(noise.excess(at, C), expected, rtol=1e-9, atol=1e-12)
    assert (expected[:2] == 0).all()
    assert list(noise.to(torch.device("cpu")).state()) == list(noise.__dataclass_fields__)


@pytest.mark.parametrize("dim", [2, 12])
@pytest.mark.parametrize("num_obs", [1, 7, 3_000])
def test_two_kernels_are_embedded_at_once_as_one_by_one(dim, num_obs):
    kernels = [
        FourierFeatures.draw((dim,), 700, bandwidth=b, generator=torch.Generator().manual_seed(3))
        for b in (2.0, 0.5)
    ]
    x = draw(2, num_obs, dim, dtype=torch.float32)
    expected = torch.cat([z.mean(x) for z in kernels], dim=1)
    embedding = Embedding(kernels[0], kernels[1], None)
    torch.testing.assert_close(embedding.mean(x), expected, rtol=0, atol=1e-6)
    assert embedding._turns is not None


def test_detection_and_adaptation_see_the_same_decoded_embedding():
    x = draw(600, 20, 2, dtype=torch.float32)
    mds = MinimumDistance(lambda x: x.mean(1), num_features=16, bandwidth=1.0).fit(x)
    fitted, few = mds.fitted_, x[:5] + 0.3
    s, z_bar = few.mean(1), fitted.embedding.mean(few)
    judged = fitted.judge(s, z_bar, 20)
    torch.testing.assert_close(judged.mu, fitted.decoder(s.double()))
    wide = fitted.embedding.split(z_bar)[0]
    torch.testing.assert_close(judged.distance, (wide - judged.mu).square().sum(1))
    assert torch.equal(mds.detect(few).p_value, judged.p_value)
    one_by_one = torch.stack([mds.detect(one).p_value for one in few])
    assert torch.equal(one_by_one, judged.p_value)
