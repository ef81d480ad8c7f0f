import math

import pytest
import torch

from exact_models import LocationDecoder, features, levenberg_marquardt, normal
from mindist.adaptation.influence import hessian, influence, model_at
from mindist.adaptation.search import EmbeddingDistance
from mindist.adaptation.starts import Bank

ONE = torch.ones(2, dtype=torch.float64)


@pytest.fixture(scope="module", params=[0.0, 0.02], ids=["plain", "cloud"])
def problem(request):
    """Objective, minimisers, features and decoder of three contaminated datasets."""
    z = features((2,), 64, 1.5)
    decoder = LocationDecoder(z)
    x = normal(3, 40, 2, seed=1) + normal(3, 1, 2, seed=2)
    x[:, :6] += 4
    wide = z(x)
    s = normal(300, 2, seed=3)
    bank = Bank.of(s, decoder(s), torch.Generator().manual_seed(0))
    z_bar, stay = wide.mean(1), request.param
    objective = EmbeddingDistance(decoder, z_bar, bank.cloud(z_bar) if stay else None, stay)
    return objective, minimum(objective, x.median(1).values), wide, decoder


def minimum(objective, start):
    """The minimisers, to rounding: Levenberg-Marquardt and a few steps of Newton."""
    s = levenberg_marquardt(objective.residual, start).value
    for _ in range(3):
        H, g = exact_hessian(objective, s), exact_gradient(objective, s)
        s = s - torch.linalg.solve(H, g)
    return s


def exact_gradient(objective, s):
    s = s.clone().requires_grad_()
    return torch.autograd.grad(objective(s, torch.arange(len(s))).sum(), s)[0] / 2


def exact_hessian(objective, s):
    def of(i):
        return lambda row: objective(row[None], torch.tensor([i]))[0]

    rows = [torch.autograd.functional.hessian(of(i), row) for i, row in enumerate(s)]
    return torch.stack(rows) / 2


def test_gradient_and_hessian_are_half_those_of_autograd(problem):
    objective, s, _, _ = problem
    away = s + 0.1
    torch.testing.assert_close(model_at(objective, away)[2], exact_gradient(objective, away))
    end = model_at(objective, s)[2]
    torch.testing.assert_close(end, torch.zeros_like(s), rtol=0, atol=1e-12)
    scale = torch.tensor([2.0, 0.5]).double()
    torch.testing.assert_close(
        hessian(objective, s, scale), exact_hessian(objective, s), rtol=1e-6, atol=1e-9
    )


def test_a_summary_without_spread_gets_a_step_too(problem):
    objective, s, _, _ = problem
    torch.testing.assert_close(
        hessian(objective, s, 0 * ONE), exact_hessian(objective, s), rtol=1e-6, atol=1e-9
    )


