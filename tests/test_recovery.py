import math

import pytest
import torch

from exact_models import features, normal
from mindist import MinimumDistance
from mindist.adaptation import choose_representation
from mindist.adaptation.search import MARGIN, recovery_error
from mindist.features.embedding import Embedding
from mindist.tasks import GaussianTask

SIDE, NUM, NUM_OBS = 16, 600, 20


def uniform(*shape, seed):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def single(*shape, seed):
    return normal(*shape, seed=seed, dtype=torch.float32)


def blobs(amplitude, centre, noise, seed):
    """Images of a blob at `centre`, `(M, N, 2)`, on a torus."""
    away = (torch.arange(SIDE) - centre[..., None] + SIDE / 2) % SIDE - SIDE / 2
    row, column = torch.exp(-away.square() / (2 * 1.5**2)).unbind(2)
    image = amplitude * row[..., :, None] * column[..., None, :]
    return image + noise * single(*image.shape, seed=seed)


# ---------------------------------------------------------------------------- the error


@pytest.fixture(scope="module")
def gaussian():
    """A thousand datasets of a location between -3 and 3, and their means."""
    x = 6 * uniform(1_000, 1, 1, seed=1).double() - 3 + normal(1_000, 50, 1)
    return x, x.mean(1)


def recovery(x, s, bandwidth, seed=0):
    embedding = Embedding(features((1,), 256, bandwidth), None)
    return recovery_error(embedding, x, s, torch.Generator().manual_seed(seed))


def test_the_error_of_a_location_is_the_closed_form(gaussian):
    """Var(s* - mean), with c = h^2 + 1, is ((1 + 1/c)^3 / (1 + 2/c)^1.5 - 1) / N.

    The variance of a difference is that of s* less that of the mean, which is efficient. Var s is
    3 + 1/N.
    """
    x, s = gaussian
    for bandwidth in (1.0, 2.0, 3.0):
        c = bandwidth**2 + 1
        excess = ((1 + 1 / c) ** 3 / (1 + 2 / c) ** 1.5 - 1) / 50
        known = math.log(excess / (3 + 1 / 50))
        # 250 held out give a relative error of sqrt(2 / 250); a fitted decoder adds a little.
        interval = 3.5 * math.sqrt(2 / 250)
        assert recovery(x, s, bandwidth) == pytest.approx(known, abs=interval + 0.1)


def test_the_error_depends_on_the_decoders_features_by_less_than_the_margin():
    x = normal(1_000, 1, 1, seed=1) + normal(1_000, 50, 1)
    errors = [recovery(x, x.mean(1), 3.0, seed) for seed in range(4)]
    assert max(errors) - min(errors) < MARGIN


def test_the_error_has_no_units(gaussian):
    x, s = gaussian
    given = recovery(x, s, 2.0)
    assert recovery(x, 1e6 * s, 2.0) == pytest.approx(given, abs=1e-3)


def test_a_summary_that_the_embedding_does_not_know_has_an_error_above_one(gaussian):
    """E (s* - s)^2 >= Var s for an s* that is independent of s."""
    x, _ = gaussian
    assert recovery(x, normal(1_000, 1, seed=5), 2.0) > -3.5 * math.sqrt(2 / 250)


def test_summaries_that_never_vary_are_left_out(gaussian):
    x, s = gaussian
    both = torch.cat([s, torch.full_like(s, 2.5)], 1)
    assert recovery(x, both, 2.0) == pytest.approx(recovery(x, s, 2.0), abs=0.3)


# ---------------------------------------------------------------------------- the choice


def test_a_gaussian_is_seen_as_it_is():
    x = single(NUM, 1, 2, seed=0) + single(NUM, 50, 2, seed=1)
    assert choose_representation(x, x.mean(1), "median") == "identity"


