import pytest
import torch

from exact_models import levenberg_marquardt
from mindist.solvers import SolverStatus, adam, gradient_descent, lbfgs
from mindist.solvers.newton import damped_step, update_damping

TARGET = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-4.0, 0.1]], dtype=torch.float64)
START = torch.zeros(3, 2, dtype=torch.float64)


def linear_residual(s, problem):
    """r = A (s - t) with a badly scaled A."""
    A = torch.tensor([[1.0, 0.5], [0.0, 1e-3], [1e2, 0.0]], dtype=torch.float64)
    return (s - TARGET[problem]) @ A.T, A.expand(len(s), 3, 2)


def sum_of_squares(s, problem):
    return linear_residual(s, problem)[0].square().sum(-1)


def rosenbrock(s, problem):
    a, b = s.unbind(-1)
    one, zero = torch.ones_like(a), torch.zeros_like(a)
    jacobian = torch.stack(
        [torch.stack([-20 * a, 10 * one], -1), torch.stack([-one, zero], -1)], dim=-2
    )
    return torch.stack([10 * (b - a**2), 1 - a], -1), jacobian


def well(s, problem):
    """Isotropic quadratic wells at TARGET."""
    return (s - TARGET[problem]).square().sum(-1)


def test_damped_step_without_damping_solves_the_normal_equations():
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(5, 7, 3, dtype=torch.float64, generator=generator)
    r = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    A, g = J.mT @ J, (J.mT @ r[..., None]).squeeze(-1)
    step, predicted = damped_step(A, g, torch.zeros(5, dtype=torch.float64))
    exact = torch.linalg.lstsq(J, -r[..., None]).solution.squeeze(-1)
    torch.testing.assert_close(step, exact)
    decrease = r.square().sum(-1) - (r + (J @ step[..., None]).squeeze(-1)).square().sum(-1)
    torch.testing.assert_close(predicted, decrease)


def test_predicted_decrease_of_a_damped_step_is_that_of_the_linear_model():
    """F(0) - F(delta) - of ||r + J delta||^2 - is at least the value used, 2x damping apart."""
    J = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
    r = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    A, g = J.mT @ J, (J.mT @ r[..., None]).squeeze(-1)
    damping = torch.tensor([0.5], dtype=torch.float64)
    step, predicted = damped_step(A, g, damping)
    linear = r.square().sum() - (r + (J @ step[..., None]).squeeze(-1)).square().sum()
    torch.testing.assert_close(predicted, linear.reshape(1))


def test_a_direction_without_slope_is_left_alone():
    A = torch.diag_embed(torch.tensor([[4.0, 0.0]], dtype=torch.float64))
    step, _ = damped_step(
        A, torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.zeros(1).double()
    )
    torch.testing.assert_close(step, torch.tensor([[-0.5, 0.0]], dtype=torch.float64))


def test_damping_shrinks_to_a_third_at_best_and_grows_ever_faster():
    damping, growth = torch.ones(1), 2 * torch.ones(1)
    assert update_damping(torch.tensor([1.0]), damping, growth)[0].item() == pytest.approx(1 / 3)
    assert update_damping(torch.tensor([0.5]), damping, growth)[0].item() == pytest.approx(1.0)
    for expected in (2.0, 8.0, 64.0):
        damping, growth = update_damping(torch.tensor([-1.0]), damping, growth)
        assert damping.item() == expected


def test_levenberg_marquardt_solves_linear_and_curved_problems():
    solution = levenberg_marquardt(linear_residual, START)
    torch.testing.assert_close(solution.value, TARGET, rtol=1e-8, atol=1e-8)
    assert (solution.status == SolverStatus.CONVERGED).all()
    starts = torch.tensor([[-1.2, 1.0], [3.0, -7.0], [0.0, 0.0]], dtype=torch.float64)
    solution = levenberg_marquardt(rosenbrock, starts)
    torch.testing.assert_close(solution.value, torch.ones_like(starts))
    assert all("converged" in message for message in solution.messages)


def test_levenberg_marquardt_with_a_large_residual_matches_a_grid():
    """min over s of |(cos s, sin s) - t|^2 + const is at the angle of t."""
    angle = torch.tensor([[0.3], [2.0], [-1.0]], dtype=torch.float64)
    target = 5 * torch.cat([angle.cos(), angle.sin()], -1)

    def circle(s, problem):
        point = torch.cat([s.cos(), s.sin()], -1)
        return point - target[problem], torch.stack([-s.sin(), s.cos()], dim=1)

    solution = levenberg_marquardt(circle, angle + 0.8)
    torch.testing.assert_close(solution.value, angle, rtol=0, atol=1e-6)
    assert (solution.status == SolverStatus.CONVERGED).all()


@pytest.mark.parametrize(
    ("solve", "atol"),
    [
        (lambda f, s: lbfgs(f, s), 1e-6),
        (lambda f, s: gradient_descent(f, s, step_size=0.3), 1e-6),
        (lambda f, s: adam(f, s, step_size=0.2, max_iterations=500), 1e-2),
    ],
)
def test_gradient_solvers_find_quadratic_minima(solve, atol):
    solution = solve(well, START)
    torch.testing.assert_close(solution.value, TARGET, rtol=0, atol=atol)
    assert (solution.status == SolverStatus.CONVERGED).all()
    assert (solution.objective <= well(START, torch.arange(3))).all()


def test_gradient_descent_takes_the_steps_of_algorithm_1():
    """s_T - t = (1 - 2 eta)^T (s_0 - t) for the well."""
    solution = gradient_descent(well, START, step_size=0.1, max_iterations=7)
    torch.testing.assert_close(solution.value, TARGET * (1 - 0.8**6))
    assert (solution.status == SolverStatus.MAX_ITERATIONS).all()
    assert all("largest allowed" in message for message in solution.messages)


@pytest.mark.parametrize("solver", [lbfgs, gradient_descent, adam])
def test_a_start_without_a_finite_objective_is_returned_and_reported(solver):
    def broken(s, problem):
        return well(s, problem) + torch.where(problem == 1, torch.nan, 0.0)

    solution = solver(broken, START)
    assert solution.status[1] == SolverStatus.NONFINITE
    assert torch.equal(solution.value[1], START[1])
    assert "not finite" in solution.messages[1]
    assert solution.status[0] != SolverStatus.NONFINITE


def test_levenberg_marquardt_reports_nan_and_never_goes_up():
    def broken(s, problem):
        r, J = linear_residual(s, problem)
        return torch.where(problem[:, None] == 1, torch.nan, r), J

    solution = levenberg_marquardt(broken, START)
    assert solution.status.tolist() == [0, SolverStatus.NONFINITE, 0]
    few = levenberg_marquardt(rosenbrock, torch.tensor([[-1.2, 1.0]]).double(), max_iterations=6)
    assert few.status[0] == SolverStatus.MAX_ITERATIONS
    assert (
        few.objective[0] < rosenbrock(torch.tensor([[-1.2, 1.0]]).double(), None)[0].square().sum()
    )


def test_no_problems_give_an_empty_solution():
    for solve in (lbfgs, gradient_descent, adam):
        assert solve(well, START[:0]).value.shape == (0, 2)
    assert levenberg_marquardt(linear_residual, START[:0]).value.shape == (0, 2)
