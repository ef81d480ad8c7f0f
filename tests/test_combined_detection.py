"""Statistics sharper than the plain distance, and the test that combines them at size alpha."""

import math

import pytest
import torch
from scipy import stats

from mindist import storage
from mindist.decoders import RidgeDecoder
from mindist.detection import CombinedTest, NullDistances, ResidualStatistics, SummaryOutlyingness
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.schema import Record, pack


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def names(size):
    return tuple(f"t{i}" for i in range(size))


def reread(part, path):
    """Through JSON and safetensors and back."""
    storage.write_artefact(path, type(part).__name__, *pack(part))
    return Record.open(path, *storage.read_artefact(path, type(part).__name__)).read(type(part))


def assert_size(p, alpha, num_null):
    """Rejections inside their central 99% interval, with the error of a null of `num_null`.

    Given the null the level is Beta distributed around alpha, so that they are beta-binomial.
    """
    rank = math.floor(alpha * (num_null + 1))
    low, high = stats.betabinom.interval(0.99, len(p), rank, num_null + 1 - rank)
    assert low <= int((p <= alpha).sum()) <= high


# ---------------------------------------------------------------------------- the combined test


def pooled_p_value(null, observed):
    """The definition in the docstring of `combined`: rank all n + 1 together, then best ranks."""
    pool = torch.cat([observed[None], null])
    rank = (pool[None] >= pool[:, None]).sum(1)  # of row j: how many k are at least as large
    best = rank.amin(1)
    return float((best <= best[0]).sum()) / len(pool)


@pytest.mark.parametrize("values", [3, 10, 10**9])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_combined_p_value_ranks_the_pool(values, size):
    """With few distinct values, and so many ties, and without."""
    generator = torch.Generator().manual_seed(size)
    null, observed = (
        torch.randint(values, (rows, 3), generator=generator).double() for rows in (size, 200)
    )
    test = CombinedTest(null, names(3))
    expected = [pooled_p_value(null, row) for row in observed]
    assert test.p_value(observed).tolist() == expected


def test_each_statistic_alone_is_the_plain_test():
    null, observed = draw(99, 3).exp(), draw(50, 3, seed=1).exp()
    p = CombinedTest(null, names(3)).p_values(observed)
    for column in range(3):
        alone = NullDistances.of(null[:, column], num_obs=1)
        expected = alone.p_value(observed[:, column].contiguous(), num_obs=1)
        assert torch.equal(p[:, column], expected)


@pytest.mark.parametrize("dependence", [0.0, 0.9])
def test_the_combined_p_value_is_uniform(dependence):
    """5,000 datasets against 50,000 exact null statistics, independent or strongly dependent."""

    def statistics(rows, seed):
        shared = draw(rows, 1, seed=seed)
        own = draw(rows, 4, seed=seed + 1)
        return dependence * shared + math.sqrt(1 - dependence**2) * own

    test = CombinedTest(statistics(50_000, 0), names(4))
    p = test.p_value(statistics(5_000, 2))
    for alpha in (0.05, 0.01):
        low, high = stats.binom.interval(0.99, len(p), alpha)
        assert low <= int((p <= alpha).sum()) <= high
    assert stats.kstest(p.numpy(), "uniform").pvalue > 0.01


@pytest.mark.slow
def test_the_size_is_at_most_alpha_over_draws_of_few_simulations():
    """39 simulations anew each time; above alpha - T/(n + 1), and at most alpha."""
    draws = draw(4_000, 40, 2)
    draws[..., 1] += draws[..., 0]
    p = torch.cat([CombinedTest(d[1:], names(2)).p_value(d[:1]) for d in draws])
    for alpha in (0.05, 0.1):
        rejected = int((p <= alpha).sum())
        assert rejected <= stats.binom.ppf(0.995, len(p), alpha)
        assert rejected >= stats.binom.ppf(0.005, len(p), alpha - 2 / 40)


def test_copies_of_one_statistic_are_that_statistic():
    null, observed = draw(199, 1), draw(100, 1, seed=1)
    single = CombinedTest(null, names(1))
    copies = CombinedTest(null.repeat(1, 5), names(5))
    expected = single.p_values(observed)[:, 0]
    assert torch.equal(single.p_value(observed), expected)
    assert torch.equal(copies.p_value(observed.repeat(1, 5)), expected)