def test_numbers_over_five_decades_are_seen_through_their_logarithm():
    scale = 5 * math.log(10) * uniform(NUM, 1, seed=3)
    x = torch.exp(scale + 0.5 * single(NUM, 50, seed=2))
    assert choose_representation(x, x.log().mean(1, keepdim=True), "median") == "signed-log"


def test_images_with_random_shifts_are_seen_through_their_spectrum():
    amplitude = 0.5 + 2 * uniform(NUM, 1, 1, 1, seed=5)
    x = blobs(amplitude, SIDE * uniform(NUM, NUM_OBS, 2, seed=1), 0.3, seed=2)
    energy = x.square().mean((1, 2, 3))[:, None]
    assert choose_representation(x, energy, "median") == "power-spectrum"


def test_images_whose_summary_is_a_position_are_seen_as_they_are():
    centre = (5 + 6 * uniform(NUM, 1, 2, seed=6)).expand(NUM, NUM_OBS, 2)
    x = blobs(1.0, centre, 0.1, seed=2)
    mean, axis = x.mean(1), torch.arange(float(SIDE))
    position = torch.stack([mean.sum(2) @ axis, mean.sum(1) @ axis], 1)
    assert choose_representation(x, position, "median") == "identity"


@pytest.mark.parametrize("event", [(2,), (3, 2)])
def test_coordinates_in_other_units_are_seen_in_units_of_their_own(event):
    units = torch.tensor([1.0, 1_000.0])
    x = units * (single(NUM, 1, *event, seed=0) + single(NUM, 50, *event, seed=1))
    s = x.mean(1).flatten(1)[:, :2]
    assert choose_representation(x, s, "median") == "standardised"
    assert choose_representation(x / units, s / units, "median") == "identity"


@pytest.mark.slow
def test_the_units_of_a_coordinate_do_not_change_the_error_of_the_default():
    """Grams or kilograms: the same observations, contaminated alike, to 10% in each coordinate."""
    task, generator = GaussianTask(), torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(500, generator), generator=generator)
    theta = task.sample_prior(50, generator)
    clean = task.simulate(theta, generator=generator)
    x_obs = task.contaminate(clean, 0.2, generator=generator)

    def errors(units, representation="auto"):
        units = torch.tensor(units)
        mds = MinimumDistance(task.summary, representation=representation, num_features=128).fit(
            units * x
        )
        found = mds.adapt(units * x_obs).s_star / units
        return (found - theta).square().mean(0).sqrt()

    plain, rescaled = errors([1.0, 1.0]), errors([1.0, 1_000.0])
    torch.testing.assert_close(rescaled, plain, rtol=0.1, atol=0)
    # Residuals have no units: neither matters what the kernel of the projection sees.
    torch.testing.assert_close(errors([1.0, 1_000.0], "identity"), plain, rtol=0.1, atol=0)


def test_the_choice_is_the_same_every_time_and_leaves_the_global_seed_alone():
    x = single(NUM, 1, 2, seed=0) + single(NUM, 50, 2, seed=1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = choose_representation(x, x.mean(1), "median")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert choose_representation(x, x.mean(1), "median") == first


def test_a_bandwidth_in_the_units_of_the_data_needs_the_data_as_they_suit():
    x = torch.exp(10 * uniform(50, 1, seed=0) + single(50, 20, seed=1))
    assert choose_representation(x, x.mean(1, keepdim=True), 1.0) == "identity"
    assert choose_representation(normal(5, 2, 2, 2, 2), normal(5, 1), "median") == "identity"


def test_a_representation_in_which_all_observations_are_equal_is_passed_over():
    """A pixel that moves: a spectrum cannot see it, and has a median distance of 0."""
    where = torch.randint(SIDE, (NUM,), generator=torch.Generator().manual_seed(1))
    x = torch.zeros(NUM, 5, SIDE, SIDE)
    x[torch.arange(NUM), :, where, where] = 1
    assert choose_representation(x, where[:, None].float(), "median") == "identity"
