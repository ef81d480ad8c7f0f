import math

import pytest
import torch

from exact_models import LocationDecoder, features, normal
from mindist.adaptation.weights import (
    LEAST_MASS,
    Fit,
    Observations,
    OwnKernel,
    copies,
    multiplicity,
)
from mindist.features.embedding import Embedding

FAR = torch.tensor([6.0, -6.0]).double()
ZERO = torch.zeros(1, 2).double()


def kernel(a, b, bandwidth):
    return math.exp(-float((a - b).square().sum()) / (2 * bandwidth**2))


def own_density(x, bandwidth):
    return OwnKernel(x, bandwidth).density(torch.ones(x.shape[:2]).double())


def through_kernel(x, bandwidth, value):
    return OwnKernel(x, bandwidth).through(value)


def fit_of(density, own, mass, error=0.0):
    values = (density, own, [mass], [error])
    tensors = [torch.tensor(value).double() for value in values]
    density, own = tensors[0][None], tensors[1][None]
    return Fit(density, own, torch.ones_like(own), *tensors[2:])


# ---------------------------------------------------------------------------- the data's density


def test_own_density_is_the_mean_kernel():
    x, bandwidth = normal(3, 30, 2), 0.8
    expected = torch.tensor(
        [[sum(kernel(a, b, bandwidth) for b in data) / 30 for a in data] for data in x],
        dtype=torch.float64,
    )
    torch.testing.assert_close(own_density(x, bandwidth), expected, rtol=1e-12, atol=0)


