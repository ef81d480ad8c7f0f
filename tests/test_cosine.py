"""Least squares in a basis of cosines, and the compiled loops below it."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from exact_models import normal
from mindist.adaptation import Bank, Problem, Search, View, search
from mindist.adaptation.influence import hessian
from mindist.adaptation.objective import EmbeddingDistance
from mindist.decoders import RidgeDecoder
from mindist.solvers import CosineLeastSquares, SolverStatus, cosine, levenberg_marquardt
from mindist.solvers.cosine_few_loops import times_symmetric
from mindist.solvers.cosine_loops import Basis, make_room, slope, solve_damped, waves
from mindist.threads import ranges, team

NUM = 60


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def decoder():
    s = normal(800, 3)
    s = torch.cat([s[:, :2], s[:, :1] * s[:, 1:2] + 0.1 * s[:, 2:]], 1)
    z = torch.cat([(s @ normal(3, 40, seed=1)).sin(), (s @ normal(3, 40, seed=2)).cos()], 1)
    noisy = z + 0.01 * normal(800, 80, seed=3)
    fitted = RidgeDecoder(num_basis=150).fit(s, noisy, generator=generator())
    return fitted, s, noisy


@pytest.fixture(scope="module")
def view(decoder):
    fitted, s, z = decoder
    return View(fitted, Bank.of(s, z, generator()), fitted.held_out_error)


@pytest.fixture(scope="module")
def far(decoder):
    """Embeddings that no summary explains: large residuals, as under contamination."""
    fitted, s, _ = decoder
    return fitted(s[:NUM]) + 0.3 * normal(NUM, 80, seed=4)


# ---------------------------------------------------------------------------- the parts


@pytest.mark.parametrize("size", [0.4, 1.0, 1e5])
def test_waves_are_cosines_and_sines_to_rounding(size):
    frequency, phase, s = size * normal(2, 500), normal(500, seed=1), normal(2, seed=2)
    cosine, sine = np.empty(500), np.empty(500)
    waves(frequency.numpy(), phase.numpy(), s.numpy(), cosine, sine)
    turns = s @ frequency + phase
    angle = 2 * math.pi * (turns - turns.round())
    rounding = 8 * 2.2e-16 * max(1, float(turns.abs().max()))
    np.testing.assert_allclose(cosine, angle.cos(), rtol=0, atol=rounding)
    np.testing.assert_allclose(sine, angle.sin(), rtol=0, atol=rounding)


def test_waves_of_nan_are_nan():
    cosine, sine = np.zeros(1), np.zeros(1)
    waves(np.ones((1, 1)), np.zeros(1), np.array([math.nan]), cosine, sine)
    assert np.isnan(cosine).all()
    assert np.isnan(sine).all()


def test_a_damped_system_is_solved_or_refused():
    half = normal(4, 4)
    A, g, scale = half @ half.T + torch.eye(4).double(), normal(4, seed=1), torch.ones(4).double()
    L, step = np.empty((4, 4)), np.empty(4)
    assert solve_damped(A.numpy(), scale.numpy(), 0.5, g.numpy(), L, step)
    expected = torch.linalg.solve(A + 0.5 * torch.eye(4).double(), -g)
    np.testing.assert_allclose(step, expected, rtol=1e-12)
    assert not solve_damped(-A.numpy(), scale.numpy(), 0.5, g.numpy(), L, step)


def test_slices_cover_all_problems_once():
    seen = np.zeros(103, dtype=int)

    def work(share):
        seen[slice(*share)] += 1

    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with team(worth=True) as group:
                group.do(work, ranges(len(seen), group.size))
    finally:
        torch.set_num_threads(before)
    assert (seen == 3).all()


# ---------------------------------------------------------------------------- the decoder


def test_cosines_are_the_decoder(decoder):
    fitted, s, _ = decoder
    frequency, phase, mixing = fitted.cosines()
    value = torch.cos(2 * math.pi * (s @ frequency + phase)) @ mixing + fitted.bias
    torch.testing.assert_close(value, fitted(s), rtol=0, atol=1e-11)


@pytest.mark.parametrize("stay", [0.0, 0.3])
def test_the_hessian_is_that_of_autograd(decoder, view, far, stay):
    fitted, s, _ = decoder
    objective = EmbeddingDistance(fitted, far, view.bank.cloud(far), stay)

    def of(i):
        return lambda row: objective(row[None], torch.tensor([i]))[0] / 2

    at = s[:5]
    exact = torch.stack([torch.autograd.functional.hessian(of(i), at[i]) for i in range(5)])
    positive = torch.linalg.eigvalsh(exact)[:, 0] > 0
    objective.z_bar = objective.z_bar[:5]
    if objective.cloud is not None:
        objective.cloud = objective.cloud[torch.arange(5)]
    value = hessian(objective, at, torch.ones(3).double())
    assert positive.any()
    torch.testing.assert_close(value[positive], exact[positive], rtol=1e-8, atol=1e-9)


# ---------------------------------------------------------------------------- the search


@pytest.mark.parametrize("stay", [0.0, 0.05])
@pytest.mark.parametrize("least", [0.0, 1e-4, 1e-2])
def test_the_end_is_that_of_levenberg_and_marquardt(decoder, view, far, stay, least):
    """Whatever is frozen in between, at targets that the basis cannot reach."""
    fitted, s, _ = decoder
    cloud = view.bank.cloud(far)
    problem = CosineLeastSquares.of(*fitted.cosines(), s, least=least)
    assert (len(problem.rest) > 0) == (least > 0)
    start = s[:NUM]
    solution = problem.solve(
        far - fitted.bias, start[:, None], cloud.centre, math.sqrt(stay) * cloud.whitener,
        repeats=50,
    )  # fmt: skip
    objective = EmbeddingDistance(fitted, far, cloud, stay)
    other = levenberg_marquardt(objective.residual, start)
    every = torch.arange(NUM)
    torch.testing.assert_close(solution.objective, objective(solution.value, every).detach())
    same = (solution.value - other.value).norm(dim=1) < 1e-3
    assert same.double().mean() > 0.9  # a few fall into another valley
    torch.testing.assert_close(
        solution.objective[same], other.objective[same], rtol=1e-6, atol=1e-12
    )
    assert (solution.status == SolverStatus.CONVERGED).all()


def test_newtons_steps_are_fewer(decoder, far):
    fitted, s, _ = decoder
    problem = CosineLeastSquares.of(*fitted.cosines(), s, least=0.0)
    newton = problem.solve(far - fitted.bias, s[:NUM, None]).iterations.double().mean()
    residual = EmbeddingDistance(fitted, far).residual
    gauss = levenberg_marquardt(residual, s[:NUM]).iterations.double().mean()
    assert newton < gauss / 2


def test_the_search_begins_at_the_lowest_candidate(decoder):
    fitted, s, _ = decoder
    problem = CosineLeastSquares.of(*fitted.cosines(), s, least=0.0)
    target = fitted(s[:NUM]) - fitted.bias
    wrong = s[:NUM] + 3.0
    both = torch.stack([wrong, s[:NUM]], 1)
    solution = problem.solve(target, both)
    torch.testing.assert_close(solution.value, s[:NUM], rtol=0, atol=1e-7)
    # The constant is added to terms of order one: what is left of 0 is their rounding.
    assert solution.objective.max() < 1e-12


def test_a_start_that_is_not_finite_is_returned(decoder):
    fitted, s, _ = decoder
    problem = CosineLeastSquares.of(*fitted.cosines(), s, least=0.0)
    start = torch.full((1, 1, 3), math.nan).double()
    solution = problem.solve(fitted(s[:1]), start)
    assert solution.status.item() == SolverStatus.NONFINITE
    assert solution.value.isnan().all()


def test_a_problem_does_not_depend_on_its_batch_nor_on_threads(decoder, view, far):
    fitted, s, _ = decoder

    def run(rows):
        return view.cosines.solve((far - fitted.bias)[rows], s[rows, None]).value

    every = torch.arange(NUM)
    together = run(every)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        threads = run(every)
    finally:
        torch.set_num_threads(before)
    alone = torch.cat([run(every[i : i + 1]) for i in range(NUM)])
    torch.testing.assert_close(threads, together, rtol=0, atol=1e-12)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-7)
    with ThreadPoolExecutor(4) as pool:
        for value in pool.map(run, [every] * 8):
            torch.testing.assert_close(value, together, rtol=0, atol=1e-12)


def test_a_summary_that_never_varies_stays_where_it_is(decoder):
    _, s, z = decoder
    s = torch.cat([s, torch.full((len(s), 1), 7.0).double()], 1)
    fitted = RidgeDecoder(num_basis=100).fit(s, z, generator=generator())
    view = View(fitted, Bank.of(s, z, generator()), fitted.held_out_error)
    found = search(view, Search(stay=0.0), Problem(s[:5], s[:5] + 0.1, z[:5]), generator())
    torch.testing.assert_close(found.s_star[:, 3], torch.full((5,), 7.0).double())


def test_without_compiled_loops_the_search_ends_in_the_same_place(decoder, view, far, monkeypatch):
    fitted, s, _z = decoder
    problem = Problem(s[:NUM], s[:NUM] + 0.5, far)
    compiled = search(view, Search(), problem, generator())
    monkeypatch.setattr("mindist.adaptation.view.serves", lambda *_: False)
    plain = View(fitted, view.bank, view.error)
    assert plain.cosines is None
    slow = search(plain, Search(), problem, generator())
    same = (compiled.s_star - slow.s_star).norm(dim=1) < 1e-4
    assert same.double().mean() > 0.9


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (2, 4), (3, 5), (4, 2), (7, 3)])
def test_projections_are_products(d, rank):
    generator = torch.Generator().manual_seed(0)
    A, y, frequency, pull, s = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).numpy()
        for shape in ((rank, 9), (rank,), (d, 9), (9,), (d,))
    )
    basis = Basis(frequency, pull, A)
    room = make_room(basis)
    waves(frequency, pull, s, room.cosine, room.sine)
    room.y[:] = y
    slope(basis, pull, room)
    slopes = -2 * math.pi * room.sine * frequency
    force = y @ A - pull
    assert np.allclose(room.force, force)
    assert np.allclose(room.jacobian[:d], slopes @ A.T)
    assert np.allclose(room.g, slopes @ force)


def test_a_product_with_a_symmetric_matrix():
    out = np.empty(2)
    times_symmetric(np.array([[1.0, 2.0], [2.0, 5.0]]), np.array([1.0, -1.0]), out)
    assert out.tolist() == [-1.0, -3.0]


@pytest.mark.parametrize("penalty", [True, False])
def test_few_problems_end_where_many_do(decoder, far, monkeypatch, penalty):
    fitted, s, _ = decoder
    problem = CosineLeastSquares.of(*fitted.cosines(), s, least=1e-2)
    target, start = (far - fitted.bias)[:3], s[:6].view(3, 2, -1)
    d = start.shape[2]
    centre, whitener = (start[:, 0], torch.eye(d).double().expand(3, d, d) / 9)
    given = (target, start, *((centre, whitener) if penalty else ()))
    few = problem.solve(*given, objective=False)
    monkeypatch.setattr(cosine, "FEW", 0)
    many = problem.solve(*given, objective=False)
    assert torch.allclose(few.value, many.value, atol=1e-6)
    assert few.status.tolist() == many.status.tolist()
