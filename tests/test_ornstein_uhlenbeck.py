import math

import numpy as np
import pytest
import torch
from scipy import stats

from mindist.tasks import OrnsteinUhlenbeckTask


@pytest.fixture
def oup() -> OrnsteinUhlenbeckTask:
    return OrnsteinUhlenbeckTask()


def residuals(x, theta, variance, step=0.2):
    """The standard normal shocks that an Euler-Maruyama trajectory was made of."""
    x = x.double()
    drift = theta[0] * (math.exp(theta[1]) - x[..., :-1]) * step
    return (x.diff(dim=-1) - drift) / math.sqrt(variance * step)


@pytest.mark.parametrize("theta", [(0.0, 1.0), (0.7, -1.0), (2.0, 2.0)])
def test_mean_and_variance_follow_their_recursions(oup, theta):
    num = 40_000
    generator = torch.Generator().manual_seed(0)
    x = oup.simulate(torch.tensor([theta]), num, generator=generator)[0].double()
    m, v = [10.0], [0.0]
    for _ in range(24):
        m.append(m[-1] + theta[0] * 0.2 * (math.exp(theta[1]) - m[-1]))
        v.append((1 - theta[0] * 0.2) ** 2 * v[-1] + 0.1 * 0.2)
    m, v = torch.tensor(m).double(), torch.tensor(v).double()
    assert torch.equal(x[:, 0], torch.full((num,), 10.0).double())
    assert ((x.mean(0) - m).abs() <= 4.5 * (v / num).sqrt() + 1e-5).all()
    assert ((x.var(0) - v).abs() <= 4.5 * v * math.sqrt(2 / num)).all()
    covariance = ((x[:, 9] - m[9]) * (x[:, 10] - m[10])).mean()
    assert float(covariance) == pytest.approx((1 - theta[0] * 0.2) * float(v[9]), rel=0.05)


def test_shocks_are_independent_standard_normals(oup):
    theta = (1.2, 0.3)
    generator = torch.Generator().manual_seed(1)
    x = oup.simulate(torch.tensor([theta]), 2_000, generator=generator)[0]
    shocks = residuals(x, theta, 0.1)
    assert stats.kstest(shocks.flatten().numpy(), "norm").pvalue > 0.01
    correlation = torch.corrcoef(shocks.T) - torch.eye(24)
    assert float(correlation.abs().max()) < 5 / 2_000**0.5


def test_a_small_step_approaches_the_exact_process():
    task = OrnsteinUhlenbeckTask(num_times=501, step=0.01)
    generator = torch.Generator().manual_seed(2)
    x = task.simulate(torch.tensor([[1.0, 0.5]]), 4_000, generator=generator)[0].double()
    level, decay = math.exp(0.5), math.exp(-1.0 * 5)
    variance = 0.1 / 2 * (1 - decay**2)
    assert float(x[:, -1].mean()) == pytest.approx(level + (10 - level) * decay, abs=0.02)
    assert float(x[:, -1].var()) == pytest.approx(variance, rel=0.1)


def test_summaries_agree_with_loops(oup):
    generator = torch.Generator().manual_seed(3)
    x = oup.simulate(oup.sample_prior(4, generator), 3, generator=generator)
    for dataset, s in zip(x.double().numpy(), oup.summary(x.double()), strict=True):
        values = [value for trajectory in dataset for value in trajectory]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        now = [v for trajectory in dataset for v in trajectory[:-1]]
        after = [v for trajectory in dataset for v in trajectory[1:]]
        expected = [mean, variance, np.corrcoef(now, after)[0, 1]]
        np.testing.assert_allclose(s.numpy(), expected, rtol=1e-10)
    torch.testing.assert_close(oup.summary(x), oup.summary(x.double()).float(), rtol=1e-4, atol=0)


def test_summaries_of_a_dataset_worked_out_by_hand(oup):
    x = torch.tensor([[[0.0, 1.0, 2.0], [4.0, 3.0, 2.0]]])
    # pairs (0, 1), (1, 2), (4, 3), (3, 2): both variances 10 and 2 over 4, covariance 4 over 4
    expected = [2.0, 10 / 6, 4 / math.sqrt(10 * 2)]
    assert oup.summary(x)[0].tolist() == pytest.approx(expected)
    assert oup.summary(torch.full((1, 2, 3), 7.0))[0].tolist() == [7.0, 0.0, 1.0]


def test_the_prior_is_uniform_on_its_box(oup):
    generator = torch.Generator().manual_seed(4)
    for theta in (oup.sample_prior(5_000, generator), oup.prior.sample((5_000,))):
        assert stats.kstest(theta[:, 0].numpy(), "uniform", (0, 2)).pvalue > 0.01
        assert stats.kstest(theta[:, 1].numpy(), "uniform", (-2, 4)).pvalue > 0.01
    assert float(oup.prior.log_prob(torch.tensor([1.0, 0.0]))) == pytest.approx(-math.log(8))


def test_contamination_comes_from_the_exploding_process(oup):
    generator = torch.Generator().manual_seed(5)
    x = oup.simulate(oup.sample_prior(50, generator), generator=generator)
    dirty = oup.contaminate(x, 0.2, generator=generator)
    changed = (dirty != x).any(-1)
    assert torch.equal(dirty[~changed], x[~changed])
    shocks = residuals(dirty[changed], (-0.5, 1.0), 0.5)
    assert stats.kstest(shocks.flatten().numpy(), "norm").pvalue > 0.01
    end = math.e + (10 - math.e) * 1.1**24
    assert float(dirty[changed][:, -1].mean()) == pytest.approx(end, rel=0.02)
    other = oup.contaminate(x, 1.0, theta=(0.0, 0.0), variance=0.01, generator=generator)
    assert float(other[..., -1].std()) == pytest.approx(math.sqrt(24 * 0.2 * 0.01), rel=0.05)


@pytest.mark.parametrize("theta", [(2.1, 0.0), (-0.5, 1.0), (1.0, -2.5)])
def test_parameters_outside_the_box_are_refused(oup, theta):
    bad = torch.tensor([[1.0, 0.0], theta])
    box = r"0 <= theta_1 <= 2 and -2 <= theta_2 <= 2, got 1 of 2 outside it \(the first is theta\[1"
    with pytest.raises(ValueError, match=box):
        oup.simulate(bad, generator=torch.Generator())


def test_a_trajectory_needs_three_values():
    with pytest.raises(ValueError, match="num_times: expected at least 3 values"):
        OrnsteinUhlenbeckTask(num_times=2)


def test_the_summary_wants_a_batch(oup):
    with pytest.raises(ValueError, match=r"x: expected datasets of shape \(B, N, 25\)"):
        oup.summary(torch.zeros(100, 25))