def test_the_smallest_of_independent_p_values():
    """Its distribution is 1 - (1 - p)^T; with T = 4 and p = .01 that is .039."""
    null = draw(100_000, 4)
    test = CombinedTest(null, names(4))
    observed = draw(300, 4, seed=1)
    p = test.p_values(observed).amin(1)
    expected = 1 - (1 - p) ** 4
    # 100,000 simulations: standard deviation at most .0016; ranks of the four columns, the same.
    assert (test.p_value(observed) - expected).abs().max() < 0.006


def test_the_deciding_statistic_has_its_name():
    test = CombinedTest(draw(99, 3), ("scaled", "mahalanobis", "summary"))
    observed = 9 * torch.eye(3, dtype=torch.float64)
    assert test.smallest(observed) == ("scaled", "mahalanobis", "summary")
    assert test.smallest(torch.full((1, 3), 9.0)) == ("scaled",)
    assert test.smallest(observed[:0]) == ()


@pytest.mark.parametrize("size", [18, 19])
def test_nineteen_simulations_are_enough_at_five_per_cent(size):
    test = CombinedTest(draw(size, 3), names(3))
    p = test.p_value(torch.full((1, 3), 9.0))
    assert p.item() == 1 / (size + 1)
    assert bool(p <= 0.05) == (size == 19)


def test_infinite_and_constant_statistics_have_ranks():
    null = torch.cat([draw(99, 1), torch.zeros(99, 1)], dim=1)
    p = CombinedTest(null, names(2)).p_value(
        torch.tensor([[math.inf, 0.0], [-math.inf, 0.0], [-math.inf, 1.0]])
    )
    torch.testing.assert_close(p, torch.tensor([0.01, 1.0, 0.02]).double())


def test_no_datasets_have_no_p_values():
    test = CombinedTest(draw(19, 2), names(2))
    assert test.p_value(torch.empty(0, 2)).shape == (0,)
    assert test.p_values(torch.empty(0, 2)).shape == (0, 2)


