"""Linear systems: equal bits in every call, and least norm where a matrix is singular."""

import pytest
import torch

from exact_models import normal
from mindist.adaptation.influence import solve


def test_solutions_solve() -> None:
    matrix, right = torch.eye(5) + normal(3, 5, 5, seed=1) / 3, normal(3, 5, 40, seed=2)
    torch.testing.assert_close(matrix @ solve(matrix, right), right)


@pytest.mark.parametrize("num", [2, 8, 13])
def test_equal_calls_have_equal_bits(num: int) -> None:
    """Wherever in memory the workspace lies: `torch.linalg.lstsq` fails this."""
    matrix, right = torch.eye(num) + normal(1, num, num, seed=1) / num, normal(1, num, 100, seed=2)
    first, held = solve(matrix, right), []
    for size in range(1, 300):
        held.append(bytearray(37 * size))
        if size % 3 == 0:
            held.pop(size // 2)
        assert torch.equal(solve(matrix, right), first)


@pytest.mark.parametrize("small", [0.0, 1e-17])
def test_a_singular_matrix_gives_the_solution_of_least_norm(small: float) -> None:
    turn = torch.linalg.qr(normal(3, 3, seed=1)).Q
    singular = turn @ torch.diag(torch.tensor([2.0, 1.0, small], dtype=torch.float64)) @ turn.T
    matrix = torch.stack([torch.eye(3, dtype=torch.float64), singular])
    right = normal(2, 3, 4, seed=2)
    found = solve(matrix, right)
    torch.testing.assert_close(found[0], right[0])
    expected = torch.linalg.pinv(singular, rtol=1e-12) @ right[1]
    torch.testing.assert_close(found[1], expected)


def test_no_systems() -> None:
    empty = torch.zeros(0, 2, 2, dtype=torch.float64)
    assert solve(empty, torch.zeros(0, 2, 7, dtype=torch.float64)).shape == (0, 2, 7)