def test_where_the_hessian_is_not_positive_definite_it_is_that_of_gauss_and_newton():
    decoder = LocationDecoder(features((2,), 64, 1.0))
    objective = EmbeddingDistance(decoder, decoder(torch.zeros(2, 2).double()))
    s = torch.tensor([[0.0, 0.0], [2.5, 0.0]]).double()
    exact = exact_hessian(objective, s)
    assert torch.linalg.eigvalsh(exact[0])[0] > 0 > torch.linalg.eigvalsh(exact[1])[0]
    _, J = objective.residual(s, torch.arange(2))
    value = hessian(objective, s, ONE)
    torch.testing.assert_close(value[0], exact[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(value[1], J[1].T @ J[1])


def test_the_influence_is_the_derivative_of_the_summary_by_mass(problem):
    """Mass eta at one observation, and the minimisation solved again."""
    objective, s, wide, decoder = problem
    weight = torch.ones(wide.shape[:2]).double()
    value, _ = influence(objective, s, wide, weight, ONE)
    eta = 1e-4
    for n in (0, 7, 23):
        z_bar = (1 - eta) * objective.z_bar + eta * wide[:, n]
        moved = EmbeddingDistance(decoder, z_bar, objective.cloud, objective.stay)
        slope = (minimum(moved, s) - s) / eta
        error = (slope - value[:, n]).norm(dim=1) / value[:, n].norm(dim=1)
        assert error.max() < 1e-2
        # Central differences leave an error of order eta^2.
        other = EmbeddingDistance(
            decoder,
            (1 + eta) * objective.z_bar - eta * wide[:, n],
            objective.cloud,
            objective.stay,
        )
        central = (minimum(moved, s) - minimum(other, s)) / (2 * eta)
        torch.testing.assert_close(value[:, n], central, rtol=1e-5, atol=1e-6)


def test_influences_sum_to_zero_and_scale_with_the_weights(problem):
    objective, s, wide, _ = problem
    weight = torch.rand(wide.shape[:2], generator=torch.Generator().manual_seed(5)).double()
    plain, _ = influence(objective, s, wide, torch.ones_like(weight), ONE)
    weighed, covariance = influence(objective, s, wide, weight, ONE)
    torch.testing.assert_close(plain.sum(1), torch.zeros_like(s), rtol=0, atol=1e-9)
    share = weight / weight.mean(1, keepdim=True)
    torch.testing.assert_close(weighed, share[..., None] * plain)
    for b in range(len(s)):
        outer = sum(torch.outer(v, v) for v in weighed[b])
        torch.testing.assert_close(covariance[b], outer / len(weight[b]) ** 2)


def test_the_influence_is_bounded_whatever_the_observation(problem):
    """|H^-1 J' (z - z_bar)| is at most |H^-1| |J| (1 + |z_bar|): features have norm 1."""
    objective, s, _, _ = problem
    x = torch.tensor([[1e3, 0.0], [1e6, -1e6], [-1e12, 1e12]]).double().expand(3, 3, 2)
    z = features((2,), 64, 1.5)(x)
    value, _ = influence(objective, s, z, torch.ones(3, 3).double(), ONE)
    _, J = objective.residual(s, torch.arange(3))
    H = hessian(objective, s, ONE)
    bound = torch.linalg.matrix_norm(torch.linalg.inv(H), 2) * torch.linalg.matrix_norm(J, 2)
    bound = bound * (1 + objective.z_bar.norm(dim=1))
    assert torch.isfinite(value).all()
    assert (value.norm(dim=2) <= bound[:, None]).all()


def test_without_any_weight_numbers_stay_finite(problem):
    objective, s, wide, _ = problem
    for nothing in influence(objective, s, wide, torch.zeros(wide.shape[:2]).double(), ONE):
        assert not nothing.any()


# A location by minimum MMD, N(0, 1) and a kernel of bandwidth h, c = h^2 + 1: mass at x moves it by
# psi(x) / E psi'(X) with psi(x) = x exp(-x^2 / 2c).


def location(num_datasets, num_obs, bandwidth, seed):
    """Objective, minimisers and features of clean datasets from N(0, 1)."""
    z = features((1,), 256, bandwidth)
    wide = z(normal(num_datasets, num_obs, 1, seed=seed))
    objective = EmbeddingDistance(LocationDecoder(z), wide.mean(1))
    start = torch.zeros(num_datasets, 1).double()
    return objective, levenberg_marquardt(objective.residual, start).value, wide


@pytest.mark.parametrize("bandwidth", [0.7, 1.5])
def test_the_influence_of_a_location_is_the_closed_form(bandwidth):
    c = bandwidth**2 + 1
    decoder = LocationDecoder(features((1,), 512, bandwidth))
    zero = torch.zeros(1, 1).double()
    objective = EmbeddingDistance(decoder, decoder(zero))
    x = torch.linspace(-6, 6, 49).double()[None, :, None]
    z = features((1,), 512, bandwidth)(x)
    value, _ = influence(objective, zero, z, torch.ones(1, 49).double(), ONE[:1])
    expected = x * torch.exp(-x.square() / (2 * c)) * (1 + 1 / c) ** 1.5
    torch.testing.assert_close(value, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("bandwidth", [0.7, 1.5])
def test_the_sandwich_is_the_variance_of_the_summary(bandwidth):
    """(1 + 1/c)^3 / (1 + 2/c)^1.5 / N in closed form, and what 1,000 datasets show."""
    num, num_obs, c = 1_000, 200, bandwidth**2 + 1
    objective, s, wide = location(num, num_obs, bandwidth, seed=11)
    known = (1 + 1 / c) ** 3 / (1 + 2 / c) ** 1.5 / num_obs
    weight = torch.ones(num, num_obs).double()
    estimated = influence(objective, s, wide, weight, ONE[:1])[1].flatten()
    interval = 3.5 * math.sqrt(2 / num)  # relative, of a variance from `num` normal numbers
    assert s.var().item() == pytest.approx(known, rel=interval + 2 / num_obs)
    # Each estimate has its own bias and error of order 1/N and 1/sqrt(N).
    assert estimated.mean().item() == pytest.approx(known, rel=5 / num_obs)
    assert s.mean().abs().item() < 3.5 * math.sqrt(known / num)
    # Intervals of two standard errors cover the truth in 95.4% of the datasets.
    covered = (s.flatten().abs() < 2 * estimated.sqrt()).double().mean().item()
    assert abs(covered - 0.954) < 3.5 * math.sqrt(0.954 * 0.046 / num) + 1 / num_obs


def test_the_sandwich_matches_the_spread_in_two_dimensions():
    num, num_obs = 300, 100
    z = features((2,), 128, 1.5)
    theta = torch.tensor([0.5, -1.0]).double()
    x = theta + normal(num, num_obs, 2, seed=4)
    wide = z(x)
    objective = EmbeddingDistance(LocationDecoder(z), wide.mean(1))
    s = levenberg_marquardt(objective.residual, theta.expand(num, 2).clone()).value
    weight = torch.ones(num, num_obs).double()
    expected = influence(objective, s, wide, weight, ONE)[1].mean(0)
    spread = torch.cov(s.T)
    # The error of an entry of a covariance of `num` normal vectors.
    variance = expected.diagonal()
    error = ((torch.outer(variance, variance) + expected.square()) / num).sqrt()
    assert ((spread - expected).abs() < 3.5 * error + 3 / num_obs * variance.mean()).all()
