"""Properties of fit, detect and adapt, over shapes, types and scales.

Small fits: 100 datasets of 12 observations, at a level of .2, for which 80 datasets are enough.
"""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mindist import Adaptation, MinimumDistance
from mindist.adaptation import Status

FEW = settings(derandomize=True, deadline=None, max_examples=8, database=None)

SHAPES = st.sampled_from([(), (1,), (2,), (2, 2)])
FLOATS = st.sampled_from([torch.float32, torch.float64])
SCALES = st.sampled_from([2.0**-100, 2.0**100])
NUM, NUM_OBS = 100, 12
PER_DATASET = [
    "p_value",
    "distance_obs",
    "distance_star",
    "objective_star",
    "weights",
    "epsilon",
    "epsilon_error",
    "outlier_score",
    "influence",
    "covariance",
    "excess",
]

UNMOVED = (Status.WELL_SPECIFIED, Status.UNMOVED, Status.UNEXPLAINED, Status.KEPT_OBSERVED)


def mean(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:2], -1).mean(1)


def simulate(num: int, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    theta, noise = (
        torch.randn(num, n, *shape, generator=generator, dtype=torch.float64) for n in (1, NUM_OBS)
    )
    return theta + noise


def observe(shape: tuple[int, ...]) -> Tensor:
    """Four datasets, of which the first two have four outliers each."""
    x = simulate(4, shape, seed=7)
    x[:2, :4] = 6 + 0.1 * x[:2, :4]
    return x


@cache
def fitted(
    shape: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> MinimumDistance:
    mds = MinimumDistance(mean, num_features=32, alpha=0.2, representation="identity")
    return mds.fit((scale * simulate(NUM, shape, seed=1)).to(dtype))


def assert_sound(result: Adaptation) -> None:
    """Everything is a number in its range, and the status tells what was done."""
    for name in ("s_obs", "s_star", *PER_DATASET):
        assert torch.isfinite(getattr(result, name)).all(), name
    assert ((result.p_value > 0) & (result.p_value <= 1)).all()
    for name in ("weights", "epsilon", "outlier_score"):
        value = getattr(result, name)
        assert ((value >= 0) & (value <= 1)).all(), name
    assert torch.equal(result.adapted, (result.s_star != result.s_obs).any(1))
    unmoved = [status in UNMOVED for status in result.status]
    assert unmoved == (~result.adapted).tolist()


def assert_same(got: Adaptation, expected: Adaptation, scale: float = 1.0, rtol: float = 1e-4):
    """The same but for rounding; p-values to two ranks of the hundred."""
    s_star, size = expected.s_star.double(), expected.s_star.double().abs().amax()
    torch.testing.assert_close(got.p_value, expected.p_value, atol=2.2 / NUM, rtol=0)
    torch.testing.assert_close(got.s_star.double() / scale, s_star, atol=rtol * size, rtol=0)
    torch.testing.assert_close(got.weights, expected.weights, atol=20 * rtol, rtol=0)
    assert torch.equal(got.adapted, expected.adapted)


# ------------------------------------------------------------------------------ units and order


@pytest.mark.slow
@FEW
@given(
    shape=st.sampled_from([(), (2,), (2, 2)]),
    scale=SCALES,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_in_other_units_the_same_summary_in_these_units(shape, scale, dtype):
    here, there = fitted(shape, 1.0, dtype), fitted(shape, scale, dtype)
    x = observe(shape).to(dtype)
    expected, got = here.adapt(x), there.adapt(scale * x)
    assert_sound(got)
    assert got.adapted[:2].all()
    assert torch.equal(got.p_value, expected.p_value)
    assert_same(got, expected, scale)
    torch.testing.assert_close(got.covariance / scale**2, expected.covariance, atol=0, rtol=1e-4)


@FEW
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_neither_the_order_of_observations_nor_that_of_datasets_matters(shape, seed):
    mds, x, generator = fitted(shape), observe(shape).float(), torch.Generator().manual_seed(seed)
    within = torch.randperm(NUM_OBS, generator=generator)
    between = torch.randperm(len(x), generator=generator)
    expected = mds.adapt(x)
    got = mds.adapt(x[:, within])
    torch.testing.assert_close(got.p_value, expected.p_value, atol=1.01 / NUM, rtol=0)
    torch.testing.assert_close(got.s_star, expected.s_star, atol=1e-3, rtol=0)
    torch.testing.assert_close(got.weights, expected.weights[:, within], atol=1e-3, rtol=0)
    assert_same(mds.adapt(x[between]), expected[between])


@settings(FEW, max_examples=4)
@given(shape=SHAPES, copies=st.integers(1, 3))
def test_a_batch_is_its_datasets_one_by_one(shape, copies):
    mds, x = fitted(shape), observe(shape).float()
    together = mds.adapt(x.repeat(copies, *[1] * (x.dim() - 1)))
    for index in range(len(together)):
        alone = mds.adapt(x[index % 4 : index % 4 + 1])
        assert_same(together[index : index + 1], alone)
        assert mds.detect(x[index % 4]).p_value == pytest.approx(float(alone.p_value), abs=0.0101)
    assert mds.adapt(x[0]).s_star.shape == together.s_star.shape[1:]


# ------------------------------------------------------------------------------ types and layouts


@FEW
@given(kind=st.sampled_from(["<f4", ">f4", "<f8", ">f8", "torch", "strided", "grad"]), shape=SHAPES)
def test_what_the_numbers_come_in_does_not_matter(kind, shape):
    mds, x = fitted(shape), observe(shape)
    seen = {
        "torch": lambda: x,
        "strided": lambda: x.repeat_interleave(2, 1)[:, ::2],
        "grad": lambda: x.clone().requires_grad_(),
    }.get(kind, lambda: x.numpy().astype(kind))()
    assert_same(mds.adapt(seen), mds.adapt(x.float()))


@pytest.mark.parametrize("kind", ["f2", "i2", "u1", "?"])
def test_rounded_data_are_adapted_as_they_are(kind):
    x = (20 * simulate(NUM, (2,), 1) + 128).clamp(0, 255).numpy()
    x = (x > 128 if kind == "?" else x).astype(kind)
    mds = MinimumDistance(mean, num_features=32, alpha=0.2).fit(x)
    assert_sound(mds.adapt(x[:5]))
    assert_same(mds.adapt(x[:5]), mds.adapt(x[:5].astype("f8")))


@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_single_and_double_precision_agree(shape):
    single, double = (fitted(shape, 1.0, dtype) for dtype in (torch.float32, torch.float64))
    x = observe(shape)
    assert_same(single.adapt(x.float()), double.adapt(x), rtol=1e-3)


# ------------------------------------------------------------------------------ odd data


@FEW
@given(
    shape=SHAPES,
    outlier=st.sampled_from([-3e38, -1e30, 0.0, 1e-38, 1e6, 1e30, 3e38]),
    num=st.integers(1, NUM_OBS - 2),
)
def test_outliers_of_any_size_and_copies_of_any_number_are_survived(shape, outlier, num):
    mds, x = fitted(shape), observe(shape).float()[2:]
    x[:, :num] = outlier / num
    result = mds.adapt(x, force=True)
    assert_sound(result)
    assert (result.s_star.abs() < 10).all() or not result.adapted.all()


@pytest.mark.parametrize("representation", ["auto", "raw", "standardised", "signed-log"])
def test_a_constant_column_is_no_obstacle(representation):
    x, seen = simulate(NUM, (2,), 1).float(), observe((2,)).float()
    x[..., 1] = seen[..., 1] = 5.0
    mds = MinimumDistance(mean, num_features=32, alpha=0.2, representation=representation).fit(x)
    result = mds.adapt(seen)
    assert_sound(result)
    assert torch.equal(result.s_star[:, 1], torch.full((4,), 5.0))
    seen[..., 1] += 20.0  # what never varied in simulations does
    assert mds.detect(seen).misspecified.all()


def test_constant_simulations_are_refused():
    with pytest.raises(ValueError, match="at least half of the simulated observations are ident"):
        MinimumDistance(mean, alpha=0.2).fit(torch.ones(NUM, NUM_OBS, 2))


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_copies_of_a_few_simulated_datasets_give_numbers_or_say_so(distinct):
    x = simulate(distinct, (2,), 1).float().repeat(-(-NUM // distinct), 1, 1)
    mds = MinimumDistance(mean, num_features=32, alpha=0.2).fit(x)
    assert_sound(mds.adapt(observe((2,)).float(), force=True))
    assert not mds.detect(x[:distinct]).misspecified.any()  # residuals are rounding alone


@pytest.mark.parametrize("num", [1, 2, 3, 79])
def test_too_few_simulated_datasets_are_refused(num):
    with pytest.raises(ValueError, match=r"x: expected (at least 80|some hundreds of) simulated"):
        MinimumDistance(mean, alpha=0.2).fit(simulate(num, (2,), 1))


@pytest.mark.parametrize("shape", [(), (1,), (2, 2)])
def test_a_single_observation_is_refused(shape):
    mds = fitted(shape)
    with pytest.raises(ValueError, match="a single observation"):
        mds.adapt(torch.zeros(3, 1, *shape))
    with pytest.raises(ValueError, match="a single observation"):
        MinimumDistance(mean).fit(torch.zeros(500, 1, *shape))
    assert_sound(mds.adapt(simulate(3, shape, 2)[:, :2].float(), force=True))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_summaries_and_columns_of_very_different_units(scale):
    units = torch.tensor([scale, 1 / scale]).double()

    def summary(x: Tensor) -> Tensor:
        return torch.cat([x.mean(1), x.var(1)], 1)

    mds = MinimumDistance(summary, num_features=32, alpha=0.2)
    result = mds.fit(units * simulate(NUM, (2,), 1)).adapt(units * observe((2,)), force=True)
    assert_sound(result)
    plain = mds.fit(simulate(NUM, (2,), 1)).adapt(observe((2,)), force=True)
    assert plain.adapted[:2].all()
    assert result.adapted[:2].all()


@pytest.mark.parametrize("fit_as", ["?", "f4", "f8"])
@pytest.mark.parametrize("sorting", [True, False])
def test_clean_zeros_and_ones_are_not_rejected_for_rounding(sorting, fit_as):
    # The mean of zeros and ones tells the dataset: residuals are rounding, and their ranks noise.
    def coins(num: int, size: int, seed: int) -> np.ndarray:
        draws = np.random.default_rng(seed)
        return draws.random((num, size, 1)) < draws.uniform(0.1, 0.9, (num, 1, 1))

    mds = MinimumDistance(mean, num_features=32, sorting=sorting)
    mds.fit(coins(500, 12, 1).astype(fit_as))
    for seen_as, size in [("?", 12), ("f4", 12), ("f8", 12), ("f8", 3)]:
        rejected = mds.detect(coins(200, size, 2).astype(seen_as)).misspecified
        assert rejected.double().mean() <= 0.1, (seen_as, size)


@pytest.mark.parametrize("fit_as", ["i8", "f8"])
def test_counts_are_the_same_data_in_every_type(fit_as):
    def counts(num: int, seed: int) -> np.ndarray:
        draws = np.random.default_rng(seed)
        return draws.poisson(draws.uniform(1, 5, (num, 1, 1)), (num, 30, 1))

    mds = MinimumDistance(mean, num_features=32).fit(counts(500, 1).astype(fit_as))
    seen = counts(400, 2)
    p_value = mds.detect(seen.astype(fit_as)).p_value
    assert (p_value <= 0.05).double().mean() < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5 + 0.02
    for kind in ("i2", "f4", "f8"):
        assert torch.equal(mds.detect(seen.astype(kind)).p_value, p_value)


def test_observations_beyond_the_precision_of_the_simulations_are_refused():
    x = observe((2,))
    x[0, 0] = 1e300
    with pytest.raises(ValueError, match=r"x: expected observations of at most 3.4e\+38"):
        fitted((2,)).adapt(x)
    assert_sound(fitted((2,), 1.0, torch.float64).adapt(x))


def test_empty_batches_stay_empty():
    result = fitted((2,)).adapt(np.empty((0, NUM_OBS, 2)))
    assert len(result) == 0
    assert result.s_star.shape == (0, 2)
    assert result.status == ()
