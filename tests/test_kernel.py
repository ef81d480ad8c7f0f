"""The exact MMD: several bandwidths, blocks, gradients, and what it is for Gaussians."""

import math

import pytest
import torch

from mindist.features import gaussian_kernel, kernel, mmd_squared


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