def test_a_combined_test_survives_its_state(tmp_path):
    test = CombinedTest(draw(99, 2), ("a", "b"))
    again = reread(test, tmp_path / "test")
    observed = draw(20, 2, seed=1)
    assert again.names == ("a", "b")
    assert torch.equal(again.null, test.null)
    assert torch.equal(again.p_value(observed), test.p_value(observed))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CombinedTest(draw(9, 2), names(3)), r"null: expected .* \(n, 3\).*got.*\(9, 2\)"),
        (lambda: CombinedTest(draw(0, 2), names(2)), r"null: expected .*got shape \(0, 2\)"),
        (
            lambda: CombinedTest(torch.full((3, 2), torch.nan), ("a", "b")),
            r"null: expected numbers, got 6 NaN \(the first is 'a' of dataset 0\)",
        ),
        (
            lambda: CombinedTest(draw(9, 2), ("a", "b")).p_value(draw(2)),
            r"statistics: expected shape \(B, 2\).*'a', 'b', got shape \(2,\).*statistics\[None\]",
        ),
        (
            lambda: CombinedTest(draw(9, 1), ("a",)).smallest(torch.tensor([[0.0], [torch.nan]])),
            r"statistics: .*got 1 NaN \(the first is 'a' of dataset 1\)",
        ),
        (
            lambda: ResidualStatistics.of(draw(9, 4), draw(8, 2), torch.Generator()),
            r"residual, s: expected .*\(M, K\).*got shapes \(9, 4\) and \(8, 2\)",
        ),
        (
            lambda: residual_statistics()[0](draw(9, 3), draw(9, 1)),
            r"residual, s: expected shapes \(B, 6\) and \(B, 1\).*got \(9, 3\) and \(9, 1\)",
        ),
        (
            lambda: residual_statistics()[0](draw(9, 6), draw(9, 1), ratio=0.0),
            r"ratio: expected a positive number .*got 0.0",
        ),
        (
            lambda: SummaryOutlyingness.of(draw(1, 2), torch.Generator()),
            r"s: expected at least 2 simulated summaries, .*got shape \(1, 2\)",
        ),
        (
            lambda: SummaryOutlyingness.of(draw(9, 2), torch.Generator())(draw(9, 3)),
            r"s: expected summaries of shape \(B, 2\), as simulated, got \(9, 3\)",
        ),
    ],
)
def test_errors_say_what_was_expected_and_what_came(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------------- residual statistics

DIM = 6


def scaled_noise(s, seed):
    """Residuals with |r|^2 = sigma(s)^2 chi2(6), sigma(s) = exp(2 s): from 1/7 to 7."""
    return (2 * s).exp() * draw(len(s), DIM, seed=seed)


def uniform_summaries(num, seed):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(num, 1, dtype=torch.float64, generator=generator) - 1


def residual_statistics(num=4_000):
    s = uniform_summaries(num, 0)
    residual = scaled_noise(s, seed=1)
    statistics = ResidualStatistics.of(residual, s, torch.Generator().manual_seed(2))
    return statistics, residual, s


def test_mahalanobis_solves_with_the_null_covariance():
    statistics, residual, s = residual_statistics()
    covariance = residual.T @ residual / len(residual)
    top = torch.linalg.eigvalsh(covariance)[-1]
    r = draw(7, DIM, seed=3)
    solved = torch.linalg.solve(covariance + 0.01 * top * torch.eye(DIM), r.T).T
    torch.testing.assert_close(statistics(r, s[:7])[:, 1], (r * solved).sum(1).log())


def test_the_scale_is_the_expected_logarithm():
    """E[log(sigma(s)^2 chi2(6))] = 4 s + digamma(3) + log 2."""
    statistics, _, _ = residual_statistics()
    s = torch.linspace(-0.9, 0.9, 19, dtype=torch.float64)[:, None]
    expected = 4 * s[:, 0] + torch.digamma(torch.tensor(3.0)) + math.log(2)
    got = -statistics(torch.eye(DIM, dtype=torch.float64)[:1].expand(19, -1), s)[:, 0]
    # A hundred coefficients from 4,000 logarithms with standard deviation .63: at most .1 each.
    torch.testing.assert_close(got, expected, rtol=0, atol=0.3)


def test_the_scaled_distance_does_not_depend_on_the_summary():
    statistics, _, _ = residual_statistics()
    s = uniform_summaries(4_000, seed=4)
    residual = scaled_noise(s, seed=5)
    scaled = statistics(residual, s)[:, 0]
    plain = residual.square().sum(1).log()
    limit = stats.norm.ppf(0.995) / math.sqrt(len(s))
    for moment in (s[:, 0], s[:, 0].square()):
        assert torch.corrcoef(torch.stack([scaled, moment]))[0, 1].abs() < limit
    assert torch.corrcoef(torch.stack([plain, s[:, 0]]))[0, 1] > 0.9


def test_the_scaled_distance_detects_what_is_large_for_its_summary():
    """Doubled residuals where sigma is at most 1/4; chi2(6) above its 95% quantile / 4: .74 power.

    Among all simulations none of them is large.
    """
    statistics, residual, s = residual_statistics()
    null = torch.cat([statistics.leave_one_out(residual, s), residual.norm(dim=1)[:, None]], dim=1)
    test = CombinedTest(null, ("scaled", "mahalanobis", "plain"))
    at = -0.7 - 0.15 * (1 + uniform_summaries(1_000, seed=6))
    doubled = 2 * scaled_noise(at, seed=7)
    observed = torch.cat([statistics(doubled, at), doubled.norm(dim=1)[:, None]], dim=1)
    scaled, _, plain = (test.p_values(observed) <= 0.05).double().mean(0)
    known = stats.chi2.sf(stats.chi2.ppf(0.95, DIM) / 4, DIM)
    assert abs(scaled - known) < 0.1
    assert plain == 0
    combined = test.p_value(observed) <= 0.05
    assert combined.double().mean() > 0.4


def test_the_scale_is_not_extrapolated():
    statistics, _, s = residual_statistics()
    r = draw(1, DIM, seed=3)
    edges = torch.stack([s.min(), s.max()])[:, None]
    beyond = statistics(r.expand(2, -1), edges + torch.tensor([[-50.0], [50.0]]))
    assert torch.equal(beyond, statistics(r.expand(2, -1), edges))
    low, high = statistics.span
    scale = _log_square(r) - statistics(r.expand(400, -1), 10 * draw(400, 1))[:, 0]
    assert scale.min() >= low - 1e-12
    assert scale.max() <= high + 1e-12


def _log_square(r):
    return r.square().sum(1).log()


def test_leaving_one_out_is_fitting_without_it():
    """With a fixed basis, ridge and length-scale for g, and damping for S."""
    statistics, residual, s = residual_statistics(60)
    got = statistics.leave_one_out(residual, s)
    g, M = statistics.log_scale, len(s)
    h, target = g.basis(s), _log_square(residual)
    covariance = residual.T @ residual / M
    damping = 0.01 * torch.linalg.eigvalsh(covariance)[-1] * torch.eye(DIM)
    for i in (0, 17, 59):
        keep = torch.arange(M) != i
        centre, mean = h[keep].mean(0), target[keep].mean()
        centred = h[keep] - centre
        penalty = g.ridge * M * torch.eye(h.shape[1], dtype=torch.float64)
        weight = torch.linalg.solve(
            centred.T @ centred + penalty, centred.T @ (target[keep] - mean)
        )
        scale = (mean + (h[i] - centre) @ weight).clamp(*statistics.span)
        torch.testing.assert_close(got[i, 0], target[i] - scale, rtol=1e-6, atol=1e-6)
        without = residual[keep].T @ residual[keep] / M + damping
        mahalanobis = residual[i] @ torch.linalg.solve(without, residual[i])
        torch.testing.assert_close(got[i, 1], mahalanobis.log())


def test_leave_one_out_residuals_of_the_decoder_are_those_of_a_fit_without_each():
    s, z_bar = draw(60, 2), draw(60, DIM, seed=1)
    options = {"length_scales": (0.5,), "ridges": (1e-3,)}
    decoder = RidgeDecoder(20, **options).fit(s, z_bar, generator=torch.Generator())
    residual = decoder.leave_one_out_residuals(s, z_bar)
    h, penalty = decoder.basis(s), 1e-3 * 60 * torch.eye(20, dtype=torch.float64)
    for i in (0, 31, 59):
        keep = torch.arange(60) != i
        centre, mean = h[keep].mean(0), z_bar[keep].mean(0)
        centred = h[keep] - centre
        weight = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (z_bar[keep] - mean))
        torch.testing.assert_close(residual[i], z_bar[i] - mean - (h[i] - centre) @ weight)


