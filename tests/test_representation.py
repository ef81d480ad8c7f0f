import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mindist import MinimumDistance
from mindist.features import REPRESENTATIONS, Encoded, candidates, make_representation
from mindist.features.representation import (
    FLOOR,
    Identity,
    PowerSpectrum,
    Range,
    SignedLog,
    Standardised,
    read_representation,
)
from mindist.schema import Record, moved, prefixed
from mindist.storage import read_artefact, write_artefact

KINDS = list(REPRESENTATIONS.values())
BY_NAME = list(REPRESENTATIONS)
EVENTS = [(), (3,), (6, 8), (2, 3, 4)]
PAIRS = [
    (kind, event)
    for kind in KINDS
    for event in EVENTS
    if kind is not PowerSpectrum or 0 < len(event) < 3
]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def read(config, tensors, size, function=None):
    """The representation of a state, as an embedding stores it."""
    record = Record(
        Path("f"), {"representation": config}, tensors=prefixed("representation", tensors)
    )
    return read_representation(record, size, function)


def full_rings(height, width):
    """The ring of every frequency of the full plane, by the definition."""
    f, g = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    return np.floor(np.hypot(f, g) * min(height, width) + 0.5).astype(int)


# ---------------------------------------------------------------------------- every one of them


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_every_batch_shape_gives_the_same_vectors(kind, event):
    x = normal(4, 5, *event)
    r = kind.of(x)
    assert r.event_shape == event
    assert r(x).shape == (4, 5, r.size)
    torch.testing.assert_close(r(x[1]), r(x)[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(r(x[1, 2]), r(x)[1, 2], rtol=1e-12, atol=1e-12)
    assert r(x[:0]).shape == (0, 5, r.size)


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_float32_stays_float32(kind, event):
    x = normal(4, 50, *event)
    r = kind.of(x)
    assert r(x).dtype == torch.float64
    assert r(x.float()).dtype == torch.float32
    torch.testing.assert_close(r(x.float()).double(), r(x), rtol=1e-4, atol=1e-4)
    refitted = kind.of(x.float())
    assert refitted(x.float()).dtype == torch.float32
    assert refitted.bounds.lo.dtype == torch.float64


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_no_simulation_is_clamped_and_every_gross_outlier_is(kind, event):
    x = normal(4, 50, *event, dtype=torch.float32)
    r = kind.of(x)
    low, high = torch.aminmax(r(x).flatten(0, 1), dim=0)
    width = high - low
    assert ((low > r.bounds.lo) & (high < r.bounds.hi)).all()
    varies = width > 0
    torch.testing.assert_close(
        torch.stack([low - width / 2, high + width / 2])[:, varies],
        torch.stack([r.bounds.lo, r.bounds.hi])[:, varies].float(),
    )
    for outlier in (1e6, -1e6, 1e30, -1e30):  # the square of the last overflows
        y = r(torch.full(event, outlier))
        assert ((y >= r.bounds.lo.float()) & (y <= r.bounds.hi.float())).all()
        assert ((y == r.bounds.lo.float()) | (y == r.bounds.hi.float())).any()


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_constant_simulations_give_finite_vectors(kind, event, dtype, value):
    x = torch.full((2, 3, *event), value, dtype=dtype)
    r = kind.of(x)
    assert torch.isfinite(r(x)).all()
    assert torch.isfinite(r(x + normal(*x.shape, dtype=dtype))).all()
    assert torch.isfinite(r(torch.zeros_like(x))).all()
    assert (r.bounds.lo < r.bounds.hi).all()


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_a_stored_representation_comes_back_exactly(kind, event, tmp_path):
    x = normal(4, 50, *event)
    r = kind.of(x)
    config, tensors = r.state()
    write_artefact(tmp_path / "r", "Representation", config, tensors)
    config, tensors = read_artefact(tmp_path / "r", "Representation")
    again = read(config, tensors, r.size)
    assert type(again) is kind
    assert again.event_shape == r.event_shape
    assert again.size == r.size
    y = torch.cat([x, 1e6 * x])
    assert torch.equal(again(y), r(y))
    assert torch.equal(again(y.float()), r(y.float()))


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_gradients_are_those_of_finite_differences(kind, event):
    """The flow decoder's draws are embedded with a gradient."""
    r = kind.of(normal(4, 50, *event))
    x = (0.5 * normal(2, *event, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(r, x)


@pytest.mark.parametrize(("kind", "event"), PAIRS)
def test_all_tensors_move(kind, event):
    r = moved(kind.of(normal(4, 5, *event)), torch.device("meta"))
    assert {tensor.device.type for tensor in r.state()[1].values()} == {"meta"}
    assert r.event_shape == event


# ---------------------------------------------------------------------------- one by one


def test_range_is_widened_by_half_on_both_sides():
    clamp = Range.of(doubles([1.0, -10.0], [2.0, 10.0], [5.0, 0.0]))
    assert torch.equal(clamp.lo, doubles(-1.0, -20.0))
    assert torch.equal(clamp.hi, doubles(7.0, 20.0))
    values = doubles([6.9, -19.9], [1e6, -1e6], [-1.1, 20.1])
    assert torch.equal(clamp(values), doubles([6.9, -19.9], [7.0, -20.0], [-1.0, 20.0]))


def test_a_coordinate_that_never_varied_gets_the_median_width_of_the_others():
    """Widths 2, 6, 100 and 0: the last becomes its value ± 6, so that data that vary there show."""
    x = doubles([[0.0, 0.0, 0.0, 5.0], [2.0, 6.0, 100.0, 5.0]])
    r = Identity.of(x)
    assert float(r.bounds.lo[3]) == -1.0
    assert float(r.bounds.hi[3]) == 11.0
    assert torch.equal(r(doubles(0.0, 0.0, 0.0, 9.0)), doubles(0.0, 0.0, 0.0, 9.0))
    assert torch.equal(r(doubles(0.0, 0.0, 0.0, 1e6)), doubles(0.0, 0.0, 0.0, 11.0))
    nothing_varies = Range.of(doubles([5.0, 0.0], [5.0, 0.0]))
    assert torch.equal(nothing_varies.lo, doubles(4.0, -1.0))
    # A spread of rounding errors is that of a constant.
    rounded = Range.of(doubles([0.0, 1e6], [2.0, 1e6 + 1e-4]))
    assert float(rounded.hi[1]) == pytest.approx(1e6 + 2, abs=1e-3)


def test_identity_flattens_and_leaves_simulations_as_they_are():
    x = normal(4, 50, 3, 2)
    assert torch.equal(Identity.of(x)(x), x.flatten(2))


def test_standardised_coordinates_have_mean_0_and_deviation_1():
    scale, centre = doubles(1.0, 10.0, 1e-3), doubles(0.0, 1e3, -5.0)
    x = centre + scale * normal(20, 50, 3)
    y = Standardised.of(x)(x).flatten(0, 1)
    torch.testing.assert_close(y.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-10)
    torch.testing.assert_close(y.square().mean(0), torch.ones(3).double())


def test_a_constant_coordinate_is_standardised_by_the_median_deviation():
    """Deviations 1, 3, 50 and 0: a departure by 3 in the last is one unit."""
    x = doubles([[0.0, 0.0, 0.0, 5.0], [2.0, 6.0, 100.0, 5.0]])
    assert torch.equal(
        Standardised.of(x)(doubles(1.0, 6.0, 0.0, 8.0)), doubles(0.0, 1.0, -1.0, 1.0)
    )


def test_signed_log_is_the_inverse_hyperbolic_sine_in_units_of_the_median():
    x = doubles([-1.0, 2.0, 4.0], [-8.0, 3.0, 1e4])  # the lower median of |x| is 3
    r = SignedLog.of(x)
    assert float(r.unit) == 3.0
    t = x / 3
    expected = t.sign() * (t.abs() + (t.square() + 1).sqrt()).log()
    torch.testing.assert_close(r(x)[..., 0], expected, rtol=1e-12, atol=0)
    assert float(r(doubles(3.0))) == pytest.approx(math.log(1 + math.sqrt(2)), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "unit"), [([0.0, 0.0, 0.0, 8.0], 2.0), ([0.0] * 4, 1.0), ([1.0, 5.0, 9.0], 5.0)]
)
def test_signed_log_of_many_zeros_takes_the_mean_then_1(values, unit):
    assert float(SignedLog.of(doubles(values)).unit) == unit


def test_medians_are_of_at_most_5000_observations_evenly_over_datasets():
    x = torch.arange(12_000.0).reshape(120, 100)
    assert float(SignedLog.of(x).unit) == float(x.flatten()[::3].median())


# ---------------------------------------------------------------------------- power spectrum


def test_power_of_a_cosine_series():
    """a cos(2 pi k t / T) has power a^2 T / 4 at k and at -k, and none elsewhere."""
    t = torch.arange(20, dtype=torch.float64)
    x = 3.0 * torch.cos(2 * math.pi * 4 * t / 20 + 0.7)
    power = PowerSpectrum.of(x[None, None])(x).exp()
    expected = torch.full(
        (11,), FLOOR * 9 / 2, dtype=torch.float64
    )  # the mean of the squares is a^2 / 2
    expected[4] = 9 * 20 / 4
    torch.testing.assert_close(power, expected, rtol=1e-10, atol=0)


def test_power_of_a_cosine_image_is_shared_by_its_ring():
    """a cos(2 pi (3 u / H + 4 v / W)): a^2 H W / 4 at two frequencies of radius 5."""
    u, v = torch.meshgrid(*[torch.arange(16, dtype=torch.float64)] * 2, indexing="ij")
    x = 2.0 * torch.cos(2 * math.pi * (3 * u + 4 * v) / 16)
    power = PowerSpectrum.of(x[None, None])(x).exp()
    in_ring = int((full_rings(16, 16) == 5).sum())
    expected = torch.full((9,), FLOOR * 2, dtype=torch.float64)
    expected[5] = 2 * (4 * 256 / 4) / in_ring
    torch.testing.assert_close(power, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    "shape", [(8, 8), (7, 7), (7, 12), (12, 7), (9, 6), (5, 20), (1, 6), (4, 1)]
)
def test_rings_average_over_the_full_plane(shape):
    x = normal(1, 3, *shape)
    power = np.abs(np.fft.fft2(x[0].numpy(), norm="ortho")) ** 2
    rings = full_rings(*shape)
    expected = [power[:, rings == j].mean(1) for j in range(min(shape) // 2 + 1)]
    torch.testing.assert_close(
        PowerSpectrum.of(x)(x)[0], torch.from_numpy(np.log(expected).T), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("length", [15, 16])
def test_powers_of_a_series_sum_to_its_squared_norm(length):
    x = normal(1, 10, length)
    power = PowerSpectrum.of(x)(x).exp()
    both = torch.full((length // 2 + 1,), 2.0).double()  # k and -k, ...
    both[0] = 1  # ... unless they are the same
    if length % 2 == 0:
        both[-1] = 1
    torch.testing.assert_close((power * both).sum(-1), x.square().sum(-1), rtol=1e-12, atol=0)


def test_powers_of_an_image_sum_to_its_squared_norm():
    """For an image without power in the corners that no ring covers."""
    rings = full_rings(12, 16)
    x_hat = torch.fft.fft2(normal(1, 5, 12, 16), norm="ortho") * torch.from_numpy(rings <= 6)
    x = torch.fft.ifft2(x_hat, norm="ortho").real
    counts = torch.from_numpy(np.bincount(rings.ravel())[:7])
    total = (PowerSpectrum.of(x)(x).exp() * counts).sum(-1)
    torch.testing.assert_close(total, x.square().sum((-2, -1)), rtol=1e-12, atol=0)


def test_the_spectrum_does_not_change_under_shifts_and_quarter_turns():
    x, series = normal(1, 20, 12, 12), normal(1, 20, 30)
    r, r_series = PowerSpectrum.of(x), PowerSpectrum.of(series)
    same = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(r(x.roll((5, -2), dims=(2, 3))), r(x), **same)
    torch.testing.assert_close(r(torch.rot90(x, dims=(2, 3))), r(x), **same)
    torch.testing.assert_close(r(x.transpose(2, 3)), r(x), **same)
    torch.testing.assert_close(r_series(series.roll(7, dims=2)), r_series(series), **same)


def test_the_spectrum_hardly_changes_under_rotation():
    """An oval blob turned by 30 degrees: its pixels change by a third of their norm, its spectrum,
    which falls by 4 over these radii, by less than 0.1.
    """
    u, v = torch.meshgrid(*[torch.arange(-32.0, 32.0, dtype=torch.float64)] * 2, indexing="ij")

    def blob(degrees):
        c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        return torch.exp(-((c * u + s * v) ** 2) / 8 - (c * v - s * u) ** 2 / 32)

    x = torch.stack([blob(0), blob(30), 1.5 * blob(0)])[None]
    straight, turned, brighter = PowerSpectrum.of(x)(x)[0, :, :9]
    assert float((x[0, 1] - x[0, 0]).norm() / x[0, 0].norm()) > 1 / 3
    assert float(straight[0] - straight[-1]) == pytest.approx(4, abs=0.01)
    assert float((turned - straight).abs().max()) < 0.1
    torch.testing.assert_close(
        brighter - straight, torch.full((9,), 2 * math.log(1.5), dtype=torch.float64)
    )


def test_white_noise_has_a_flat_spectrum():
    """Its expected power is its variance at every radius, within 4 standard errors of each."""
    x = 1.5 * normal(40, 100, 10, 14)
    power = PowerSpectrum.of(x)(x).exp().flatten(0, 1)
    standard_error = power.std(0) / math.sqrt(len(power))
    assert ((power.mean(0) - 2.25).abs() < 4 * standard_error).all()
    assert (standard_error < 0.1).all()


def test_rounding_errors_at_absent_frequencies_do_not_become_coordinates():
    """Smooth float32 images have powers of about 1e-14 there, which the floor makes equal."""
    t = torch.arange(32.0) / 32
    amplitude = 1 + normal(1, 50, dtype=torch.float32).abs()
    x = amplitude[..., None, None] * (2 + torch.cos(2 * math.pi * t))[:, None] * torch.ones(32)
    y = PowerSpectrum.of(x)(x)[0]
    assert (y[:, 2:].amax(0) == y[:, 2:].amin(0)).all()
    assert (y[:, :2].std(0) > 0.1).all()


@pytest.mark.parametrize("event", [(), (2, 3, 4)])
def test_power_spectrum_expects_series_or_images(event):
    message = (
        "representation: 'power-spectrum' expects series (T,) or images (H, W), got observations "
        f"of shape {event}. Choose 'identity', or pass a function from "
        "observations to vectors."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        make_representation("power-spectrum", torch.zeros(2, 3, *event))


# ---------------------------------------------------------------------------- functions


def test_a_function_may_be_written_for_torch_or_numpy_and_give_any_shape():
    x = normal(3, 4, 5, 6)
    expected = torch.cat([x.mean(-1), x.amax(-1)], -1)
    for function, numpy in (
        (lambda x: torch.stack([x.mean(-1), x.amax(-1)], 1), False),
        (lambda x: np.stack([x.mean(-1), np.max(x, -1)], 1), True),  # (n, 2, 5)
    ):
        r = Encoded.of(function, x)
        assert r.numpy is numpy
        assert r.size == 10
        torch.testing.assert_close(r(x), expected)
        torch.testing.assert_close(r(x[0]), expected[0])
        assert r(x.float()).dtype == torch.float32
    assert torch.equal(r(1e6 * x.abs() + 1e6), r.bounds.hi.expand(3, 4, 10))


def test_a_frozen_network_is_called_without_a_graph_unless_the_data_need_one():
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(), torch.nn.Tanh()).eval()
    x = normal(10, 20, 3, dtype=torch.float32)
    r = make_representation(network, x)
    assert r.size == 8
    torch.testing.assert_close(r(x), network(x).detach())
    assert not r(x).requires_grad
    assert r(x.clone().requires_grad_()).requires_grad
    assert moved(r, torch.device("meta")).bounds.lo.device.type == "meta"


def test_a_number_for_each_observation_is_a_vector_of_one():
    x = normal(3, 4)
    torch.testing.assert_close(make_representation(torch.sin, x)(x), x.sin()[..., None])


@pytest.mark.parametrize(
    "function",
    [
        torch.rand_like,
        lambda x: torch.cat([x[:1], torch.rand_like(x[1:])]),
        lambda x: x - x.mean(0),
        lambda x: x @ x.T,
    ],
)
def test_a_random_function_or_one_of_the_batch_is_refused(function):
    message = (
        "representation: expected a function that maps an observation to the same vector at every "
        "call and in every batch, got different vectors for the first simulated observations. Put "
        "a network with batch normalisation or dropout into eval mode; make a random function "
        "deterministic."
    )
    with pytest.raises(ValueError, match=message):
        Encoded.of(function, normal(3, 4, 2))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.mean(0), "(2,)"),
        (lambda x: x.mean(), "()"),
        (lambda x: x[:, :0], "(3, 0)"),
    ],
)
def test_a_function_that_does_not_give_a_row_for_each_observation_is_refused(function, shape):
    message = (
        "representation: expected vectors of shape (3, D) for 3 observations, got shape "
        f"{shape}. The function maps observations (n, *event) to vectors (n, D): the mean of a "
        "series is lambda x: x.mean(1), not x.mean(0)."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        Encoded.of(function, normal(3, 4, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_function_that_is_not_finite_is_refused(bad):
    message = (
        "representation: expected a function that is finite on simulated observations, got NaN or "
        "infinite values. Look for a logarithm of 0 or a ratio to 0 in it."
    )
    x = normal(30, 100, 2)
    x[-1, -1] = 9.0
    with pytest.raises(ValueError, match=message):
        Encoded.of(lambda x: torch.where(x == 9.0, bad, x), x)


def test_a_function_that_fails_or_gives_no_array_is_refused():
    with pytest.raises(TypeError, match=r"representation \(its result\): expected a torch tensor"):
        Encoded.of(lambda x: x.tolist(), normal(3, 4, 2))
    with pytest.raises(ZeroDivisionError):
        Encoded.of(lambda x: 1 / 0, normal(3, 4, 2))


def half(x):
    return torch.stack([x[..., 0] / 2, x[..., 0] * x[..., 1]], -1)


def test_a_function_is_given_again_to_what_was_stored():
    x = normal(6, 4, 2)
    r = Encoded.of(half, x)
    config, tensors = r.state()
    assert config == {"name": "function", "event_shape": [2], "numpy": False}
    again = read(config, tensors, 2, half)
    assert torch.equal(again(9 * x), r(9 * x))
    for missing in (None, "half"):
        with pytest.raises(ValueError, match=r"expected the function that .* pass it to load as"):
            read(config, tensors, 2, missing)
    with pytest.raises(ValueError, match="expected vectors of length 2, as for the simulations"):
        read(config, tensors, 2, lambda x: x[:, :1])(x)
    with pytest.raises(ValueError, match="expected None, because 'signed-log' is stored"):
        read(*SignedLog.of(x).state(), 2, half)
    with pytest.raises(ValueError, match="expected None, because 'raw' is stored"):
        read_representation(Record(Path("f"), {}), 2, half)


@pytest.mark.parametrize("numpy", [False, True])
def test_an_estimator_with_a_function_is_stored_and_read_with_it(tmp_path, numpy):
    function = (lambda x: np.stack([x[:, 0] / 2, x[:, 0] * x[:, 1]], 1)) if numpy else half
    x = normal(400, 20, 2, dtype=torch.float32) + normal(400, 1, 2, seed=1, dtype=torch.float32)
    mds = MinimumDistance(lambda x: x.mean(1), representation=function, num_features=32).fit(x)
    mds.save(tmp_path / "mds")

    def load(representation):
        path = tmp_path / "mds"
        return MinimumDistance.load(path, lambda x: x.mean(1), representation=representation)

    again, x_obs = load(function), torch.cat([x[0, :15], x[0, :5] + 4])
    assert again.representation is function
    assert torch.equal(again.adapt(x_obs).s_star, mds.adapt(x_obs).s_star)
    again.save(tmp_path / "again")
    with pytest.raises(ValueError, match=r"expected the function .*, got None\. Functions are not"):
        load(None)
    with pytest.raises(ValueError, match=r"expected the function .* got one that gives \["):
        load(lambda x: function(x) + 1)
    with pytest.raises(ValueError, match="expected vectors of length 2"):
        load(lambda x: function(x)[:, :1])


# ---------------------------------------------------------------------------- choosing


@pytest.mark.parametrize("name", BY_NAME)
def test_a_name_or_a_fitted_representation_makes_one(name):
    x = normal(3, 4, 6)
    r = make_representation(name, x)
    assert type(r) is REPRESENTATIONS[name]
    assert torch.equal(r(x), REPRESENTATIONS[name].of(x)(x))
    assert make_representation(r, x) is r


@pytest.mark.parametrize("rule", ["fourier", 3])
def test_an_unknown_name_lists_the_known_ones(rule):
    message = (
        "representation: expected one of 'identity', 'standardised', 'signed-log', "
        f"'power-spectrum', got {rule!r}."
    )
    with pytest.raises(ValueError, match=message):
        make_representation(rule, normal(3, 4))


@pytest.mark.parametrize(
    ("event", "names"),
    [
        ((), ("identity", "signed-log")),
        ((1,), ("identity", "signed-log")),  # standardised, one number is the same to a kernel
        ((7,), ("identity", "signed-log", "standardised")),
        ((7, 9), ("identity", "standardised")),
        ((8, 9), ("power-spectrum", "identity")),
        ((3, 7, 9), ("identity", "standardised")),
    ],
)
def test_candidates_fit_the_shape_of_an_observation(event, names):
    assert candidates(event) == names
    assert all(name in REPRESENTATIONS for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e9, 1e30])
def test_the_signed_logarithm_is_torch_s_asinh_to_rounding(dtype, size):
    x = size * normal(2, 5_000, dtype=dtype)
    r = SignedLog.of(x)
    expected = (x.double() / r.unit).asinh()[..., None]
    error = (r(x).double() - expected).abs() / expected.abs()
    assert error.max() < 6 * torch.finfo(dtype).eps


def test_the_signed_logarithm_has_a_gradient():
    x = normal(2, 5).requires_grad_()
    assert torch.autograd.gradcheck(SignedLog.of(x.detach()), (x,))