def test_own_density_of_many_is_over_every_third_and_the_one_itself(monkeypatch):
    """10 observations, at most 4 of them: 0, 3, 6 and 9."""
    monkeypatch.setattr("mindist.adaptation.weights.MAX_OWN", 4)
    x = normal(2, 10, 2)
    expected = torch.empty(2, 10).double()
    for b, data in enumerate(x):
        for n in range(10):
            seen = sorted({0, 3, 6, 9, n})
            expected[b, n] = sum(kernel(data[n], data[m], 0.8) for m in seen) / len(seen)
    torch.testing.assert_close(own_density(x, 0.8), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("limit", [4, 1_000])
def test_own_density_does_not_depend_on_blocks(monkeypatch, limit):
    monkeypatch.setattr("mindist.adaptation.weights.MAX_OWN", limit)
    x = normal(5, 10, 2)
    at_once = own_density(x, 0.8)
    monkeypatch.setattr("mindist.adaptation.weights.BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(own_density(x, 0.8), at_once, rtol=1e-14, atol=0)


def test_own_density_of_nothing_and_of_one():
    assert own_density(normal(0, 4, 2), 1.0).shape == (0, 4)
    assert own_density(normal(1, 1, 2), 1.0).tolist() == [[1.0]]


def test_an_observation_far_from_all_has_its_own_kernel_only():
    x = normal(1, 50, 2)
    x[0, 0] = 1e6
    assert own_density(x, 1.0)[0, 0].item() == pytest.approx(1 / 50, rel=1e-12)


def test_own_density_does_not_depend_on_where_zero_is():
    x = normal(1, 50, 1)
    moved = x + 2.0**26
    exact = [[sum(kernel(a, b, 0.5) for b in moved[0]) / 50 for a in moved[0]]]
    expected = torch.tensor(exact, dtype=torch.float64)
    torch.testing.assert_close(own_density(moved, 0.5), expected, rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------- weight and score


def test_weights_and_scores_are_ratios_of_densities():
    """a p_s / p, clipped; p / (p + a p_s): at a mass of 0.5, below the threshold."""
    fit = fit_of([0.4, 0.1, 3.0, -0.1], [0.5, 0.4, 0.5, 0.5], mass=0.5)
    expected = torch.tensor([[0.5 * 0.4 / 0.5, 0.5 * 0.1 / 0.4, 1.0, 0.0]]).double()
    torch.testing.assert_close(fit.weight(0.9), expected)
    score = torch.tensor([[0.5 / 0.7, 0.4 / 0.45, 0.5 / 2.0, 1.0]]).double()
    torch.testing.assert_close(fit.score(0.9), score)


def test_a_mass_counts_only_below_the_threshold():
    fit = fit_of([0.4], [0.5], mass=0.8)
    assert fit.used_mass(0.9).item() == pytest.approx(0.8)
    assert fit.weight(0.9).item() == pytest.approx(0.64)
    for threshold in (0.8, 0.5):  # not below
        assert fit.used_mass(threshold).item() == 1
        assert fit.weight(threshold).item() == pytest.approx(0.8)
        assert fit.score(threshold).item() == pytest.approx(0.5 / 0.9)


@pytest.mark.parametrize(
    ("mass", "used", "epsilon"), [(-0.2, LEAST_MASS, 1), (0.01, LEAST_MASS, 0.99), (1.1, 1, 0)]
)
def test_a_mass_is_kept_within_bounds(mass, used, epsilon):
    fit = fit_of([0.4], [0.5], mass)
    assert fit.used_mass(2.0).item() == pytest.approx(used)
    assert fit.epsilon.item() == pytest.approx(epsilon)


# ---------------------------------------------------------------------------- observations


@pytest.mark.parametrize("narrow", [None, 0.5])
def test_observations_hold_features_and_density(narrow):
    wide = features((2,), 16, 1.5)
    local = None if narrow is None else features((2,), 8, narrow)
    x = normal(3, 7, 2)
    seen = Observations.of(Embedding(wide, local, None), x)
    torch.testing.assert_close(seen.wide, wide(x))
    torch.testing.assert_close(seen.local, wide(x) if local is None else local(x))
    torch.testing.assert_close(seen.own, own_density(x, narrow or 1.5))
    assert seen[torch.arange(3)] is seen
    some = seen[torch.tensor([2, 0])]
    ones = torch.ones(2, 7).double()
    torch.testing.assert_close(some.kernel.density(ones), seen.own[[2, 0]])
    torch.testing.assert_close(some.wide, wide(x)[[2, 0]])
    torch.testing.assert_close(some.own, seen.own[[2, 0]])


def test_the_weighted_mean_is_that_of_the_features():
    seen = Observations.of(Embedding(features((2,), 16, 1.5), None, None), normal(3, 7, 2))
    weight = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)).double()
    expected = torch.stack(
        [sum(weight[b, n] * seen.wide[b, n] for n in range(7)) / weight[b].sum() for b in range(3)]
    )
    torch.testing.assert_close(seen.mean(weight), expected)
    torch.testing.assert_close(seen.mean(3 * weight), expected)
    assert not seen.mean(0 * weight).any()


def test_mass_and_error_are_those_of_a_regression():
    """a = argmin |a mu - z_bar|^2; the error is that of a mean of N numbers."""
    seen = Observations.of(Embedding(features((2,), 16, 1.5), None, None), normal(3, 7, 2))
    mu = normal(3, 16, seed=1)
    fit = seen.fit(mu)
    for b in range(3):
        a = torch.linalg.lstsq(mu[b][:, None], seen.local[b].mean(0)[:, None]).solution
        assert fit.mass[b].item() == pytest.approx(a.item())
        single = seen.local[b] @ mu[b] / (mu[b] @ mu[b])
        error = single.std(correction=0) / math.sqrt(7)
        assert fit.error[b].item() == pytest.approx(error.item())
    torch.testing.assert_close(fit.density, (seen.local * mu[:, None]).sum(2))


def test_the_models_density_is_the_smoothed_gaussian():
    """E k(x, X) = (1 + 1/h^2)^-1 exp(-|x|^2 / 2 (h^2 + 1)) for X ~ N(0, I) in the plane."""
    z, h2 = features((2,), 1_024, 0.7), 0.7**2
    x = 1.5 * normal(1, 50, 2)
    density = Observations.of(Embedding(z, None, None), x).fit(LocationDecoder(z)(ZERO)).density
    exact = torch.exp(-x.square().sum(2) / (2 * (h2 + 1))) / (1 + 1 / h2)
    torch.testing.assert_close(density, exact, rtol=0, atol=0.02)


def contaminated(num, num_obs, epsilon, seed, spread=0.0):
    """Datasets from N(0, I), each observation at FAR instead with probability epsilon."""
    x = normal(num, num_obs, 2, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    replaced = torch.rand(num, num_obs, generator=generator) < epsilon
    far = FAR + spread * normal(num, num_obs, 2, seed=seed + 2)
    return torch.where(replaced[..., None], far, x), replaced


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_the_mass_is_the_clean_fraction_and_its_error_the_spread(epsilon):
    num, num_obs = 400, 100
    z = features((2,), 256, 0.8)
    mu = LocationDecoder(z)(ZERO)
    x, _ = contaminated(num, num_obs, epsilon, seed=3)
    fit = Observations.of(Embedding(z, None, None), x).fit(mu.expand(num, -1))
    overlap = float(z(FAR) @ mu[0] / mu[0].square().sum())  # of the kernel at FAR; the features'
    assert abs(overlap) < 0.1
    spread = fit.mass.std().item()
    expected = 1 - epsilon + epsilon * overlap
    assert fit.mass.mean().item() == pytest.approx(expected, abs=3.5 * spread / math.sqrt(num))
    assert fit.error.mean().item() == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize(("epsilon", "level"), [(0.0, 0.9), (0.2, 0.8)])
def test_clean_observations_weigh_one_and_a_far_cluster_nothing(epsilon, level):
    z = features((2,), 512, 0.8)
    x, replaced = contaminated(20, 300, epsilon, seed=5, spread=0.2)
    fit = Observations.of(Embedding(z, None, None), x).fit(LocationDecoder(z)(ZERO).expand(20, -1))
    weight, score = fit.weight(0.93), fit.score(0.93)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert weight[~replaced].mean() > level
    if epsilon:
        assert weight[replaced].max() < 0.1
        assert score[replaced].min() > 0.9
        assert score[~replaced].median() == pytest.approx(0.5, abs=0.05)


# ---------------------------------------------------------------------------- copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_multiplicity_counts_equal_rows_of_each_dataset(dtype):
    """Values that differ in few bits: signs, small integers, powers of two."""
    values = torch.tensor([-3, 3, 0, 1, 2, 4, -4, 8])
    generator = torch.Generator().manual_seed(0)
    x = values[torch.randint(len(values), (50, 30, 2), generator=generator)].to(dtype)
    expected = (x[:, :, None] == x[:, None]).all(-1).sum(2)
    assert torch.equal(multiplicity(x), expected)
    assert multiplicity(x[:0]).shape == (0, 30)


def test_copies_count_once_but_rounded_data_count_as_they_are():
    x = normal(2, 100, 2)
    x[0, :30] = x[0, 0]
    x[1] = x[1].round(decimals=0)
    assert copies(x).tolist() == [[30] * 30 + [1] * 70, [1] * 100]


def test_a_dataset_with_copies_is_seen_as_one_without(monkeypatch):
    embedding = Embedding(features((2,), 16, 1.5), features((2,), 16, 0.7, seed=1), None)
    x = normal(1, 80, 2)
    x[0, 50:] = x[0, 3]
    seen, once = Observations.of(embedding, x, distinct=True), Observations.of(embedding, x[:, :50])
    exact = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(seen.own[:, :50], once.own, **exact)
    ones = torch.ones(1, 50).double()
    torch.testing.assert_close(seen.mean(seen.share), once.mean(ones), **exact)
    torch.testing.assert_close(seen.local_mean(), once.local_mean(), **exact)
    mu = LocationDecoder(embedding.local)(ZERO)
    fit, expected = seen.fit(mu), once.fit(mu)
    torch.testing.assert_close(fit.mass, expected.mass, **exact)
    torch.testing.assert_close(fit.error, expected.error, **exact)
    weight, total = fit.weight(2.0), expected.weight(2.0)
    torch.testing.assert_close(weight.sum(1), total.sum(1), **exact)
    plain, counted = Observations.of(embedding, x), seen.all_counted()
    torch.testing.assert_close(counted.own, plain.own, **exact)
    assert counted.share.eq(1).all()


def test_what_goes_through_the_kernel(monkeypatch):
    x, value = normal(2, 9, 2), normal(2, 9, 3, seed=1)
    k = torch.exp(-torch.cdist(x, x).square() / (2 * 0.8**2))
    torch.testing.assert_close(through_kernel(x, 0.8, value), k @ value)
    assert through_kernel(x[:0], 0.8, value[:0]).shape == (0, 9, 3)
    monkeypatch.setattr("mindist.adaptation.weights.BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(through_kernel(x, 0.8, value), k @ value)
    monkeypatch.setattr("mindist.adaptation.weights.MAX_OWN", 3)  # of 0, 3 and 6, for all nine
    every = torch.zeros(2, 9, 3).double()
    every[:, ::3] = 3 * (k @ value)[:, ::3]
    torch.testing.assert_close(through_kernel(x, 0.8, value), every)