def test_residuals_are_rescaled_by_the_number_of_observations():
    """Noise of 25 observations instead of 100 is twice as large."""
    statistics, _, s = residual_statistics()
    r = draw(20, DIM, seed=3)
    torch.testing.assert_close(statistics(2 * r, s[:20], ratio=25 / 100), statistics(r, s[:20]))
    torch.testing.assert_close(
        statistics(r, s[:20], ratio=4.0), statistics(r, s[:20]) + math.log(4)
    )


def test_residual_statistics_survive_their_state(tmp_path):
    statistics, residual, s = residual_statistics()
    again = reread(statistics, tmp_path / "statistics")
    assert torch.equal(again(residual, s), statistics(residual, s))


def test_blocks_do_not_change_the_statistics():
    statistics, residual, s = residual_statistics(9_000)
    one_by_one = torch.cat([statistics(residual[i : i + 1], s[i : i + 1]) for i in (0, 4_096)])
    torch.testing.assert_close(statistics(residual, s)[[0, 4_096]], one_by_one)
    assert statistics(residual[:0], s[:0]).shape == (0, 2)


def test_residuals_that_are_zero_have_finite_statistics():
    residual, s = torch.zeros(50, 4), torch.ones(50, 2)
    statistics = ResidualStatistics.of(residual, s, torch.Generator())
    assert statistics(residual, s).isfinite().all()
    assert statistics.leave_one_out(residual, s).isfinite().all()


