import math

import pytest
import torch

from exact_models import features, normal
from mindist import MinimumDistance
from mindist.features.embedding import Embedding
from mindist.features.representation import make_representation
from mindist.schema import moved

SHAPES = [(), (1,), (3,), (2, 4)]
RULES = [None, "identity", "standardised", "signed-log"]


def embedding_of(x, rule):
    """An embedding of datasets `(M, N, *event)` with 8 features."""
    representation = None if rule is None else make_representation(rule, x)
    shape = tuple(x.shape[2:]) if representation is None else (representation.size,)
    return Embedding(features(shape, 8, 1.0), representation)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_is_that_of_the_cosines_of_each_observation(shape, rule):
    x = normal(4, 5, *shape)
    embedding = embedding_of(x, rule)
    assert embedding.event_shape == shape
    seen = embedding.represent(x)
    assert seen.shape == (4, 5, math.prod(shape))
    if rule in (None, "identity"):
        assert torch.equal(seen, x.reshape(4, 5, -1))
    phase = seen @ embedding.features.weight
    wave = torch.cat([phase.cos(), phase.sin()], 2) * math.sqrt(2 / embedding.num_features)
    torch.testing.assert_close(embedding(x), wave)
    torch.testing.assert_close(embedding.mean(x), wave.mean(1))


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
    assert embedding_of(x, rule).mean(x[:0]).shape == (0, 8)


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
        embedding = embedding_of(x, rule)
        again = moved(embedding, torch.device("cpu"))
        assert torch.equal(again.mean(x), embedding.mean(x))


# ---------------------------------------------------------------------------- observed numbers


@pytest.mark.parametrize("rule", ["identity", "raw"])
def test_an_estimator_takes_datasets_of_numbers(rule):
    x = normal(400, 20, dtype=torch.float32) + normal(400, 1, seed=1, dtype=torch.float32)
    mds = MinimumDistance(
        lambda x: x.mean(1, keepdim=True), representation=rule, num_features=32
    ).fit(x)
    assert mds.event_shape == ()
    assert mds.adapt(x[0] + 30).misspecified
