import math
import time

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch.distributions import biject_to

from mindist.posteriors.sbi_bridge import train_npe
from mindist.tasks import SIRTask
from mindist.tasks.sir import UniformTriangle

RATES = [(0.45, 0.1), (0.3, 0.15), (0.2, 0.18)]


@pytest.fixture
def sir() -> SIRTask:
    return SIRTask()


def one_trajectory(theta, **options):
    """Infected fractions `(T,)` without noise, in float64."""
    task = SIRTask(volatility=0.0, **options)
    x = task.simulate(torch.tensor([theta]), 1, generator=torch.Generator().manual_seed(0))
    return x[0, 0].double() / task.population


def final_size(theta):
    """R at the end of an epidemic without noise: log(S / S_0) = -R_0 (1 - S)."""
    ratio = theta[0] / theta[1]
    end = optimize.brentq(lambda s: math.log(s / 0.999) + ratio * (1 - s), 1e-12, 1 / ratio)
    return 1 - end


@pytest.mark.parametrize("theta", RATES)
def test_the_noiseless_epidemic_conserves_people(theta):
    beta, gamma = theta
    I = one_trajectory(theta)  # noqa: E741
    S = 0.999 * torch.cumprod(torch.cat([torch.ones(1), 1 - beta * I[:-1]]), 0)
    R = gamma * torch.cat([torch.zeros(1), I[:-1].cumsum(0)])
    torch.testing.assert_close(S + I + R, torch.ones(365).double(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("theta", RATES[:2])  # the third epidemic is not over within the year
def test_the_noiseless_epidemic_ends_at_its_final_size(theta):
    errors = []
    for steps in (1, 2, 4, 32):
        I = one_trajectory(theta, steps_per_day=steps)  # noqa: E741
        infected_in_all = theta[1] * float(torch.trapezoid(I))  # days are 1 apart; R = gamma int I
        errors.append(abs(infected_in_all - final_size(theta)))
    assert errors[0] < 0.01
    assert errors[0] > 1.6 * errors[1] > 1.6**2 * errors[2]  # first order in the step
    assert errors[3] < 5e-4


def test_shocks_of_the_reproduction_number_are_standard_normals(sir):
    beta, gamma = 0.4, 0.1
    generator = torch.Generator().manual_seed(0)
    x = sir.simulate(torch.tensor([[beta, gamma]]), 2_000, generator=generator)[0]
    I = x[:, :40].double() / 10_000  # noqa: E741
    new = I[:, 1:] - (1 - gamma) * I[:, :-1]
    S = 0.999 - torch.nn.functional.pad(new.cumsum(1)[:, :-1], (1, 0))
    b = new / (S * I[:, :-1])
    torch.testing.assert_close(b[:, 0], torch.full((2_000,), beta).double(), rtol=1e-4, atol=0)
    R0 = b / gamma
    change = R0.diff(dim=1) - 0.05 * (beta / gamma - R0[:, :-1])
    shocks = change / (0.05 * R0[:, :-1].abs().sqrt())
    assert stats.kstest(shocks.flatten().numpy(), "norm").pvalue > 0.01
    correlation = torch.corrcoef(shocks.T) - torch.eye(shocks.shape[1])
    assert float(correlation.abs().max()) < 5 / 2_000**0.5


def test_the_stochastic_scheme_agrees_with_a_loop():
    task = SIRTask(num_days=30, steps_per_day=2)
    theta = torch.tensor([[0.4, 0.1], [0.3, 0.2]])
    x = task.simulate(theta, 3, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    beta, gamma = theta.double().repeat_interleave(3, 0).T.numpy()
    S, I, R, R0 = 0.999, 0.001, 0.0, beta / gamma  # noqa: E741
    for day in range(30):
        np.testing.assert_allclose(x[..., day].flatten(), 10_000 * I * np.ones(6), rtol=1e-4)
        for _ in range(2):
            xi = torch.randn(6, generator=generator).double().numpy()
            infections, recoveries = gamma * R0 * S * I / 2, gamma * I / 2
            S, I, R = S - infections, I + infections - recoveries, R + recoveries  # noqa: E741
            R0 = R0 + 0.05 * (beta / gamma - R0) / 2 + 0.05 * np.sqrt(np.abs(R0) / 2) * xi
    np.testing.assert_allclose(S + I + R, 1, rtol=1e-12)


def test_a_daily_step_is_close_to_a_fine_one():
    theta = torch.tensor(RATES)
    generator = torch.Generator().manual_seed(0)
    day, hours = (
        SIRTask(steps_per_day=steps).simulate(theta, 200, generator=generator) for steps in (1, 24)
    )
    peak = [x.amax(-1).mean(1) for x in (day, hours)]
    peak_day = [x.argmax(-1).float().mean(1) for x in (day, hours)]
    assert (peak[0][:2] / peak[1][:2] - 1).abs().max() < 0.07
    assert (peak_day[0][:2] - peak_day[1][:2]).abs().max() < 5


def test_all_corners_of_the_triangle_can_be_simulated_and_summarised(sir):
    e = 1e-6
    theta = torch.tensor([[2 * e, e], [0.5 - e, e], [0.5 - e, 0.5 - 2 * e], [0.25, 0.25 - e]])
    x = sir.simulate(theta, generator=torch.Generator().manual_seed(0))
    assert (x >= 0).all()
    assert (x <= 10_000).all()
    assert torch.isfinite(sir.summary(x)).all()


def statistics_by_loops(x):
    """The six statistics of one trajectory."""
    half = next(t for t in range(len(x)) if sum(x[: t + 1]) > sum(x) / 2)
    return [
        math.log(np.mean(x)),
        math.log(np.median(x)),
        math.log(max(x)),
        math.log(list(x).index(max(x)) + 1),
        math.log(half + 1),
        np.corrcoef(x[:-1], x[1:])[0, 1],
    ]


def test_summaries_agree_with_loops(sir):
    generator = torch.Generator().manual_seed(1)
    x = sir.simulate(sir.sample_prior(20, generator), 3, generator=generator)
    expected = [np.mean([statistics_by_loops(t) for t in d], 0) for d in x.double().numpy()]
    np.testing.assert_allclose(sir.summary(x.double()).numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(sir.summary(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_summaries_do_not_depend_on_how_many_are_asked_for(sir):
    generator = torch.Generator().manual_seed(2)
    x = sir.simulate(sir.sample_prior(20, generator), generator=generator)  # more than one block
    singly = torch.cat([sir.summary(dataset[None]) for dataset in x])
    torch.testing.assert_close(sir.summary(x), singly, rtol=1e-6, atol=1e-6)


def test_summaries_of_zeros_and_constants_are_finite(sir):
    x = torch.tensor([[[0.0, 0.0, 0.0, 0.0, 0.0]], [[3.0, 3.0, 3.0, 3.0, 3.0]]])
    s = sir.summary(x)
    tiny = math.log(1e-37)
    assert s[0].tolist() == pytest.approx([tiny, tiny, tiny, 0.0, math.log(5), 1.0])
    assert s[1].tolist() == pytest.approx([math.log(3)] * 3 + [0.0, math.log(3), 1.0])


def test_late_reporting_moves_a_twentieth_of_the_weekend_to_monday(sir):
    generator = torch.Generator().manual_seed(3)
    x = sir.simulate(sir.sample_prior(4, generator), 5, generator=generator).double()
    late = sir.contaminate(x, 1.0, generator=generator)
    expected = x.clone()
    for saturday in range(1, 365, 7):
        for day in (saturday, saturday + 1):
            expected[..., day] -= 0.05 * x[..., day]
            expected[..., saturday + 2] += 0.05 * x[..., day]
    torch.testing.assert_close(late, expected, rtol=1e-12, atol=0)
    weeks = [counts[..., :364].unflatten(-1, (52, 7)).sum(-1) for counts in (x, late)]
    torch.testing.assert_close(weeks[0], weeks[1], rtol=1e-12, atol=0)
    assert torch.equal(late[..., 364], x[..., 364])


@pytest.mark.parametrize(("num_days", "lost"), [(8, 0), (9, 1), (10, 2), (11, 0), (14, 0)])
def test_what_is_due_after_the_end_is_lost(num_days, lost):
    task = SIRTask(num_days=num_days)
    x = torch.full((1, 2, num_days), 100.0)
    late = task.contaminate(x, 1.0, generator=torch.Generator())
    assert float((x - late)[0, 0].sum()) == pytest.approx(5.0 * lost, abs=1e-3)
    everything = task.contaminate(x, 1.0, withheld=1.0, generator=torch.Generator())
    assert everything[0, 0, :4].tolist() == [100.0, 0.0, 0.0, 300.0]


def test_withheld_is_a_fraction(sir):
    with pytest.raises(ValueError, match="withheld: expected a fraction from 0 to 1, got 5"):
        sir.contaminate(torch.ones(1, 1, 365), 0.5, withheld=5, generator=torch.Generator())


@pytest.mark.parametrize("theta", [(0.2, 0.3), (0.5, 0.1), (0.3, 0.0), (0.2, -0.1), (0.3, 0.3)])
def test_rates_outside_the_triangle_are_refused(sir, theta):
    with pytest.raises(ValueError, match=r"0 < gamma < beta < 0.5, got 1 of 1 outside"):
        sir.simulate(torch.tensor([theta]), generator=torch.Generator())


def test_a_year_has_at_least_three_days():
    with pytest.raises(ValueError, match="num_days: expected at least 3 daily counts"):
        SIRTask(num_days=2)


def test_the_prior_is_uniform_on_the_triangle(sir):
    generator = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    for theta in (sir.sample_prior(10_000, generator), sir.prior.sample((10_000,))):
        beta, gamma = theta.double().T
        # P(beta < b) = (2 b)^2, and gamma given beta is uniform on (0, beta)
        assert stats.kstest((2 * beta).square().numpy(), "uniform").pvalue > 0.01
        assert stats.kstest((gamma / beta).numpy(), "uniform").pvalue > 0.01
        assert abs(stats.spearmanr(beta, gamma / beta).statistic) < 0.04
        torch.testing.assert_close(theta.mean(0), sir.prior.mean, rtol=0, atol=0.005)
        torch.testing.assert_close(theta.var(0), sir.prior.variance, rtol=0.05, atol=0)


def test_the_density_is_eight_inside_and_nothing_outside(sir):
    inside = torch.tensor([[0.3, 0.1], [0.4999, 0.0001], [0.4999, 0.4998]])
    outside = torch.tensor([[0.1, 0.3], [0.5, 0.1], [0.3, 0.0], [0.3, -0.1], [0.7, 0.1]])
    torch.testing.assert_close(sir.prior.log_prob(inside).exp(), torch.full((3,), 8.0))
    assert sir.prior.log_prob(outside).tolist() == [-math.inf] * 5
    assert not sir.prior.support.check(outside).any()
    assert not sir.prior.support.check(torch.full((2,), math.nan))
    grid = torch.cartesian_prod(*2 * [torch.arange(0.0005, 1, 0.001)])
    assert float(sir.prior.log_prob(grid).exp().sum()) * 1e-6 == pytest.approx(1, abs=0.01)


def test_draws_on_an_edge_are_drawn_again(monkeypatch):
    draws = iter(
        [torch.tensor([[0.3, 0.3], [0.4, 0.0], [0.2, 0.6]]), torch.tensor([[0.5, 0.1]] * 2)]
    )
    monkeypatch.setattr(torch, "rand", lambda *_, **__: next(draws))
    theta = UniformTriangle().draw((3,))
    assert theta.flatten().tolist() == pytest.approx([0.25, 0.05, 0.25, 0.05, 0.3, 0.1])


def test_the_triangle_maps_to_the_plane_and_back(sir):
    transform = biject_to(sir.prior.support)
    u = torch.randn(5, 2, dtype=torch.float64)
    theta = transform(u)
    assert sir.prior.support.check(theta).all()
    torch.testing.assert_close(transform.inv(theta), u)
    for point, log_det in zip(u, transform.log_abs_det_jacobian(u, theta), strict=True):
        jacobian = torch.autograd.functional.jacobian(transform, point)
        torch.testing.assert_close(log_det, jacobian.det().abs().log())


def test_sbi_samples_inside_the_triangle_and_finds_a_mode(sir):
    generator = torch.Generator().manual_seed(5)
    theta = sir.sample_prior(400, generator)
    s = sir.summary(sir.simulate(theta, 10, generator=generator))
    posterior = train_npe(
        sir.prior, theta, s, density_estimator="mdn", max_num_epochs=3, learning_rate=5e-3, seed=0
    )
    samples = posterior.sample((500,), x=s[:1], show_progress_bars=False)
    assert sir.prior.support.check(samples).all()
    mode = posterior.set_default_x(s[:1]).map(num_iter=5, show_progress_bars=False)
    assert sir.prior.support.check(mode).all()


@pytest.mark.slow
def test_ten_thousand_datasets_take_less_than_a_minute(sir):
    start, generator = time.perf_counter(), torch.Generator().manual_seed(6)
    for _, x in sir.simulate_chunks(1_000, generator=generator):
        sir.summary(x)
    assert time.perf_counter() - start < 6  # for a tenth of them; measured: 0.8 s