@pytest.mark.parametrize("num", [2, 5, 19])
def test_few_simulations_are_enough_for_statistics(num):
    statistics, residual, s = residual_statistics(num)
    assert statistics(residual, s).isfinite().all()
    assert statistics.leave_one_out(residual, s).isfinite().all()


# ---------------------------------------------------------------------------- summaries

UNITS = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)


def brute_force(s, others, rank):
    """The rank-th smallest Mahalanobis distance with the covariance of `others`."""
    centred = others - others.mean(0)
    precision = torch.linalg.inv(centred.T @ centred / len(others))
    difference = s[:, None] - others
    return (
        torch.einsum("bmi,ij,bmj->bm", difference, precision, difference)
        .sqrt()
        .sort(1)[0][:, rank - 1]
    )


def test_outlyingness_is_the_distance_to_the_fifth_nearest():
    mixed = draw(300, 3) @ draw(3, 3, seed=1) * UNITS  # correlated, in very different units
    outlyingness = SummaryOutlyingness.of(mixed, torch.Generator())
    observed = 3 * draw(40, 3, seed=2) * UNITS
    expected = brute_force(observed, mixed, 5)
    torch.testing.assert_close(outlyingness(observed), expected, rtol=1e-3, atol=0)
    # The sixth, itself the first: by brute force the fifth among the others.
    left_out = brute_force(mixed, mixed, 6)
    torch.testing.assert_close(outlyingness.leave_one_out(), left_out, rtol=1e-3, atol=0)


def test_units_and_constant_and_duplicated_summaries_do_not_matter():
    s, observed = draw(300, 2), 2 * draw(50, 2, seed=1)
    plain = SummaryOutlyingness.of(s, torch.Generator())(observed)
    in_units = SummaryOutlyingness.of(s * UNITS[:2], torch.Generator())(observed * UNITS[:2])
    torch.testing.assert_close(in_units, plain)

    def with_constant(s):
        return torch.cat([s, torch.full((len(s), 1), 7.0)], dim=1)

    constant = SummaryOutlyingness.of(with_constant(s), torch.Generator())(with_constant(observed))
    torch.testing.assert_close(constant, plain)

    def doubled(s):
        return torch.cat([s, 5 * s[:, :1]], dim=1)

    for dtype in (torch.float32, torch.float64):
        redundant = SummaryOutlyingness.of(doubled(s).to(dtype), torch.Generator())
        got = redundant(doubled(observed).to(dtype))
        torch.testing.assert_close(got, plain, rtol=1e-3, atol=1e-3)


def test_summaries_that_never_vary_are_never_far():
    outlyingness = SummaryOutlyingness.of(torch.ones(30, 2), torch.Generator())
    assert torch.equal(outlyingness(draw(5, 2)), torch.zeros(5, dtype=torch.float64))
    assert torch.equal(outlyingness.leave_one_out(), torch.zeros(30, dtype=torch.float64))


def test_repeated_summaries_are_at_distance_zero():
    s = torch.tensor([[0.0], [1.0]]).repeat(10, 1)
    outlyingness = SummaryOutlyingness.of(s, torch.Generator())
    assert torch.equal(outlyingness.leave_one_out(), torch.zeros(20, dtype=torch.float64))
    torch.testing.assert_close(outlyingness(torch.tensor([[2.0]])).item(), 2.0, rtol=1e-5, atol=0)


def test_at_most_ten_thousand_summaries_are_kept_in_order():
    s = draw(12_000, 1)
    outlyingness = SummaryOutlyingness.of(s, torch.Generator().manual_seed(0))
    assert outlyingness.points.shape == (10_000, 1)
    assert (outlyingness.index.diff() > 0).all()
    kept = s[outlyingness.index]
    expected = (kept[:50] - kept.T).abs().sort(1).values[:, 5] / s.std(unbiased=False)
    torch.testing.assert_close(outlyingness.leave_one_out()[:50], expected, rtol=1e-5, atol=1e-12)
    few = SummaryOutlyingness.of(s[:20], torch.Generator())
    assert torch.equal(few.index, torch.arange(20))


