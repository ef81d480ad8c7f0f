from itertools import pairwise

import pytest
import torch

from exact_models import LinearDecoder, LocationDecoder, features, levenberg_marquardt, normal
from mindist.adaptation.search import EmbeddingDistance, Problem, Search, View, search
from mindist.adaptation.starts import RELATIVE_RIDGE, Bank, Cloud


def penalty(cloud, s):
    return cloud.residual(s, torch.arange(len(s))).square().sum(1)


def correlated(num, k, dim, seed):
    return normal(num, k, dim, seed=seed) @ normal(dim, dim, seed=seed + 1) + 3


def covariance(s):
    offset = s - s.mean(1, keepdim=True)
    return offset.mT @ offset / s.shape[1]


# ---------------------------------------------------------------------------- the cloud


def test_the_penalty_is_the_mahalanobis_distance_with_a_thousandth_more_variance():
    near, s = correlated(4, 50, 3, seed=0), normal(4, 3, seed=9)
    cloud = Cloud.of(near, normal(3, seed=2).abs() + 0.5)
    C, offset = covariance(near), (s - near.mean(1))[..., None]
    torch.testing.assert_close(cloud.centre, near.mean(1))
    ridge = RELATIVE_RIDGE * torch.diag_embed(C.diagonal(dim1=1, dim2=2))
    ridged = (offset.mT @ torch.linalg.solve(C + ridge, offset)).flatten()
    torch.testing.assert_close(penalty(cloud, s), ridged, rtol=1e-7, atol=0)
    # (s - m)' C^-1 (s - m) itself, within what the ridge can change.
    plain = (offset.mT @ torch.linalg.solve(C, offset)).flatten()
    largest = torch.linalg.eigvals(torch.linalg.solve(C, ridge)).real.amax(1)
    assert (penalty(cloud, s) <= plain).all()
    assert (penalty(cloud, s) >= plain / (1 + 1.001 * largest)).all()


def test_the_mean_penalty_of_the_cloud_itself_is_its_dimension():
    near = correlated(1, 50, 3, seed=3)
    cloud = Cloud.of(near, near[0].std(0))
    own = cloud.residual(near[0], torch.zeros(50, dtype=torch.long)).square().sum(1)
    assert own.mean().item() == pytest.approx(3, rel=0.02)
    assert own.mean() < 3  # tr C (C + R)^-1


def test_the_penalty_does_not_depend_on_units():
    near, s = correlated(4, 50, 3, seed=4), normal(4, 3, seed=5)
    scale, unit = normal(3, seed=6).abs() + 0.1, torch.tensor([1e-6, 1.0, 1e8]).double()
    given = penalty(Cloud.of(near, scale), s)
    torch.testing.assert_close(
        penalty(Cloud.of(near * unit, scale * unit), s * unit), given, rtol=1e-9, atol=0
    )


def test_each_problem_has_its_own_cloud():
    near = torch.tensor([[[0.0], [2.0]], [[10.0], [14.0]]]).double()
    cloud = Cloud.of(near, torch.ones(1).double())
    s = torch.tensor([[3.0], [3.0], [12.0]]).double()
    value = cloud.residual(s, torch.tensor([0, 1, 1])).square().flatten()
    expected = torch.tensor([4.0, 81 / 4, 0]).double() / (1 + RELATIVE_RIDGE)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_summary_that_never_varies_may_move_by_a_millionth(scale):
    near = correlated(2, 50, 2, seed=7)
    near[..., 1] = 5.0
    cloud = Cloud.of(near, torch.tensor([1.0, scale]).double())
    assert torch.isfinite(cloud.whitener).all()
    s = near.mean(1)
    s[:, 1] += 1e-6
    torch.testing.assert_close(penalty(cloud, s), torch.ones(2).double(), rtol=1e-6, atol=0)


def test_equal_summaries_give_finite_numbers():
    """As many copies of one summary; and fewer neighbours than dimensions."""
    for near in (torch.full((1, 50, 3), 2.0).double(), normal(1, 2, 5)):
        cloud = Cloud.of(near, torch.zeros(near.shape[2]).double())
        assert torch.isfinite(cloud.whitener).all()
        assert penalty(cloud, near.mean(1)).item() == pytest.approx(0, abs=1e-12)


def test_the_cloud_is_of_those_with_the_largest_cosine(monkeypatch):
    """Whatever the mass of an embedding, and in whatever blocks they are compared."""
    z, simulated = normal(20, 16), normal(300, 16, seed=1) * normal(300, 1, seed=2).exp()
    s = normal(300, 2, seed=3)
    bank = Bank(s, simulated.float(), s.mean(0), s.std(0))
    cosine = torch.nn.functional.cosine_similarity(z[:, None], simulated[None], dim=2)
    centre = s[cosine.topk(50, dim=1).indices].mean(1)
    torch.testing.assert_close(bank.cloud(z).centre, centre)
    torch.testing.assert_close(bank.cloud(0.01 * z).centre, centre)
    monkeypatch.setattr("mindist.adaptation.starts.NEAREST_ELEMENTS", 700)
    torch.testing.assert_close(bank.cloud(z).centre, centre)
    assert len(bank.cloud(z[:0]).centre) == 0
    few = Bank(s[:3], simulated[:3].float(), s[:3].mean(0), s[:3].std(0))
    torch.testing.assert_close(few.cloud(z[:1]).centre[0], s[:3].mean(0))


