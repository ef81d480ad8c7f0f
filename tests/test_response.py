"""The influence of observations on a search whose weights follow the summary."""

from dataclasses import replace

import pytest
import torch

from exact_models import LocationDecoder, features, normal
from mindist.adaptation import Bank, Observations, Problem, Response, Search, View, influence
from mindist.adaptation.block import reweighted_search
from mindist.features.embedding import Embedding

WIDE, LOCAL = features((2,), 64, 2.0), features((2,), 64, 0.9, seed=1)
EMBEDDING = Embedding(WIDE, LOCAL, None)
ONE = torch.ones(2, dtype=torch.float64)
ROUNDS = 200  # a fixed point, to rounding


def view(z):
    decoder, s = LocationDecoder(z), normal(300, 2, seed=3)
    return View(decoder, Bank.of(s, decoder(s), torch.Generator().manual_seed(0)), 1.0)


WIDE_VIEW, LOCAL_VIEW = view(WIDE), view(LOCAL)
OPTIONS = Search(stay=0.0, reweight=ROUNDS)


def search(x, threshold):
    """The fixed point of search and weights of datasets `(B, N, 2)`."""
    seen = Observations.of(EMBEDDING, x)
    return seen, reweighted_search(
        WIDE_VIEW,
        LOCAL_VIEW,
        OPTIONS,
        Problem(x, x.mean(1), seen.wide.mean(1).double()),
        seen,
        mass_threshold=threshold,
        generator=torch.Generator(),
    )


@pytest.fixture(scope="module")
def contaminated():
    x = normal(3, 40, 2, seed=1) + normal(3, 1, 2, seed=2)
    x[:, :8] += torch.tensor([3.0, 2.0]).double()
    return x


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 2.0], ids=["mass of one", "free mass"])
def test_the_influence_is_the_derivative_of_the_fixed_point(contaminated, threshold, monkeypatch):
    """One observation more or less in a thousand, and the fixed point found again."""
    monkeypatch.setattr("mindist.adaptation.weights.SETTLED", 1e-11)
    monkeypatch.setattr("mindist.adaptation.weights.MAX_OWN", 10**4)
    base = contaminated.repeat(1, 25, 1)
    seen, end = search(base, threshold)
    s = end.found.s_star
    objective = WIDE_VIEW.objective(OPTIONS, end.z_bar, end.cloud)
    response = Response.of(seen, LOCAL_VIEW, s, threshold)
    value = influence(objective, s, seen.wide, end.weight, ONE, response).value
    fixed = influence(objective, s, seen.wide, end.weight, ONE).value
    for n in (0, 12, 31):
        more = torch.cat([base, base[:, n : n + 1]], 1)
        less = torch.cat([base[:, :n], base[:, n + 1 :]], 1)
        above, below = (search(x, threshold)[1].found.s_star for x in (more, less))
        slope = (above - below) * base.shape[1] / 2
        torch.testing.assert_close(value[:, n], slope, rtol=2e-2, atol=2e-2)
    # Weights that answer make a difference that the comparison above would see.
    assert (value - fixed).abs().amax() > 0.2


def test_weights_that_are_all_clipped_do_not_answer():
    """Data that the model explains twice over: every weight is one, T is zero."""
    x = normal(2, 30, 2, seed=5)
    seen = Observations.of(EMBEDDING, x)
    seen = replace(seen, own=seen.own / 100)
    s = torch.zeros(2, 2).double()
    response = Response.of(seen, LOCAL_VIEW, s, 0.0)
    clipped = ((response.weight == 0) | (response.weight == 1)).all(1)
    assert clipped.all()
    assert not response.free.any()
    fixed = normal(2, 30, 2, seed=6)
    assert not response.feedback(fixed).any()
    torch.testing.assert_close(response.influence(fixed), response.weight[..., None] * fixed)
