"""A decoder whose basis are cosines: its second derivatives, and its search."""

import pytest
import torch

from exact_models import normal
from mindist.adaptation.influence import hessian
from mindist.adaptation.search import EmbeddingDistance, Problem, Search, View, search
from mindist.adaptation.starts import Bank
from mindist.decoders import RidgeDecoder

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


@pytest.mark.parametrize("stay", [0.0, 0.3])
def test_the_hessian_is_that_of_autograd(decoder, view, far, stay):
    fitted, s, _ = decoder
    objective = EmbeddingDistance(fitted, far[:5], view.bank.cloud(far[:5]), stay)

    def of(i):
        return lambda row: objective(row[None], torch.tensor([i]))[0] / 2

    at = s[:5]
    exact = torch.stack([torch.autograd.functional.hessian(of(i), at[i]) for i in range(5)])
    positive = torch.linalg.eigvalsh(exact)[:, 0] > 0
    value = hessian(objective, at, torch.ones(3).double())
    assert positive.any()
    torch.testing.assert_close(value[positive], exact[positive], rtol=1e-6, atol=1e-6)


def test_a_summary_that_never_varies_stays_where_it_is(decoder):
    _, s, z = decoder
    s = torch.cat([s, torch.full((len(s), 1), 7.0).double()], 1)
    fitted = RidgeDecoder(num_basis=100).fit(s, z, generator=generator())
    view = View(fitted, Bank.of(s, z, generator()), fitted.held_out_error)
    found = search(view, Search(stay=0.0), Problem(s[:5], s[:5] + 0.1, z[:5]), generator())
    torch.testing.assert_close(found.s_star[:, 3], torch.full((5,), 7.0).double())