# ---------------------------------------------------------------------------- the objective


@pytest.fixture(scope="module")
def location():
    """The exact decoder of a location in two dimensions, and a bank of its embeddings."""
    decoder = LocationDecoder(features((2,), 64, 1.5))
    s = normal(500, 2, seed=1)
    return decoder, Bank.of(s, decoder(s), torch.Generator().manual_seed(0))


def test_the_objective_is_the_distance_plus_the_penalty(location):
    decoder, bank = location
    z_bar, s, stay = decoder(normal(3, 2, seed=2)) * 0.8, normal(3, 2, seed=3), 0.7
    cloud = bank.cloud(z_bar)
    every = torch.arange(3)
    value = EmbeddingDistance(decoder, z_bar, cloud=cloud, stay=stay)(s, every)
    distance = torch.stack([((decoder(s) - z_bar)[i] ** 2).sum() for i in range(3)])
    torch.testing.assert_close(value, distance + stay * penalty(cloud, s))
    torch.testing.assert_close(EmbeddingDistance(decoder, z_bar)(s, every), distance)


def test_the_squared_residual_is_the_objective_up_to_a_constant(location):
    """The constant is the part of the embedding that no summary reaches."""
    decoder, bank = location
    z_bar = decoder(normal(1, 2, seed=2)) * 0.8
    objective = EmbeddingDistance(decoder, z_bar, cloud=bank.cloud(z_bar), stay=0.7)
    s, problem = normal(5, 2, seed=4), torch.zeros(5, dtype=torch.long)
    gap = objective(s, problem) - objective.residual(s, problem)[0].square().sum(1)
    torch.testing.assert_close(gap, gap[:1].expand(5), rtol=0, atol=1e-12)
    assert gap[0] > -1e-12


def test_the_jacobian_of_the_residual_matches_finite_differences(location):
    decoder, bank = location
    z_bar, s, step = decoder(normal(3, 2, seed=2)), normal(3, 2, seed=3), 1e-6
    objective = EmbeddingDistance(decoder, z_bar, cloud=bank.cloud(z_bar), stay=0.7)
    problem = torch.tensor([2, 0, 1])
    _, J = objective.residual(s, problem)
    assert J.shape == (3, objective.head.mixing.shape[1] + 2, 2)
    for j in range(2):
        move = step * torch.eye(2).double()[j]
        ahead, behind = (objective.residual(s + sign * move, problem)[0] for sign in (1, -1))
        torch.testing.assert_close(J[..., j], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------------- the search


def find(decoder, bank, z_bar, error=1.0, **options):
    s_obs = torch.full((len(z_bar), 2), 5.0).double()
    problem = Problem(torch.empty(len(z_bar), 1, 2), s_obs, z_bar)
    return search(View(decoder, bank, error), Search(**options), problem, torch.Generator())


def test_a_heavy_penalty_leaves_the_summary_at_the_centre_of_the_cloud(location):
    decoder, bank = location
    z_bar = decoder(normal(6, 2, seed=5))
    found = find(decoder, bank, z_bar, stay=1e9, starts=("observed", "nearest"))
    torch.testing.assert_close(found.s_star, bank.cloud(z_bar).centre, rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [{"stay": 0.0}, {"stay": 0.5, "error": 0.0}])
def test_without_penalty_the_search_is_the_plain_one_and_finds_the_truth(location, options):
    decoder, bank = location
    s = 0.5 * normal(6, 2, seed=5)
    found = find(decoder, bank, decoder(s), starts=("cloud",), **options)
    plain = EmbeddingDistance(decoder, decoder(s))
    solution = levenberg_marquardt(plain.residual, bank.cloud(decoder(s)).centre)
    torch.testing.assert_close(found.s_star, solution.value, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.s_star, s, rtol=0, atol=1e-6)


def test_with_a_linear_decoder_the_summary_is_the_posterior_mode():
    """argmin |s W + b - z|^2 + lambda |L (s - m)|^2 solves one linear system."""
    decoder = LinearDecoder(normal(2, 8), normal(8, seed=1))
    s = normal(500, 2, seed=2)
    noisy = decoder(s) + 0.3 * normal(500, 8, seed=3)
    bank = Bank.of(s, noisy, torch.Generator().manual_seed(0))
    z_bar = decoder(normal(4, 2, seed=4)) + 0.3 * normal(4, 8, seed=5)
    stay, error = 0.25, 0.72
    cloud, W = bank.cloud(z_bar), decoder.weight
    P = stay * error * cloud.whitener.mT @ cloud.whitener
    right = ((z_bar - decoder.bias) @ W.T)[..., None] + P @ cloud.centre[..., None]
    mode = torch.linalg.solve(W @ W.T + P, right).squeeze(-1)
    found = find(decoder, bank, z_bar, error=error, stay=stay)
    torch.testing.assert_close(found.s_star, mode, rtol=0, atol=1e-7)
    assert (found.objective_star < found.objective_obs).all()


def test_the_summary_moves_towards_the_cloud_as_the_penalty_grows(location):
    decoder, bank = location
    z_bar = decoder(normal(6, 2, seed=5)) + 0.02 * normal(6, 64, seed=6)
    centre = bank.cloud(z_bar).centre
    away = [
        (find(decoder, bank, z_bar, stay=stay).s_star - centre).norm() for stay in (0, 0.01, 0.1, 1)
    ]
    assert all(far > near for far, near in pairwise(away))
