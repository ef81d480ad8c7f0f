import math

import pytest
import torch

from exact_models import features, normal
from mindist import MinimumDistance
from mindist.features.embedding import DENSITY, LOCAL_MULTIPLES, Embedding, local_multiple
from mindist.features.representation import make_representation
from mindist.schema import moved

SHAPES = [(), (1,), (3,), (2, 4)]
RULES = [None, "identity", "standardised", "signed-log"]


def embedding_of(x, rule, local=True):
    """An embedding of datasets `(M, N, *event)` with 8 wide and 6 local features."""
    representation = None if rule is None else make_representation(rule, x)
    shape = tuple(x.shape[2:]) if representation is None else (representation.size,)
    narrow = features(shape, 6, 0.5, seed=1) if local else None
    return Embedding(features(shape, 8, 1.0), narrow, representation)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("local", [False, True])
def test_the_mean_is_that_of_the_cosines_of_each_observation(shape, rule, local):
    x = normal(4, 5, *shape)
    embedding = embedding_of(x, rule, local)
    assert embedding.event_shape == shape
    seen = embedding.represent(x)
    assert seen.shape == (4, 5, math.prod(shape))
    if rule in (None, "identity"):
        assert torch.equal(seen, x.reshape(4, 5, -1))
    kernels = [embedding.features] + ([embedding.local] if local else [])
    expected = []
    for z in kernels:
        phase = seen @ z.weight
        wave = torch.cat([phase.cos(), phase.sin()], 2) * math.sqrt(2 / z.num_features)
        expected.append(wave.mean(1))
    z_bar = embedding.mean(x)
    assert z_bar.shape == (4, embedding.total) == (4, 14 if local else 8)
    torch.testing.assert_close(z_bar, torch.cat(expected, 1))
    torch.testing.assert_close(embedding(x).mean(1), expected[0])
    wide, narrow = embedding.split(z_bar)
    torch.testing.assert_close(wide, expected[0])
    if local:
        torch.testing.assert_close(narrow, expected[1])
        assert embedding.density is embedding.local
    else:
        assert narrow is None
        assert embedding.density is embedding.features


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_does_not_depend_on_blocks(monkeypatch, shape, rule):
    x = normal(7, 5, *shape)
    embedding = embedding_of(x, rule)
    at_once = embedding.mean(x)
    for datasets in (1, 2, 3):
        monkeypatch.setattr("mindist.features.embedding.CHUNK_BYTES", datasets * x[:1].nbytes)
        torch.testing.assert_close(embedding.mean(x), at_once)
    torch.testing.assert_close(torch.cat([embedding.mean(row[None]) for row in x]), at_once)


@pytest.mark.parametrize("rule", RULES)
def test_no_dataset_has_no_embedding(rule):
    x = normal(4, 5, 3)
    assert embedding_of(x, rule).mean(x[:0]).shape == (0, 14)


def test_images_are_seen_through_their_representation():
    x = normal(4, 5, 8, 8)
    embedding = embedding_of(x, "power-spectrum")
    assert embedding.event_shape == (8, 8)
    assert embedding.features.event_shape == (5,)
    shifted = x.roll((3, 2), (2, 3))  # of which a spectrum knows nothing
    torch.testing.assert_close(embedding.mean(shifted), embedding.mean(x))


def test_moving_to_a_device_keeps_the_embedding():
    x = normal(4, 5, 3)
    for rule in RULES:
        for local in (False, True):
            embedding = embedding_of(x, rule, local)
            again = moved(embedding, torch.device("cpu"))
            assert torch.equal(again.mean(x), embedding.mean(x))


# ---------------------------------------------------------------------------- the local kernel


@pytest.mark.parametrize("multiple", LOCAL_MULTIPLES)
def test_the_local_kernel_is_the_narrowest_that_sees_a_distance_of_one(multiple):
    """exp(-1 / 2 h^2) is DENSITY at h = (-2 log DENSITY)^-1/2."""
    x = torch.tensor([[[0.0], [1.0]]]).double()
    edge = 1 / math.sqrt(-2 * math.log(DENSITY)) / multiple
    assert local_multiple(x, edge * 1.001) == multiple
    wider = [m for m in LOCAL_MULTIPLES if m > multiple]
    assert local_multiple(x, edge * 0.999) == (wider[0] if wider else None)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_local_kernel_of_a_gaussian_is_the_closed_form(dim):
    """E k(x, x') = (1 + 2 / h^2)^(-d/2) for x, x' ~ N(theta, I), whatever theta varies."""
    x = 100 * normal(200, 1, dim, seed=1) + normal(200, 50, dim)
    for bandwidth in (1.0, 2.0, 3.0, 5.0, 8.0):
        densities = {m: (1 + 2 / (m * bandwidth) ** 2) ** (-dim / 2) for m in LOCAL_MULTIPLES}
        if min(abs(value - DENSITY) for value in densities.values()) < 0.01:
            continue  # too close to call for 200 datasets
        expected = next((m for m in LOCAL_MULTIPLES if densities[m] >= DENSITY), None)
        assert local_multiple(x, bandwidth) == expected


def test_an_observation_does_not_count_as_its_own_neighbour():
    x = torch.tensor([[[0.0], [1e3]]]).double()
    assert local_multiple(x, 1.0) is None
    assert local_multiple(x[:, :1], 1.0) is None


# ---------------------------------------------------------------------------- observed numbers


@pytest.mark.parametrize("rule", ["identity", "raw"])
def test_an_estimator_takes_datasets_of_numbers(rule):
    x = normal(400, 20, dtype=torch.float32) + normal(400, 1, seed=1, dtype=torch.float32)
    mds = MinimumDistance(
        lambda x: x.mean(1, keepdim=True), representation=rule, num_features=32
    ).fit(x)
    assert mds.event_shape == ()
    assert mds.adapt(x[0] + 30).misspecified