@pytest.mark.parametrize("num", [2, 5, 6])
def test_few_summaries_have_fewer_neighbours(num):
    s = torch.arange(num, dtype=torch.float64)[:, None]
    outlyingness = SummaryOutlyingness.of(s, torch.Generator())
    spread = s.std(unbiased=False)
    # The first lies num - 1 from the farthest, its (num - 1)th neighbour.
    torch.testing.assert_close(
        outlyingness.leave_one_out()[0] * spread, s[-1, 0], rtol=1e-5, atol=0
    )


def test_outlyingness_survives_its_state(tmp_path):
    outlyingness = SummaryOutlyingness.of(draw(100, 3), torch.Generator())
    again = reread(outlyingness, tmp_path / "summaries")
    s = draw(10, 3, seed=1)
    assert torch.equal(again(s), outlyingness(s))
    assert torch.equal(again.leave_one_out(), outlyingness.leave_one_out())
    assert outlyingness(s[:0]).shape == (0,)


# ---------------------------------------------------------------------------- the real thing


class Detector:
    """Two kernels and the summary, from simulations, as one test."""

    def __init__(self, task, x, generator):
        self.task, s = task, task.summary(x)
        self.kernels, null = [], []
        for rule in ("median", "0.35 median"):
            bandwidth = choose_bandwidth(rule, x, generator)
            features = FourierFeatures.draw((2,), 512, bandwidth=bandwidth, generator=generator)
            z_bar = features.mean(x)
            decoder = RidgeDecoder().fit(s, z_bar, generator=generator)
            residual = decoder.leave_one_out_residuals(s, z_bar)
            statistics = ResidualStatistics.of(residual, s, generator)
            self.kernels.append((features, decoder, statistics))
            null.append(statistics.leave_one_out(residual, s))
        self.outlyingness = SummaryOutlyingness.of(s, generator)
        self.test = CombinedTest(
            torch.cat([*null, self.outlyingness.leave_one_out()[:, None]], dim=1),
            tuple(f"{name} {k}" for k in ("wide", "narrow") for name in ResidualStatistics.NAMES)
            + (SummaryOutlyingness.NAME,),
        )

    def statistics(self, x, ratio=1.0):
        s = self.task.summary(x)
        columns = [
            statistics(features.mean(x).double() - decoder(s), s, ratio)
            for features, decoder, statistics in self.kernels
        ]
        return torch.cat([*columns, self.outlyingness(s)[:, None]], dim=1)

    def p_value(self, x, ratio=1.0):
        return self.test.p_value(self.statistics(x, ratio))


@pytest.fixture(scope="module")
def detector(task):
    generator = torch.Generator().manual_seed(0)
    x = task.simulate(task.sample_prior(5_000, generator), generator=generator)
    return Detector(task, x, generator)


@pytest.mark.slow
@pytest.mark.parametrize("num_obs", [100, 50, 200])
def test_size_on_the_gaussian_task(task, detector, num_obs):
    """2,000 fresh clean datasets of N observations, 5,000 simulations of 100."""
    generator = torch.Generator().manual_seed(num_obs)
    x = task.simulate(task.sample_prior(2_000, generator), num_obs, generator=generator)
    assert_size(detector.p_value(x, ratio=num_obs / 100), 0.05, num_null=5_000)


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "epsilon", "least"), [(1.0, 0.2, 0.8), (3.0, 0.1, 0.95)])
def test_power_on_the_gaussian_task(task, detector, delta, epsilon, least):
    """The distance alone at the median bandwidth has .55 and .97, the narrow one .92 and .79."""
    generator = torch.Generator().manual_seed(1)
    x = task.simulate(task.sample_prior(1_000, generator), generator=generator)
    x = task.contaminate(x, epsilon, delta=delta, generator=generator)
    assert (detector.p_value(x) <= 0.05).double().mean() >= least
    decided = detector.test.smallest(detector.statistics(x))
    most_often = max(set(decided), key=decided.count)
    assert most_often.endswith("narrow" if delta == 1 else "wide")
