"""Leading directions by iteration, against an eigendecomposition of everything."""

from pathlib import Path

import pytest
import torch

from exact_models import normal
from mindist.detection.statistics import (
    DAMPING,
    MAX_DIRECTIONS,
    Mahalanobis,
    SummaryRegression,
    leading_directions,
)
from mindist.schema import Record, pack

WIDE = MAX_DIRECTIONS + 176


def decaying(num, width, seed=0):
    """Rows whose directions have eigenvalues that halve every eight."""
    scale = 2.0 ** (-torch.arange(width) / 16)
    turn = torch.linalg.qr(normal(width, width, seed=seed + 1)).Q
    return normal(num, width, seed=seed) * scale @ turn


def test_few_directions_of_many_are_those_of_the_eigendecomposition():
    rows = decaying(300, WIDE)
    found = leading_directions(rows, 20)
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    torch.testing.assert_close(found.T @ found, torch.eye(20).double())
    # Of the squared length of the rows, what the best 20 directions leave out.
    whole = rows.square().sum()
    left = [whole - (rows @ basis).square().sum() for basis in (found, vectors.flip(1)[:, :20])]
    assert left[1] <= left[0] < left[1] * (1 + 1e-4)


def test_up_to_a_thousand_columns_they_are_exact():
    rows = decaying(200, 50)
    _, vectors = torch.linalg.eigh(rows.T @ rows)
    product = leading_directions(rows, 10).T @ vectors.flip(1)[:, :10]
    torch.testing.assert_close(product.abs(), torch.eye(10).double(), rtol=0, atol=1e-10)


def test_no_more_directions_than_rows():
    assert leading_directions(decaying(7, WIDE), 20).shape == (WIDE, 7)


def test_mahalanobis_lengths_are_those_of_the_inverse():
    residual = decaying(400, 30)
    S = residual.T @ residual / 400
    damped = S + DAMPING * torch.linalg.eigvalsh(S)[-1] * torch.eye(30).double()
    expected = (residual @ torch.linalg.inv(damped) * residual).sum(1)
    torch.testing.assert_close(Mahalanobis.of(residual).squared(residual), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mahalanobis_lengths_in_many_dimensions(dtype):
    residual = decaying(3_000, WIDE)
    S = residual.T @ residual / 3_000
    damped = S + DAMPING * torch.linalg.eigvalsh(S)[-1] * torch.eye(WIDE).double()
    r = torch.cat([residual[:50], normal(50, WIDE, seed=9)])  # also where simulations have nothing
    expected = (r @ torch.linalg.inv(damped) * r).sum(1)
    mahalanobis = Mahalanobis.of(residual.to(dtype))
    assert mahalanobis.whitener.shape == (WIDE, MAX_DIRECTIONS)
    torch.testing.assert_close(mahalanobis.squared(r.to(dtype)), expected, rtol=1e-3, atol=0)
    config, tensors = pack(mahalanobis)
    again = Record(Path("f"), config, tensors=tensors).read(Mahalanobis)
    assert torch.equal(again(r), mahalanobis(r))


def test_residuals_that_are_all_zero_have_a_length_of_zero():
    zero = torch.zeros(5, 3).double()
    assert Mahalanobis.of(zero)(zero).isfinite().all()


def test_a_regression_on_many_features_finds_what_few_of_them_say():
    z = decaying(1_500, WIDE)
    s = z[:, :3] + 1e-3 * normal(1_500, 3, seed=5)
    regression, left_out = SummaryRegression.of(z, s)
    # The noise, in units of the standard deviation of the summary, and a little of what the
    # summary has in directions that few simulations show.
    noise = 1e-3 / s.std(0, unbiased=False)
    assert (regression(z, s).square().mean(0).sqrt() < 1.1 * noise).all()
    assert (left_out.square().mean(0).sqrt() < 4 * noise).all()
