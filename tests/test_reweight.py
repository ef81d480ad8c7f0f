import math
from dataclasses import replace

import pytest
import torch

from mindist import MinimumDistance
from mindist.adaptation import (
    Observations,
    Problem,
    Search,
    reweighted_search,
    search,
)
from mindist.adaptation.block import heavier
from mindist.adaptation.weights import take_weights
from mindist.tasks import GaussianTask

TASK = GaussianTask()
NUM = 100


@pytest.fixture(scope="module")
def fitted():
    generator = torch.Generator().manual_seed(0)
    x = TASK.simulate(TASK.sample_prior(3_000, generator), generator=generator)
    fitted = MinimumDistance(TASK.summary, representation="identity").fit(x).fitted_
    assert fitted.local is not None
    return fitted


@pytest.fixture(scope="module")
def clean():
    generator = torch.Generator().manual_seed(7)
    return TASK.simulate(TASK.sample_prior(NUM, generator), generator=generator)


@pytest.fixture(scope="module")
def contaminated(clean):
    return TASK.contaminate(clean, 0.3, generator=torch.Generator().manual_seed(8))


def weigh(fitted, x, options, local=True):
    z_bar, _ = fitted.embedding.split(fitted.embedding.mean(x).double())
    return reweighted_search(
        fitted.wide,
        fitted.local if local else None,
        options,
        Problem(x, TASK.summary(x), z_bar),
        Observations.of(fitted.embedding, x),
        mass_threshold=fitted.mass_threshold(x.shape[1]),
        generator=torch.Generator().manual_seed(0),
    )


def rmse(weighed, clean):
    return (weighed.found.s_star - clean.mean(1)).square().sum(1).mean().sqrt().item()


def test_weights_take_a_third_of_the_error_of_contamination_at_least(fitted, clean, contaminated):
    plain = weigh(fitted, contaminated, Search(reweight=0))
    weighed = weigh(fitted, contaminated, Search())
    assert rmse(weighed, clean) < 2 / 3 * rmse(plain, clean)
    # Paired over datasets: more often better than a coin would be.
    error = [(w.found.s_star - clean.mean(1)).norm(dim=1) for w in (weighed, plain)]
    better = (error[0] < error[1]).double().mean().item()
    assert better > 0.5 + 3 * 0.5 / math.sqrt(NUM)


def test_contaminated_observations_weigh_less(fitted, clean, contaminated):
    weight = weigh(fitted, contaminated, Search()).weight
    replaced = (contaminated != clean).any(2)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert weight[replaced].mean() < 0.2
    assert weight[~replaced].mean() > 0.8


def test_clean_observations_keep_their_weight(fitted, clean):
    weighed = weigh(fitted, clean, Search())
    assert weighed.weight.mean() > 0.85
    assert rmse(weighed, clean) < 0.5 * math.sqrt(2 / 100)  # well within the error of a mean


def test_without_rounds_all_weigh_one(fitted, contaminated):
    options = Search(reweight=0)
    weighed = weigh(fitted, contaminated, options)
    assert (weighed.weight == 1).all()
    z_bar, _ = fitted.embedding.split(fitted.embedding.mean(contaminated).double())
    torch.testing.assert_close(weighed.z_bar, z_bar)
    plain = search(
        fitted.wide,
        options,
        Problem(contaminated, TASK.summary(contaminated), z_bar),
        torch.Generator().manual_seed(0),
    )
    assert torch.equal(weighed.found.s_star, plain.s_star)


@pytest.mark.parametrize("rounds", [0, 1, 6])
@pytest.mark.parametrize("local", [True, False])
def test_the_objective_never_grows(fitted, contaminated, rounds, local):
    fitted = fitted if local else _wide_only(fitted)
    options = Search(reweight=rounds)
    weighed = weigh(fitted, contaminated[:20], options, local)
    found = weighed.found
    assert (found.objective_star <= found.objective_obs).all()
    objective = fitted.wide.objective(options, weighed.z_bar, weighed.cloud)
    every = torch.arange(20)
    torch.testing.assert_close(objective(found.s_star, every), found.objective_star)
    s_obs = TASK.summary(contaminated[:20]).double()
    torch.testing.assert_close(objective(s_obs, every), found.objective_obs)


def test_the_embedding_is_that_of_the_weighed_observations(fitted, contaminated):
    x = contaminated[:10]
    weighed = weigh(fitted, x, Search())
    seen = Observations.of(fitted.embedding, x)
    expected = (weighed.weight[..., None] * seen.wide).sum(1) / weighed.weight.sum(1)[:, None]
    torch.testing.assert_close(weighed.z_bar, expected, rtol=1e-4, atol=1e-6)


def test_the_end_is_a_fixed_point(fitted, contaminated):
    """After many rounds the weights are those of the summary that they lead to."""
    x = contaminated[:20]
    weighed = weigh(fitted, x, Search(reweight=60))
    mu = fitted.local.decoder(weighed.found.s_star)
    again = Observations.of(fitted.embedding, x).fit(mu).weight(fitted.mass_threshold(100))
    assert (again - weighed.weight).abs().max() < 2e-3


def test_a_dataset_hardly_depends_on_its_batch(fitted, contaminated):
    """Rounds end when no weight of the batch moves by 1e-3, which another dataset may delay."""
    x = contaminated[:10]
    together = weigh(fitted, x, Search()).found.s_star
    alone = torch.cat([weigh(fitted, row[None], Search()).found.s_star for row in x])
    torch.testing.assert_close(alone, together, rtol=0, atol=2e-3)


def test_data_that_no_model_explains_keep_their_weights(fitted):
    x = torch.full((1, 100, 2), 11.0) + torch.randn(
        1, 100, 2, generator=torch.Generator().manual_seed(1)
    )
    x[:, ::2] *= -1  # two clusters, far from all simulations
    weighed = weigh(fitted, x, Search())
    assert (weighed.weight.mean(1) >= 0.05).all()
    assert torch.isfinite(weighed.found.s_star).all()


def test_the_second_weights_have_to_be_clearly_heavier():
    a, b = torch.tensor([[0.5, 0.25], [0.5, 0.0]]), torch.tensor([[0.125, 1.0], [0.0, 0.875]])
    assert torch.equal(heavier(a, b), torch.stack([a[0], b[1]]))  # 1.125 = 1.5 x 0.75; 0.875 > 0.75


def _wide_only(fitted):
    return replace(fitted, local=None, embedding=replace(fitted.embedding, local=None))


def test_weights_are_taken_where_they_differ_and_are_enough():
    old = torch.full((4, 3), 0.5).double()
    new = torch.tensor([[0.5, 0.5, 0.5 + 1e-4], [0.01, 0.01, 0.01], [0.5, 0.6, 0.5]]).double()
    weight = old.clone()
    assert take_weights(new, torch.tensor([0, 2, 3]), weight).tolist() == [3]
    assert torch.equal(weight, torch.cat([old[:3], new[2:]]))
