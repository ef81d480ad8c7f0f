from pathlib import Path

import pytest
import torch

from exact_models import LinearDecoder
from mindist import MinimumDistance
from mindist.decoders import DECODERS, FlowDecoder, MLPDecoder, RidgeDecoder
from mindist.features import FourierFeatures
from mindist.protocols import Decoder, DensityDecoder, LeaveOneOut
from mindist.schema import Record, pack

QUICK = {
    "ridge": lambda: RidgeDecoder(num_basis=100),
    "mlp": lambda: MLPDecoder(width=64, batch_size=64),
    "flow": lambda: FlowDecoder(
        num_points=5, transforms=2, width=32, learning_rate=3e-3, batch_size=256
    ),
}


@pytest.fixture(scope="module")
def simulations():
    """Datasets of 50 points N(s, 0.3^2) with d = 1; mu(s) is known in closed form."""
    generator = torch.Generator().manual_seed(0)
    s = 2 * torch.rand(2_000, 1, generator=generator) - 1
    x = s[:, None] + 0.3 * torch.randn(2_000, 50, 1, generator=generator)
    features = FourierFeatures.draw((1,), 32, bandwidth=1.0, generator=generator)
    return s, x, features


@pytest.fixture(scope="module", params=sorted(QUICK))
def decoder(request, simulations):
    s, x, features = simulations
    generator = torch.Generator().manual_seed(1)
    return QUICK[request.param]().fit(
        s, features.mean(x), generator=generator, x=x[:, :5], features=features
    )


def exact_embedding(features, s):
    """E[exp(i w x)] = exp(i w s - 0.3^2 w^2 / 2) for x ~ N(s, 0.3^2)."""
    phase = s.double() @ features.weight
    damping = torch.exp(-(0.3**2) * features.weight.square() / 2) * (2 / 32) ** 0.5
    return torch.cat([phase.cos() * damping, phase.sin() * damping], -1)


def test_every_decoder_keeps_the_contract(decoder, simulations):
    _, _, features = simulations
    assert isinstance(decoder, Decoder)
    s = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)[:, None]
    mu = decoder(s)
    assert mu.shape == (7, 32)
    assert mu.dtype == torch.float64
    torch.testing.assert_close(decoder.basis(s) @ decoder.weight + decoder.bias, mu)
    error = (mu - exact_embedding(features, s)).square().sum(-1)
    # One dataset's own embedding is off by about (1 - |mu|^2) / 50 = 2e-3.
    assert error.max() < (0.01 if isinstance(decoder, FlowDecoder) else 2e-3)


def test_jacobians_agree_with_finite_differences(decoder):
    if isinstance(decoder, FlowDecoder):
        step, tolerance = 1e-2, 2e-2  # the flow runs in float32
    else:
        step, tolerance = 1e-6, 1e-6
    s = torch.linspace(-0.8, 0.8, 5, dtype=torch.float64)[:, None]
    h, jacobian = decoder.basis_and_jacobian(s)
    numeric = (decoder.basis(s + step) - decoder.basis(s - step)) / (2 * step)
    torch.testing.assert_close(h, decoder.basis(s))
    torch.testing.assert_close(jacobian[..., 0], numeric, rtol=tolerance, atol=tolerance)


def test_a_decoder_survives_its_state(decoder, simulations):
    features = simulations[2]
    config, tensors = pack(decoder)
    copies = {name: value.clone() for name, value in tensors.items()}
    record = Record(Path("f"), config, tensors=copies, axes={"d": 1, "D": 1, "K": 32})
    if isinstance(decoder, FlowDecoder):
        again = FlowDecoder.restore(record, features)
    else:
        again = record.read(type(decoder))
    s = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    assert torch.equal(again(s), decoder(s))
    assert again.held_out_error == decoder.held_out_error


