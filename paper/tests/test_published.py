"""Published benchmarks: simulators have known moments, measures are those computed by hand."""

import json

import numpy as np
import pytest
import torch
from scipy.special import gamma

from mindist_paper.zoo.evaluate import Settings, measure
from mindist_paper.zoo.published import BENCHMARKS, exit_times, near_median
from mindist_paper.zoo.run import number, run_benchmark

TINY = Settings(simulations=400, datasets=5)


def made(name, theta, num_obs, twist="", seed=0):
    rng = np.random.default_rng(seed)
    return BENCHMARKS[name].model.simulate(np.array([theta], float), num_obs, rng, twist)[0]


def test_numbers_are_published_of_cases_that_there_are():
    for benchmark in BENCHMARKS.values():
        cases = {f"{case.name}, {case.epsilon:g}" for case in benchmark.model.cases}
        assert set(benchmark.published) <= cases | {"clean"}
        theta = benchmark.model.sample_prior(1, np.random.default_rng(0))
        assert theta.shape == (1, len(benchmark.parameters))


def test_a_population_balances():
    # In the stationary law E[log N'] = E[log N], so that E[N] = log r; counts have phi times it.
    x = made("ricker", (3, 10), 2_000)
    assert x[:, 20:].mean() == pytest.approx(30, rel=0.02)
    s = BENCHMARKS["ricker"].model.summary(torch.tensor([[[0.0, 2, 0, 2]]]))
    torch.testing.assert_close(s, torch.tensor([[1, np.log(2), 0.5, -1]]).float())


def test_weibull_times_have_their_moments():
    x = made("weibull", [np.log(0.8)], 100_000)
    assert x.mean() == pytest.approx(gamma(1 + 1 / 0.8), rel=0.02)
    assert (x**0.8).mean() == pytest.approx(1, rel=0.02)
    s = BENCHMARKS["weibull"].model.summary(torch.tensor([[[-1.0], [3.0]]]))[0]
    assert s.tolist() == pytest.approx([np.log(5), np.log(2), -np.log(2)])


def test_series_have_their_autocovariances():
    summary = BENCHMARKS["moving-average"].model.summary
    x = made("moving-average", [0.5], 100_000)
    assert np.array_equal(x[1:, 0], x[:-1, 1])
    assert summary(torch.from_numpy(x[None]))[0].tolist() == pytest.approx([1.25, 0.5], abs=0.02)
    x = made("moving-average", [0.0], 400_000, "stochastic volatility")
    mean, variance = -7.36, 0.36**2 / (1 - 0.9**2)  # of log variances, which are normal
    expected = np.exp(mean + variance / 2)
    found = summary(torch.from_numpy(x[None]))[0] / expected
    assert found.tolist() == pytest.approx([1, 0], abs=0.03)


@pytest.mark.parametrize(("v", "a"), [(0.5, 0.8), (3, 2)])
def test_a_diffusion_leaves_as_wald_says(v, a):
    x = made("drift-diffusion", (v, a, 0.3), 100_000)
    assert x[:, 1].mean() == pytest.approx(1 / (1 + np.exp(-v * a)), abs=0.005)
    expected = a / (2 * v) * np.tanh(v * a / 2)
    for choice in (0, 1):  # when it leaves does not depend on where
        times = x[x[:, 1] == choice, 0] - 0.3
        assert times.mean() == pytest.approx(expected, rel=0.06)
    # The variance of EZ diffusion (Wagenmakers et al. 2007, equation 6)
    y = -v * a
    variance = a / (2 * v**3) * (2 * y * np.exp(y) - np.exp(2 * y) + 1) / (np.exp(y) + 1) ** 2
    assert (x[:, 0] - 0.3).var() == pytest.approx(variance, rel=0.05)
    assert (np.diff(exit_times()[1]) >= -1e-12).all()


def test_trimming_keeps_what_is_near_the_median():
    x = torch.tensor([[0.5, 1], [0.6, 1], [0.7, 0], [0.8, 1], [1.0, 0], [1.2, 1]])
    assert near_median(x).tolist() == [True] * 5 + [False]  # beyond .7 + 2.5 * 1.4826 * .1


def test_measures_are_those_computed_by_hand():
    draws = np.array([[[0.0], [2.0]], [[3.0], [5.0]]])
    found = measure(draws, np.array([[1.0], [2.0]]))
    assert found["error"] == [pytest.approx(2**0.5)]
    assert found["squared"] == 2
    assert found["over draws"] == pytest.approx((1 + 5**0.5) / 2)
    assert found["quantiles"][0] == pytest.approx([1.6, 2.5, 3.4])
    assert found["covers"] == [0.5]
    assert [number(v) for v in (0.0123456, 1.0, 12.345, None)] == [".0123", "1", "12.3", ""]


def test_a_benchmark_is_resumed_and_judged(tmp_path):
    told = []
    lines = run_benchmark(tmp_path, "ward-gaussian", TINY, told.append)
    record = json.loads((tmp_path / "record.json").read_text())
    clean, wrong = (cell["methods"] for cell in record["cells"])
    assert clean["plain"] == clean["oracle"]
    # The variance of the mean of 100 numbers of variance 2 is .02; five datasets, a rough network
    assert wrong["oracle"]["squared"] < 0.2
    assert len(lines) == 2
    record["cells"][1]["methods"]["mindist"] |= {"squared": 0.01, "covers": [0.9]}
    (tmp_path / "record.json").write_text(json.dumps(record))
    lines = run_benchmark(tmp_path, "ward-gaussian", TINY, told.append)
    assert [line.split(":")[0] for line in lines] == ["- holds", "- holds"]
    text = (tmp_path / "table.md").read_text()
    assert "| variance 2, 1 | *RNPE, published* | .024 |  |  |" in text
    assert "| variance 2, 1 | mindist | .01 |" in text
