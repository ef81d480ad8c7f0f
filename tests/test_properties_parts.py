"""Properties of the parts, over shapes, types and scales: what must not change does not.

Every property has a known value: a norm of 1, an exact equality under a power of two, a p-value
that depends on ranks alone.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mindist import checks
from mindist.decoders import MLPDecoder, RidgeDecoder
from mindist.detection import CombinedTest, NullDistances, SummaryOutlyingness
from mindist.features import FourierFeatures, make_representation, median_distance
from mindist.features.embedding import Embedding

FEW = settings(derandomize=True, deadline=None, max_examples=25, database=None)

SHAPES = st.sampled_from([(), (1,), (3,), (9,), (2, 3), (1, 1)])
SEEDS = st.integers(0, 2**31)
SCALES = st.integers(-100, 100).map(lambda power: 2.0**power)  # 1e-30 to 1e30
UNITS = st.integers(-4, 100).map(lambda power: 2.0**power)  # of lengths above rounding
FLOATS = st.sampled_from([torch.float32, torch.float64])
NUMPY = st.sampled_from(["f2", "<f4", ">f4", "<f8", ">f8", "i1", ">i2", "i4", "i8", "u1", "?"])


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def draw(shape: tuple[int, ...], bandwidth: float, seed: int = 0) -> FourierFeatures:
    generator = torch.Generator().manual_seed(seed)
    return FourierFeatures.draw(shape, 16, bandwidth=bandwidth, generator=generator)


# ------------------------------------------------------------------------------ arrays


@FEW
@given(kind=NUMPY, seed=SEEDS, reverse=st.booleans(), transpose=st.booleans())
def test_numbers_of_every_type_and_layout_stay_the_numbers_they_are(kind, seed, reverse, transpose):
    values = np.random.default_rng(seed).integers(0, 2 if kind == "?" else 100, (4, 3, 2))
    array = values.astype(kind)
    array = array[::-1] if reverse else array
    array = array.transpose(2, 1, 0) if transpose else array
    tensor = checks.as_tensor(array, "x")
    assert tensor.dtype in (torch.float32, torch.float64)
    assert np.array_equal(tensor.numpy(), array.astype("f8"))


def test_a_tensor_that_is_not_dense_is_refused():
    with pytest.raises(TypeError, match="x: expected an ordinary, dense tensor"):
        checks.as_tensor(torch.ones(3, 2).to_sparse(), "x")


# ------------------------------------------------------------------------------ features


@FEW
@given(shape=SHAPES, dtype=FLOATS, scale=SCALES, seed=SEEDS)
def test_features_do_not_know_units(shape, dtype, scale, seed):
    x = normal(3, 5, *shape, seed=seed, dtype=dtype)
    here, there = draw(shape, 1.5), draw(shape, 1.5 * scale)
    assert torch.equal(here(x), there(x * scale))
    assert torch.equal(here.mean(x), there.mean(x * scale))


@FEW
@given(shape=SHAPES, dtype=FLOATS, scale=SCALES, seed=SEEDS)
def test_every_feature_vector_has_length_one_and_copies_have_it_together(shape, dtype, scale, seed):
    x = scale * normal(4, 1, *shape, seed=seed, dtype=dtype)
    z = draw(shape, scale)
    copies = x.expand(4, 7, *shape)
    torch.testing.assert_close(z(x).norm(dim=-1), torch.ones(4, 1, dtype=dtype))
    torch.testing.assert_close(z.mean(copies), z(x)[:, 0], atol=1e-6, rtol=0)


@FEW
@given(shape=SHAPES, seed=SEEDS, num=st.integers(1, 70))
def test_an_embedding_is_that_of_a_set_and_of_one_dataset_at_a_time(shape, seed, num):
    x = normal(4, num, *shape, seed=seed, dtype=torch.float32)
    wide = draw(shape, 2.0)
    embedding = Embedding(wide, None)
    z_bar = embedding.mean(x)
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    same = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(embedding.mean(x[:, order]), z_bar, **same)
    torch.testing.assert_close(embedding.mean(x.flip(0)), z_bar.flip(0), **same)
    torch.testing.assert_close(torch.cat([embedding.mean(one[None]) for one in x]), z_bar, **same)
    torch.testing.assert_close(embedding.mean(x.repeat_interleave(3, 1)), z_bar, **same)
    torch.testing.assert_close(embedding.mean(x.double()).float(), z_bar, atol=1e-5, rtol=0)


@FEW
@given(shape=SHAPES, scale=SCALES, seed=SEEDS, dtype=FLOATS)
def test_a_median_distance_has_the_units_of_the_data(shape, scale, seed, dtype):
    x = normal(6, 5, *shape, seed=seed, dtype=dtype)
    here, there = (median_distance(y, torch.Generator().manual_seed(0)) for y in (x, scale * x))
    assert here > 0
    assert there == pytest.approx(scale * here, rel=1e-12)


def test_a_median_distance_of_data_beyond_squares():
    x = 1e200 * normal(6, 5, 3, seed=0)
    expected = 1e200 * median_distance(x / 1e200, torch.Generator().manual_seed(0))
    assert median_distance(x, torch.Generator().manual_seed(0)) == pytest.approx(expected)


@FEW
@given(
    name=st.sampled_from(["standardised", "signed-log", "power-spectrum"]),
    scale=SCALES,
    seed=SEEDS,
    dtype=FLOATS,
)
def test_a_fitted_representation_has_no_units(name, scale, seed, dtype):
    x = 3 + normal(20, 5, 9, seed=seed, dtype=dtype)
    here, there = (make_representation(name, y)(y) for y in (x, scale * x))
    if name == "power-spectrum":  # a logarithm: units are added
        there = there - 2 * np.log(scale)
    torch.testing.assert_close(there, here, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["power-spectrum", "identity"])
def test_what_overflows_is_represented_at_the_end_of_the_range(name):
    x = normal(20, 5, 8, seed=0, dtype=torch.float32)
    largest = torch.finfo(torch.float32).max * torch.tensor([1.0, -1.0]).repeat(4)
    represented = make_representation(name, x)
    assert torch.isfinite(represented(largest)).all()
    assert (represented(largest) >= represented.bounds.lo.float()).all()


# ------------------------------------------------------------------------------ decoders


@settings(FEW, max_examples=10)
@given(scale=SCALES, seed=SEEDS, dtype=FLOATS)
def test_a_decoder_does_not_know_the_units_of_a_summary(scale, seed, dtype):
    s = normal(60, 2, seed=seed, dtype=dtype)
    z_bar = torch.cat([s.cos(), s.sin()], 1)
    for make in (lambda: RidgeDecoder(20), lambda: MLPDecoder(max_epochs=2)):
        fits = [
            make().fit(c * s, z_bar, generator=torch.Generator().manual_seed(0))(c * s.double())
            for c in (1.0, scale)
        ]
        assert torch.isfinite(fits[0]).all()
        torch.testing.assert_close(fits[1], fits[0], atol=1e-9, rtol=1e-9)


@settings(FEW, max_examples=10)
@given(seed=SEEDS, value=st.floats(-1e30, 1e30), num=st.integers(2, 40))
def test_a_summary_that_never_varied_changes_nothing(seed, value, num):
    s = torch.cat([normal(num, 1, seed=seed), torch.full((num, 1), value)], 1)
    decoder = RidgeDecoder(20).fit(s, s[:, :1].sin(), generator=torch.Generator())
    elsewhere = torch.cat([s[:, :1], torch.full((num, 1), -3.0)], 1)
    assert torch.isfinite(decoder(s)).all()
    assert torch.equal(decoder(s), decoder(elsewhere))


@pytest.mark.parametrize("num", [2, 3])
def test_a_decoder_of_two_or_three_simulations_or_of_copies_is_finite(num):
    s = normal(num, 2, seed=0)
    for rows in (s, s[:1].repeat(5, 1)):
        decoder = RidgeDecoder(10).fit(rows, rows.sin(), generator=torch.Generator())
        assert torch.isfinite(decoder(rows)).all()
    torch.testing.assert_close(decoder(s[:1].double()), s[:1].sin(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("num", [0, 1])
def test_a_decoder_of_fewer_says_so(num):
    with pytest.raises(ValueError, match="x: expected some hundreds of simulated datasets"):
        RidgeDecoder().fit(normal(num, 2, seed=0), normal(num, 4, seed=0), generator=None)


# ------------------------------------------------------------------------------ detection


@FEW
@given(seed=SEEDS, num=st.integers(1, 60), columns=st.integers(1, 4), ties=st.booleans())
def test_a_combined_p_value_depends_on_ranks_alone(seed, num, columns, ties):
    null, seen = normal(num, columns, seed=seed), normal(20, columns, seed=seed + 1)
    if ties:
        null, seen = null.round(), seen.round()
    names = tuple("abcd"[:columns])
    test = CombinedTest(null, names)
    p = test.p_value(seen)
    assert ((p >= 1 / (num + 1)) & (p <= 1)).all()
    assert (p >= test.p_values(seen).amin(1) - 1e-12).all()
    other = CombinedTest((2 * null.flip(0)).exp().flip(1), names)
    assert torch.equal(other.p_value((2 * seen).exp().flip(1)), p)
    assert torch.equal(torch.cat([test.p_value(one[None]) for one in seen]), p)


@FEW
@given(seed=SEEDS, num=st.integers(1, 60), scale=UNITS, ratio=st.sampled_from([0.5, 1, 4]))
def test_null_distances_have_no_units(seed, num, scale, ratio):
    distance, seen = (normal(n, seed=seed + n).square() for n in (num, 20))
    here, there = NullDistances.of(distance, 100), NullDistances.of(scale * distance, 100)
    size = int(100 * ratio)
    p = here.p_value(seen, size)
    assert ((p >= 1 / (num + 1)) & (p <= 1)).all()
    assert torch.equal(there.p_value(scale * seen, size), p)
    assert torch.equal(here.p_value(distance.amin()[None] / ratio, size), torch.ones(1).double())
    rejected = seen > here.threshold(0.2, size)
    assert torch.equal(rejected, p <= 0.2 + 1e-12)


def test_what_may_be_rounding_has_no_rank():
    tiny = 1e-7 * torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).double()
    null = NullDistances.of(tiny.square().sum(1), 100)
    for size in (10, 100, 10_000):
        assert (null.p_value(100 / size * tiny.square().sum(1), size) == 1).all()
    assert null.p_value(torch.tensor([1e-6]), 100) == 1 / 51


@FEW
@given(seed=SEEDS, scale=UNITS, shift=st.floats(-10, 10))
def test_outlyingness_has_no_units(seed, scale, shift):
    s = normal(50, 3, seed=seed) + shift
    units = scale * torch.tensor([1.0, 1e-3, 1e3]).double()
    here, there = (SummaryOutlyingness.of(v, torch.Generator()) for v in (s, units * s))
    torch.testing.assert_close(there(units * (s + 1)), here(s + 1), atol=1e-6, rtol=1e-6)