def test_fits_are_reproducible_and_leave_the_global_generator_alone(simulations):
    s, x, features = simulations
    for make in QUICK.values():
        torch.manual_seed(3)
        before = torch.random.get_rng_state()
        fits = [
            make().fit(
                s[:300],
                features.mean(x[:300]),
                generator=torch.Generator().manual_seed(0),
                x=x[:300, :5],
                features=features,
            )
            for _ in range(2)
        ]
        assert torch.equal(fits[0](s[:5].double()), fits[1](s[:5].double()))
        assert torch.equal(torch.random.get_rng_state(), before)


def test_ridge_is_ridge_regression(simulations):
    """Weights and bias solve the penalised least squares problem on the whole training set."""
    s, x, features = simulations
    z = features.mean(x).double()
    decoder = RidgeDecoder(60, length_scales=(0.5,), ridges=(1e-4,)).fit(
        s, z, generator=torch.Generator().manual_seed(0)
    )
    h = decoder.basis(s.double())
    h_centred, z_centred = h - h.mean(0), z - z.mean(0)
    penalty = 1e-4 * len(s) * torch.eye(60, dtype=torch.float64)
    weight = torch.linalg.solve(h_centred.T @ h_centred + penalty, h_centred.T @ z_centred)
    torch.testing.assert_close(decoder.weight, weight, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(decoder.bias, z.mean(0) - h.mean(0) @ weight, rtol=1e-6, atol=1e-9)


def test_leave_one_out_is_refitting_without_each_simulation(simulations):
    s, x, features = simulations
    s, z = s[:60].double(), features.mean(x[:60]).double()
    options = {"length_scales": (0.5,), "ridges": (1e-3,)}
    decoder = RidgeDecoder(20, **options).fit(s, z, generator=torch.Generator().manual_seed(0))
    assert isinstance(decoder, LeaveOneOut)
    h, penalty = decoder.basis(s), decoder.ridge * 60 * torch.eye(20, dtype=torch.float64)
    expected = []
    for i in range(60):
        keep = torch.arange(60) != i
        h_i, z_i = h[keep], z[keep]
        h_c, z_c = h_i - h_i.mean(0), z_i - z_i.mean(0)
        weight = torch.linalg.solve(h_c.T @ h_c + penalty, h_c.T @ z_c)
        prediction = z_i.mean(0) + (h[i] - h_i.mean(0)) @ weight
        expected.append(z[i] - prediction)
    left = decoder.leave_one_out_residuals(s, z)
    torch.testing.assert_close(left, torch.stack(expected), rtol=1e-7, atol=1e-12)


def test_ridge_chooses_a_length_scale_that_fits():
    """A wiggly function needs a shorter length-scale than a straight line, to most noise."""
    s = torch.linspace(-1, 1, 1_000)[:, None]
    chosen = {"wiggly": [], "straight": []}
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        noise = 0.01 * torch.randn(s.shape, generator=generator)
        for name, z in (("wiggly", (25 * s).sin()), ("straight", s)):
            decoder = RidgeDecoder(200).fit(s, z + noise, generator=generator)
            chosen[name].append(decoder.length_scale)
            # A tenth of the simulations: the standard deviation of their mean is 14%.
            assert decoder.held_out_error == pytest.approx(1e-4, rel=0.5)
    assert max(chosen["wiggly"]) <= 0.25
    assert sorted(chosen["straight"])[2] > 0.25


def test_flow_density_is_close_to_the_exact_one(simulations):
    s, x, features = simulations
    decoder = FlowDecoder(num_points=20, transforms=2, width=32, max_epochs=6).fit(
        s,
        features.mean(x),
        generator=torch.Generator().manual_seed(0),
        x=x[:, :20],
        features=features,
    )
    assert isinstance(decoder, DensityDecoder)
    at = torch.tensor([[-0.5], [0.4]], dtype=torch.float64)
    grid = torch.linspace(-2.5, 2.5, 1_001, dtype=torch.float64)
    log_q = decoder.log_prob(grid[None, :, None].expand(2, -1, 1), at)
    torch.testing.assert_close(
        torch.trapezoid(log_q.exp(), grid), torch.ones(2).double(), atol=0.01, rtol=0
    )
    exact = torch.distributions.Normal(at, 0.3)
    observations = at[:, None] + 0.3 * torch.randn(2, 500, 1, dtype=torch.float64)
    divergence = (exact.log_prob(observations[..., 0]) - decoder.log_prob(observations, at)).mean(1)
    assert divergence.abs().max() < 0.05
    fresh = decoder.resampled(at, torch.Generator().manual_seed(0))
    assert (fresh - decoder(at)).square().sum(-1).max() < 5 / 128


def test_a_flow_follows_the_summary_into_the_tails_and_leaves_constants_alone(simulations):
    """Where no simulation lies, 8 standard deviations away, the density is Gaussian around E[x]."""
    s, x, _ = simulations
    x = torch.cat([x, torch.full_like(x, 10.0)], -1)  # as the first value of an OUP trajectory
    generator = torch.Generator().manual_seed(0)
    features = FourierFeatures.draw((2,), 32, bandwidth=1.0, generator=generator)
    decoder = FlowDecoder(num_points=5, transforms=1, width=16, max_epochs=3).fit(
        s, features.mean(x), generator=generator, x=x[:, :5], features=features
    )
    at = torch.tensor([[-0.5], [0.5]], dtype=torch.float64, requires_grad=True)
    far = torch.tensor([[[1.9, 10.0]], [[2.9, 10.0]]], dtype=torch.float64)
    (score,) = torch.autograd.grad(decoder.log_prob(far, at).sum(), at)
    torch.testing.assert_close(score, (far[:, :, 0] - at.detach()) / 0.3**2, rtol=0.15, atol=0)
    with torch.no_grad():
        same = torch.tensor([[[0.0, 10.0], [0.0, 10.0 + 1e-5]]], dtype=torch.float64)
        assert decoder.log_prob(same, at[:1]).diff().abs() < 1e-3


def test_a_flow_decoder_says_what_it_needs():
    with pytest.raises(TypeError, match="needs observations x"):
        FlowDecoder().fit(torch.zeros(3, 1), torch.zeros(3, 2), generator=torch.Generator())
    assert set(DECODERS) == set(QUICK)


class LineDecoder(LinearDecoder):
    """A line by least squares; leaving one out is dividing by one less its leverage."""

    def __init__(self):
        pass

    def fit(self, s, z_bar, *, generator, x=None, features=None):
        design = torch.cat([s, torch.ones_like(s[:, :1])], 1).double()
        line = torch.linalg.lstsq(design, z_bar.double()).solution
        self.gram, self.weight, self.bias = design.T @ design, line[:-1], line[-1]
        return self

    def leave_one_out_residuals(self, s, z_bar):
        design = torch.cat([s, torch.ones_like(s[:, :1])], 1).double()
        leverage = (design * torch.linalg.solve(self.gram, design.T).T).sum(1, keepdim=True)
        return ((z_bar - self(s.double())) / (1 - leverage)).to(z_bar.dtype)

    def state(self):
        return {}, {}

    def to(self, device):
        return self


def test_any_decoder_that_can_leave_one_out_has_a_null_of_all_simulations():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(600, 1, 2, generator=generator)
    x = theta + torch.randn(600, 20, 2, generator=generator)
    assert isinstance(LineDecoder(), LeaveOneOut)
    mds = MinimumDistance(lambda x: x.mean(1), num_features=16, decoder=LineDecoder()).fit(x)
    assert len(mds.fitted_.null.noise) == 600  # held out, and left out one by one
    x_bad = x[:50].clone()
    x_bad[:, :4] += 6
    assert mds.detect(x_bad).misspecified.double().mean() > 0.9
    assert mds.detect(x[:50]).misspecified.double().mean() < 0.2
