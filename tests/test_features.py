"""Kernel, bandwidth, random Fourier features and their means: closed forms, blocks, threads."""

import math
import subprocess
import sys

import pytest
import torch
from scipy import stats

from mindist.features import (
    FourierFeatures,
    choose_bandwidth,
    gaussian_kernel,
    kernel,
    median_distance,
    mmd_squared,
)


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


@pytest.mark.parametrize(
    "rule",
    [
        *("mean", "-1 median", 0.0, -2.0, float("nan"), float("inf"), "0 median"),
        *("95% efficient", "efficient", ""),
    ],
)
def test_bad_bandwidths_are_refused(rule):
    with pytest.raises(ValueError, match="bandwidth: expected a positive number"):
        choose_bandwidth(rule, torch.zeros(2, 2, 1), torch.Generator())


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------------------- means of features


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [1, 3, 40])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_features_without_a_gradient_are_the_same(dtype, dim, scale):
    """Up to the rounding of the phase: eps times its size, and that of the sum of its terms."""
    x, z = (scale * normal(3, 70, dim)).to(dtype), draw(96, dim, 1.5 * math.sqrt(dim))
    exact = z(x.double())
    size = float((x.double().abs() @ z.weight.abs()).max())
    error = torch.finfo(dtype).eps * (4 + 2 * size) * math.sqrt(2 / 96)
    with torch.no_grad():
        plain = z(x)
    assert plain.dtype == z(x).dtype == z.mean(x).dtype == dtype
    for features in (plain, z(x)):
        assert float((features - exact).abs().max()) < error
    assert float((z.mean(x) - exact.mean(1)).abs().max()) < error


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("block", [2**12, 2**14, 2**21])
def test_blocks_and_threads_change_no_mean(monkeypatch, threads, block):
    x, z = normal(7, 333, 3), draw(96, 3)
    expected = z(x).mean(1)
    monkeypatch.setattr("mindist.features.kernel.BLOCK_BYTES", block)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda num: None)
    torch.testing.assert_close(z.mean(x), expected)
    moved = x.permute(1, 0, 2)  # not in the order of memory
    torch.testing.assert_close(z.mean(moved), z(moved).mean(1))
    assert z.mean(x[:0]).shape == (0, 96)


def test_a_long_dataset_loses_no_digits():
    """Of 100,000 float32 waves near 1, summed one after the other, 3 digits would be lost."""
    x, z = 0.01 * normal(1, 100_000, 2, dtype=torch.float32), draw(96)
    error = (z.mean(x) - z.mean(x.double())).abs().max()
    assert float(error) < 2e-7 * math.sqrt(2 / 96)


def test_nan_stays_in_its_dataset():
    x = normal(4, 50, 2, dtype=torch.float32)
    x[1, 7, 0] = math.nan
    assert draw(8).mean(x).isfinite().all(1).tolist() == [True, False, True, True]


def test_features_have_gradients():
    assert torch.autograd.gradcheck(draw(8), (normal(4, 2).requires_grad_(),))


MEMORY = """
import resource, sys, torch
from mindist.features import FourierFeatures
z = FourierFeatures.draw((2,), 512, bandwidth=1.0, generator=torch.Generator())
x = torch.zeros(20_000, 100, 2)
z.mean(x[:1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = z.mean(x)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print((after - before) * unit - output.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_memory_does_not_grow_with_the_number_of_datasets():
    """All phases at once would take 2 GB."""
    command = [sys.executable, "-c", MEMORY]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(run.stdout) < 2**25


# ---------------------------------------------------------------------------- the exact MMD


def sample(size, shift=0.0, seed=0, dim=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, dim, dtype=torch.float64, generator=generator) + shift


def test_several_bandwidths_are_a_sum_of_kernels():
    x, y = sample(7), sample(5, 1.0, seed=1)
    bandwidths = (0.5, 1.0, 3.0)
    torch.testing.assert_close(
        gaussian_kernel(x, y, bandwidths), sum(gaussian_kernel(x, y, b) for b in bandwidths)
    )
    for unbiased in (False, True):
        torch.testing.assert_close(
            mmd_squared(x, y, bandwidths, unbiased=unbiased),
            sum(mmd_squared(x, y, b, unbiased=unbiased) for b in bandwidths),
        )


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("block", [1, 30, 10_000])
def test_blocks_change_nothing(monkeypatch, unbiased, block):
    x, y = sample(53).requires_grad_(), sample(31, 0.5, seed=1)
    expected = mmd_squared(x, y, (0.7, 2.0), unbiased=unbiased)
    (slope,) = torch.autograd.grad(expected, x)
    monkeypatch.setattr(kernel, "BLOCK_VALUES", block)
    value = mmd_squared(x, y, (0.7, 2.0), unbiased=unbiased)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], slope)


def test_a_batch_of_samples_is_a_loop_over_them():
    x = torch.stack([sample(9, seed=i) for i in range(4)])
    y = torch.stack([sample(6, 1.0, seed=9 + i) for i in range(4)])
    expected = torch.stack([mmd_squared(a, b, 1.0) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(mmd_squared(x, y, 1.0), expected)


@pytest.mark.slow
def test_memory_is_bounded(monkeypatch):
    """No tensor is larger than a block of kernel values, whatever the size of the samples."""
    monkeypatch.setattr(kernel, "BLOCK_VALUES", 2**16)
    x = sample(3_000)
    with torch.profiler.profile(profile_memory=True) as profile:
        mmd_squared(x, x, (0.5, 1.0))
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest <= 4 * 8 * 2**16


def test_unbiased_estimates_average_to_the_closed_form():
    """MMD^2 of N(0, I) and N(m, I) in D dimensions: 2 (b / (b + 2))^(D/2) (1 - e^(-m^2/2(b+2)))."""
    bandwidth, shift, size = 1.5, 0.4, 40
    b, m2 = bandwidth**2, 2 * shift**2
    exact = 2 * (b / (b + 2)) * (1 - math.exp(-m2 / (2 * (b + 2))))
    values = torch.stack(
        [
            mmd_squared(
                sample(size, seed=i), sample(size, shift, 10_000 + i), bandwidth, unbiased=u
            )
            for i in range(400)
            for u in (True, False)
        ]
    ).reshape(400, 2)
    error = values.std(0) / 20
    assert abs(values[:, 0].mean() - exact) < 4 * error[0]
    bias = (2 / size) * (1 - b / (b + 2))  # of the diagonal: k(x, x) = 1 instead of E k(x, x')
    assert abs(values[:, 1].mean() - exact - bias) < 4 * error[1]


def test_coinciding_points_have_a_finite_gradient():
    x = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(mmd_squared(x, torch.ones(2, 2).double(), 1.0), x)
    assert torch.isfinite(slope).all()
    assert (slope < 0).all()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"bandwidth: expected positive numbers, got \(\)"):
        mmd_squared(sample(2), sample(2), ())
    with pytest.raises(ValueError, match="bandwidth: expected positive numbers, got -1"):
        gaussian_kernel(sample(2), sample(2), -1.0)
    with pytest.raises(ValueError, match="at least 2 points in each sample, got 1 and 3"):
        mmd_squared(sample(1), sample(3), 1.0, unbiased=True)
