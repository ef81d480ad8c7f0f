"""The influence by compiled loops, against the tensor operations that it takes the place of."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from exact_models import LocationDecoder, features, normal
from mindist import adapting
from mindist.adaptation import (
    Bank,
    Derivatives,
    Observations,
    Response,
    Search,
    View,
    fast_influence,
    influence,
    influence_loops,
)
from mindist.adaptation.fast_influence import Ends, compiled_influence, served
from mindist.adaptation.influence import hessian
from mindist.adaptation.own_kernel import OwnKernel
from mindist.adaptation.weights import LEAST_MASS
from mindist.decoders import RidgeDecoder
from mindist.features.embedding import Embedding
from mindist.minimum_distance import MinimumDistance
from mindist.solvers.cosine_loops import Basis

NUM, DIM = 12, 2
ONE = torch.ones(DIM, dtype=torch.float64)
WIDE, LOCAL = features((DIM,), 64, 2.0), features((DIM,), 48, 0.85, seed=1)


def view(z):
    """A decoder of locations in a basis of 101 cosines: the last is alone in its group of rows."""
    s = normal(500, DIM, seed=3)
    embedding = LocationDecoder(z)(s) + 0.01 * normal(500, z.num_features, seed=4)
    decoder = RidgeDecoder(num_basis=101).fit(s, embedding, generator=torch.Generator())
    bank = Bank.of(s, embedding, torch.Generator().manual_seed(0))
    return View(decoder, bank, decoder.held_out_error)


WIDE_VIEW, LOCAL_VIEW = view(WIDE), view(LOCAL)


def data(dtype, *, copied=True):
    """Contaminated datasets, and summaries near and far from their minima, as precise as dtype."""
    x = normal(NUM, 30, DIM, seed=1) + normal(NUM, 1, DIM, seed=2)
    x[:, :6] += 3
    if copied:
        x[:4, 7] = x[:4, 8]
    s = x.median(1).values + 0.1 * normal(NUM, DIM, seed=5)
    s[::5] += 1.5
    s[1] += 6
    seen = Observations.of(Embedding(WIDE, LOCAL, None), x, distinct=True)
    return replace(seen, wide=seen.wide.to(dtype), local=seen.local.to(dtype)), s


def ends_of(seen, s, rows, stay):
    """Ends of searches with arbitrary weights."""
    weight = torch.rand(NUM, 30, generator=torch.Generator().manual_seed(6)).double()[rows]
    z_bar = seen.mean(torch.ones_like(seen.own))[rows]
    objective = WIDE_VIEW.objective(Search(stay=stay), z_bar, WIDE_VIEW.bank.cloud(z_bar))
    return Ends(rows, objective, s[rows], WIDE_VIEW.decode(s[rows]), weight)


def by_tensors(seen, ends, density, threshold):
    seen, response = seen[ends.rows], None
    if density is not None:
        response = Response.of(seen, density, ends.s, threshold)
    at = Derivatives.of(ends.objective, ends.s, ends.mu)
    return influence(ends.objective, ends.s, seen.wide, ends.weight, ONE, response, at)


def assert_same(value, expected, rtol):
    """To a share of the largest number of each dataset."""
    for name in ("value", "covariance", "feedback"):
        new, old = (getattr(part, name).reshape(len(part.value), -1) for part in (value, expected))
        error = (new - old).abs().amax(1) / old.abs().amax(1).clamp(min=1e-3)
        assert error.max() < rtol, name


# ---------------------------------------------------------------------------- all of it

EVERY, ONE_ROW, SOME = (
    torch.arange(NUM),
    torch.tensor([3]),
    torch.tensor([0, 2, 3, 5, 7, 8, 10, 11]),
)


@pytest.mark.parametrize("rows", [EVERY, ONE_ROW, SOME], ids=["all", "one", "some"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("threshold", [0.0, 0.85, 2.0])
def test_the_influence_is_that_of_the_tensor_operations(rows, dtype, rtol, threshold):
    seen, s = data(dtype)
    ends = ends_of(seen, s, rows, stay=1.0)
    value, sure = compiled_influence(WIDE_VIEW, LOCAL_VIEW, seen, ends, threshold)
    assert sure.all()
    assert_same(value, by_tensors(seen, ends, LOCAL_VIEW, threshold), rtol)


@pytest.mark.parametrize("rows", [EVERY, ONE_ROW, SOME[:0]], ids=["all", "one", "none"])
@pytest.mark.parametrize("stay", [0.0, 1.0])
def test_it_is_for_fixed_weights_too(rows, stay):
    seen, s = data(torch.float64)
    ends = ends_of(seen, s, rows, stay)
    value, sure = compiled_influence(WIDE_VIEW, None, seen, ends, 0.0)
    expected = by_tensors(seen, ends, None, 0.0)
    assert sure.all()
    assert not value.feedback.any()
    assert value.value.shape == expected.value.shape
    if len(rows):
        assert_same(value, expected, 1e-9)


def test_the_data_have_what_a_difference_could_come_from():
    """Copies, clipped weights, masses below and above a threshold, Hessians of both kinds."""
    seen, s = data(torch.float64)
    ends = ends_of(seen, s, EVERY, stay=1.0)
    assert 0 < (seen.share < 1).sum() < seen.share.numel()
    fit = seen.fit(LOCAL_VIEW.decode(s))
    assert (fit.mass < LEAST_MASS).any()
    assert 0 < (fit.mass < 0.85).sum() < NUM
    weight = fit.weight(0.85)
    assert (weight == 0).any()
    assert (weight == seen.share).any()
    assert ((weight > 0) & (weight < seen.share)).any()
    H, J = hessian(ends.objective, s, ONE), Derivatives.of(ends.objective, s).jacobian
    whitener = ends.objective.cloud.whitener
    newton = J @ J.mT + ends.objective.stay * whitener.mT @ whitener
    assert 0 < ((H - newton).abs().amax((1, 2)) == 0).sum() < NUM


def test_one_view_can_do_both(monkeypatch):
    """Without a local kernel; and with a kernel matrix that is too large to keep."""
    seen, s = data(torch.float64)
    seen = replace(seen, local=seen.wide)
    ends = ends_of(seen, s, SOME, stay=1.0)
    value, _ = compiled_influence(WIDE_VIEW, WIDE_VIEW, seen, ends, 0.85)
    assert_same(value, by_tensors(seen, ends, WIDE_VIEW, 0.85), 1e-9)
    monkeypatch.setattr("mindist.adaptation.own_kernel.BLOCK_ELEMENTS", 100)
    assert seen.kernel.matrix is None
    assert_same(compiled_influence(WIDE_VIEW, WIDE_VIEW, seen, ends, 0.85)[0], value, 1e-9)


def test_a_kernel_with_few_observations_in_its_average_is_not_taken_for_all(monkeypatch):
    monkeypatch.setattr("mindist.adaptation.own_kernel.MAX_OWN", 10)
    seen, s = data(torch.float64)
    ends = ends_of(seen, s, EVERY, stay=1.0)
    assert seen.kernel.matrix is None
    value, _ = compiled_influence(WIDE_VIEW, LOCAL_VIEW, seen, ends, 0.85)
    assert_same(value, by_tensors(seen, ends, LOCAL_VIEW, 0.85), 1e-9)


def test_a_singular_matrix_is_left_to_others():
    """A decoder that does not depend on the summary; and a summary that is not a number."""
    seen, s = data(torch.float64)
    flat = view(WIDE)
    flat.decoder.weight = torch.zeros_like(flat.decoder.weight)
    ends = ends_of(seen, s, EVERY, stay=0.0)
    assert not compiled_influence(flat, LOCAL_VIEW, seen, ends, 0.85)[1].any()
    assert not compiled_influence(flat, None, seen, ends, 0.85)[1].any()
    s[2] = math.nan
    ends = ends_of(seen, s, EVERY, stay=0.0)
    sure = compiled_influence(WIDE_VIEW, LOCAL_VIEW, seen, ends, 0.85)[1]
    assert sure.tolist() == [row != 2 for row in range(NUM)]


def test_an_adaptation_is_the_same_by_either(monkeypatch):
    """With datasets that are kept as observed, and some whose loops are not sure."""
    x = normal(600, 20, DIM, seed=7).float() + normal(600, 1, DIM, seed=8).float()
    mds = MinimumDistance(lambda x: x.mean(1), num_features=32, bandwidth=1.5).fit(x)
    observed = x[:9].clone()
    observed[::2, :4] += 4
    by_loops = mds.adapt(observed)
    assert 0 < by_loops.adapted.sum() < len(observed)
    calls = []

    def unsure(*args):
        value, sure = compiled_influence(*args)
        calls.append(len(sure))
        value.value[0], value.covariance[0], value.feedback[0], sure[0] = *[math.nan] * 3, False
        return value, sure

    monkeypatch.setattr(adapting, "compiled_influence", unsure)
    partly = mds.adapt(observed)
    assert sum(calls) >= len(observed)
    monkeypatch.setattr(adapting, "served", lambda *args: False)
    by_tensor = mds.adapt(observed)
    for result in (by_loops, partly):
        for name in ("s_star", "weights", "adapted"):
            assert torch.equal(getattr(result, name), getattr(by_tensor, name))
        for name in ("influence", "covariance", "excess"):
            new, old = getattr(result, name), getattr(by_tensor, name)
            torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5 * float(old.abs().max()))


def test_only_cosines_in_memory_are_served():
    seen, _ = data(torch.float64)
    other = View(LocationDecoder(WIDE), WIDE_VIEW.bank, 1.0)
    assert served(WIDE_VIEW, LOCAL_VIEW, seen)
    assert not served(other, LOCAL_VIEW, seen)
    assert not served(WIDE_VIEW, other, seen)
    assert not served(WIDE_VIEW, LOCAL_VIEW, replace(seen, wide=seen.wide.half()))


# ---------------------------------------------------------------------------- the decoder


@pytest.mark.parametrize(("zero", "atol"), [(0.0, 1e-12), (np.float32(0), 1e-6)])
def test_waves_and_products_are_the_decoder_and_its_slopes(zero, atol):
    cosines, s = WIDE_VIEW.cosines, normal(3, DIM, seed=9)
    h, slope = WIDE_VIEW.decoder.basis_and_jacobian(s)
    expected = torch.cat([h[:, None], slope.mT], 1).transpose(0, 1) @ WIDE_VIEW.decoder.weight
    waves = influence_loops.waves_with_slopes(cosines.loops_basis, s.numpy(), zero)
    assert waves.dtype == np.asarray(zero).dtype
    mixing = cosines.mixing.numpy().astype(waves.dtype)
    made = influence_loops.times(waves, np.ascontiguousarray(mixing.T))
    np.testing.assert_allclose(made, expected, rtol=0, atol=10 * atol)


def test_one_pass_gives_slopes_and_force():
    waves, residual, mixing = normal(3, 2, 21), normal(2, 16, seed=1), normal(21, 16, seed=2)
    jacobian, force = influence_loops.slopes_and_force(
        *map(torch.Tensor.numpy, (waves, residual, mixing))
    )
    np.testing.assert_allclose(jacobian, waves[1:] @ mixing, atol=1e-12)
    np.testing.assert_allclose(force, residual @ mixing.T, atol=1e-12)


# ---------------------------------------------------------------------------- small matrices


def test_definite_matrices_are_told_from_others():
    half = normal(4, 4)
    positive = (half @ half.T + torch.eye(4).double()).numpy()
    assert influence_loops.definite(positive) == 1
    assert (
        influence_loops.definite(positive - 3 * np.linalg.eigvalsh(positive)[0] * np.eye(4)) == -1
    )
    assert influence_loops.definite(-positive) == -1
    assert influence_loops.definite(np.diag([1.0, 1e-4, 1e-8])) == 1
    for doubtful in (
        np.ones((2, 2)),
        np.zeros((2, 2)),
        np.diag([1.0, 1e-16]),
        np.full((2, 2), math.nan),
    ):
        assert influence_loops.definite(doubtful) == 0


def test_elimination_solves_or_refuses():
    A, y = normal(5, 5), normal(5, 7, seed=1)
    x = y.numpy().copy()
    assert influence_loops.eliminate(A.numpy().copy(), x)
    np.testing.assert_allclose(x, torch.linalg.solve(A, y), rtol=1e-9)
    swapped = np.array([[1.0], [2.0]])
    assert influence_loops.eliminate(np.array([[0.0, 1.0], [4.0, 0.0]]), swapped)
    np.testing.assert_array_equal(swapped, [[0.5], [1.0]])
    for singular in (np.ones((2, 2)), np.zeros((2, 2)), np.array([[1.0, math.nan], [0.0, 1.0]])):
        assert not influence_loops.eliminate(singular.copy(), np.ones((2, 1)))


def test_the_spectral_radius_is_the_largest_absolute_eigenvalue():
    for dim in (1, 2, 3, 8):
        T = (10.0 ** normal(50, 1, 1, seed=dim) * normal(50, dim, dim, seed=dim + 1)).numpy()
        radius = [influence_loops.spectral_radius(matrix) for matrix in T]
        np.testing.assert_allclose(radius, np.abs(np.linalg.eigvals(T)).max(1), rtol=1e-12)
    turn, nilpotent, defective = [[0, 1.5], [-1.5, 0]], [[0, 1], [0, 0]], [[0.5, 1e3], [0, 0.5]]
    known = [
        influence_loops.spectral_radius(np.array(T, float)) for T in (turn, nilpotent, defective)
    ]
    np.testing.assert_allclose(known, [1.5, 0.0, 0.5], rtol=1e-12)
    for T in ([[math.nan, 1], [0, 1]], [[1, 0], [0, math.inf]]):
        assert influence_loops.spectral_radius(np.array(T, float)) == math.inf


# ---------------------------------------------------------------------------- the rest


def test_products_with_several_vectors():
    a, b = normal(9, 33), normal(3, 33, seed=1)
    out = np.empty((3, 9))
    influence_loops.products(a.numpy(), b.numpy(), out)
    np.testing.assert_allclose(out, b @ a.T, atol=1e-12)


def test_what_goes_through_the_kernel_of_some_datasets():
    kernel, given = OwnKernel(normal(4, 6, 2), 1.0), normal(2, 3, 6, seed=1)
    rows = torch.tensor([1, 3])
    lost = influence_loops.through(kernel.matrix.numpy(), rows.numpy(), given.numpy())
    torch.testing.assert_close(torch.from_numpy(lost), kernel[rows].through(given.mT).mT)


def test_loops_take_a_basis_of_one_frequency():
    basis = Basis(np.array([[0.25]]), np.zeros(1), np.ones((1, 1)))
    made = influence_loops.waves_with_slopes(basis, np.array([[1.0], [0.0]]), 0.0)
    np.testing.assert_allclose(made[:, :, 0], [[0, 1], [-math.pi / 2, 0]], atol=1e-15)


def test_few_and_many_datasets_agree(monkeypatch):
    seen, s = data(torch.float32)
    ends = ends_of(seen, s, SOME[:3], stay=1.0)
    few, _ = compiled_influence(WIDE_VIEW, LOCAL_VIEW, seen, ends, 0.85)
    monkeypatch.setattr(fast_influence, "FEW", 0)
    assert_same(compiled_influence(WIDE_VIEW, LOCAL_VIEW, seen, ends, 0.85)[0], few, 1e-4)
