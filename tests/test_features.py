import math

import pytest
import torch
from scipy import stats

from mindist.features import (
    FourierFeatures,
    choose_bandwidth,
    gaussian_kernel,
    median_distance,
    mmd_squared,
)
from mindist.features.bandwidth import efficiency_share, parse_bandwidth


def draw(num_features, dim=2, bandwidth=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return FourierFeatures.draw((dim,), num_features, bandwidth=bandwidth, generator=generator)


def test_kernel_and_mmd_have_their_closed_forms():
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    y = torch.tensor([[2.0]], dtype=torch.float64)
    k = lambda d: math.exp(-(d**2) / (2 * 0.5**2))  # noqa: E731
    torch.testing.assert_close(
        gaussian_kernel(x, y, 0.5), torch.tensor([[k(2.0)], [k(1.0)]], dtype=torch.float64)
    )
    biased = (2 + 2 * k(1)) / 4 - 2 * (k(2) + k(1)) / 2 + 1
    assert float(mmd_squared(x, y, 0.5)) == pytest.approx(biased, rel=1e-12)
    both = torch.cat([y, y + 1])
    unbiased = k(1) - 2 * (k(2) + k(3) + k(1) + k(2)) / 4 + k(1)
    assert float(mmd_squared(x, both, 0.5, unbiased=True)) == pytest.approx(unbiased, rel=1e-12)


def test_feature_error_falls_as_one_over_root_k():
    """Root mean squared error at distance d: sqrt((1 + k(2d) - 2 k(d)^2) / K), over 200 draws."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    y = torch.tensor([[1.2, -0.9]], dtype=torch.float64)  # distance 1.5, one bandwidth
    exact, double = math.exp(-0.5), math.exp(-2.0)
    sizes, errors = [32, 128, 512, 2048], []
    for size in sizes:
        products = torch.stack(
            [draw(size, seed=s)(x)[0] @ draw(size, seed=s)(y)[0] for s in range(200)]
        )
        errors.append(float((products - exact).square().mean().sqrt()))
        expected = math.sqrt((1 + double - 2 * exact**2) / size)
        # The root of a mean of 200 squares of normals has relative error 1/sqrt(400) = 5%.
        assert errors[-1] == pytest.approx(expected, rel=0.2)
    slope = (math.log(errors[-1]) - math.log(errors[0])) / math.log(sizes[-1] / sizes[0])
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_sobol_frequencies_are_normal_and_give_a_smaller_error():
    x = torch.zeros(1, 2, dtype=torch.float64)
    y = torch.tensor([[1.2, -0.9]], dtype=torch.float64)
    products, frequencies = [], []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        features = FourierFeatures.draw(
            (2,), 512, bandwidth=1.5, generator=generator, frequencies="sobol"
        )
        products.append(features(x)[0] @ features(y)[0])
        frequencies.append(features.weight[:, 7] * 1.5)  # one column of each draw
    exact = math.exp(-0.5)
    random_error = math.sqrt((1 + math.exp(-2.0) - 2 * exact**2) / 512)
    error = torch.stack(products) - exact
    assert float(error.square().mean().sqrt()) < random_error / 3
    assert abs(float(error.mean())) < 4 * float(error.std()) / 10
    assert stats.kstest(torch.stack(frequencies).flatten().numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize("dim", [3, 16, 65, 300])
def test_orthogonal_frequencies_are_normal_and_give_a_smaller_error(dim):
    """In 16 to K/2 dimensions less than half of that of independent ones."""
    y = torch.ones(1, dim, dtype=torch.float64) * 1.5 / math.sqrt(dim)  # at one bandwidth from 0
    products, frequencies = [], []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        features = FourierFeatures.draw(
            (dim,), 512, bandwidth=1.5, generator=generator, frequencies="orthogonal"
        )
        products.append(features(torch.zeros_like(y))[0] @ features(y)[0])
        frequencies.append(features.weight[:, 7] * 1.5)
    exact = math.exp(-0.5)
    random_error = math.sqrt((1 + math.exp(-2.0) - 2 * exact**2) / 512)
    error = torch.stack(products) - exact
    less = 0.5 if 16 <= dim <= 256 else 1.0
    assert float(error.square().mean().sqrt()) < less * random_error
    assert abs(float(error.mean())) < 4 * float(error.std()) / 10
    assert stats.kstest(torch.stack(frequencies).flatten().numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize(
    ("dim", "kind"), [(64, "sobol"), (65, "orthogonal"), (30_000, "orthogonal")]
)
def test_evenly_spread_frequencies_are_orthogonal_in_many_dimensions(dim, kind):
    even, expected = (
        FourierFeatures.draw(
            (dim,), 20, bandwidth=1.0, generator=torch.Generator().manual_seed(0), frequencies=rule
        ).weight
        for rule in ("sobol", kind)
    )
    assert torch.equal(even, expected)
    gram = even.T @ even
    across = (gram - gram.diagonal().diag()).abs().max() / dim
    assert (float(across) < 1e-12) == (kind == "orthogonal")


def test_mmd_from_features_agrees_with_the_exact_mmd():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 80, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(1, 60, 2, dtype=torch.float64, generator=generator) + 0.7
    exact = float(mmd_squared(x[0], y[0], 1.5))
    estimates = []
    for seed in range(50):
        features = draw(2048, seed=seed)
        estimates.append(float((features.mean(x) - features.mean(y)).square().sum()))
    estimates = torch.tensor(estimates)
    standard_error = float(estimates.std()) / math.sqrt(len(estimates))
    assert float(estimates.mean()) == pytest.approx(exact, abs=4 * standard_error)
    assert float(estimates.std()) < 0.1 * exact


@pytest.mark.parametrize("num_obs", [2, 7, 100, 5_000])
@pytest.mark.parametrize("event_shape", [(), (3,), (5, 4)])
def test_mean_in_chunks_is_the_mean_of_the_features(num_obs, event_shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, num_obs, *event_shape, dtype=torch.float64, generator=generator)
    features = FourierFeatures.draw(event_shape, 64, bandwidth=2.0, generator=generator)
    assert features(x).shape == (3, num_obs, 64)
    torch.testing.assert_close(features.mean(x), features(x).mean(1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        features.mean(x.float()).double(), features.mean(x), rtol=0, atol=1e-5
    )


def test_features_have_unit_norm_and_are_reproducible():
    x = torch.randn(10, 2, dtype=torch.float64)
    torch.testing.assert_close(draw(64)(x).square().sum(-1), torch.ones(10, dtype=torch.float64))
    assert torch.equal(draw(64).weight, draw(64).weight)
    assert not torch.equal(draw(64).weight, draw(64, seed=1).weight)


def test_median_distance_of_normal_observations():
    """Distances of 2-d standard normals are Rayleigh(sqrt(2)): median sqrt(4 ln 2)."""
    x = torch.randn(1_000, 10, 2, generator=torch.Generator().manual_seed(0))
    median = median_distance(x, torch.Generator().manual_seed(0))
    assert median == pytest.approx(math.sqrt(4 * math.log(2)), rel=0.05)
    assert choose_bandwidth("0.5 median", x, torch.Generator().manual_seed(0)) == median / 2
    assert choose_bandwidth(0.3, x, torch.Generator()) == 0.3


@pytest.mark.parametrize("dim", [2, 9, 40])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_median_distance_is_that_of_all_pairs(dim, offset):
    x = torch.randn(30, 5, dim, dtype=torch.float64) + offset
    expected = torch.nn.functional.pdist(x.flatten(0, 1)).median()
    found = median_distance(x, torch.Generator())
    assert found == pytest.approx(float(expected), rel=1e-9)
    x[:25] = x[0, 0]  # the same observation, mostly
    assert median_distance(x, torch.Generator()) == 0.0


def test_an_efficiency_is_read_and_needs_more_than_observations():
    for rule in ("95% efficient", " 95 %efficient ", "95.0% efficient"):
        assert efficiency_share(rule) == 0.95
        assert math.isnan(parse_bandwidth(rule))
    for rule in ("median", "0.5 median", 2.0):
        assert efficiency_share(rule) is None
    with pytest.raises(ValueError, match="bandwidth: expected a positive number"):
        choose_bandwidth("95% efficient", torch.zeros(2, 2, 1), torch.Generator())


@pytest.mark.parametrize(
    "rule",
    [
        *("mean", "-1 median", 0.0, -2.0, float("nan"), float("inf"), "0 median"),
        *("0% efficient", "100% efficient", "-5% efficient", "95 efficient", "efficient"),
    ],
)
def test_bad_bandwidths_are_refused(rule):
    with pytest.raises(ValueError, match="bandwidth: expected a positive number"):
        choose_bandwidth(rule, torch.zeros(2, 2, 1), torch.Generator())
