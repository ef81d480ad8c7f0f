"""The test that combines statistics at size alpha, and how far a summary is from simulated ones."""

import math

import pytest
import torch
from scipy import stats

from mindist import storage
from mindist.decoders import RidgeDecoder
from mindist.detection import CombinedTest, NullDistances, SummaryOutlyingness
from mindist.schema import Record, pack


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def names(size):
    return tuple(f"t{i}" for i in range(size))


def reread(part, path):
    """Through JSON and safetensors and back."""
    storage.write_artefact(path, type(part).__name__, *pack(part))
    return Record.open(path, *storage.read_artefact(path, type(part).__name__)).read(type(part))


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
    """2,000 datasets against 10,000 exact null statistics, independent or strongly dependent."""

    def statistics(rows, seed):
        shared = draw(rows, 1, seed=seed)
        own = draw(rows, 4, seed=seed + 1)
        return dependence * shared + math.sqrt(1 - dependence**2) * own

    test = CombinedTest(statistics(10_000, 0), names(4))
    p = test.p_value(statistics(2_000, 2))
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
    null = draw(20_000, 4)
    test = CombinedTest(null, names(4))
    observed = draw(300, 4, seed=1)
    p = test.p_values(observed).amin(1)
    expected = 1 - (1 - p) ** 4
    # 20,000 simulations: standard deviation at most .0035; ranks of the four columns, the same.
    assert (test.p_value(observed) - expected).abs().max() < 0.014


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
            lambda: CombinedTest(draw(9, 1), ("a",)).p_values(torch.tensor([[0.0], [torch.nan]])),
            r"statistics: .*got 1 NaN \(the first is 'a' of dataset 1\)",
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


def test_leave_one_out_residuals_of_the_decoder_are_those_of_a_fit_without_each():
    s, z_bar = draw(60, 2), draw(60, 6, seed=1)
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


# ---------------------------------------------------------------------------- summaries

UNITS = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)


def brute_force(s, others):
    """log of d_5(s) over the mean d_5 of its five nearest, whitened by the covariance of `others`.

    A summary that is among the others is left out of its own neighbourhood.
    """
    centred = others - others.mean(0)
    precision = torch.linalg.inv(centred.T @ centred / len(others))

    def nearest(points):
        difference = points[:, None] - others
        squared = torch.einsum("bmi,ij,bmj->bm", difference, precision, difference)
        distance, index = squared.clamp(min=0).sqrt().sort(1)
        own = (distance[:, :1] < 1e-6).long()
        return distance.gather(1, 4 + own)[:, 0], index.gather(1, torch.arange(5) + own)

    reach = nearest(others)[0]
    distance, index = nearest(s)
    return (distance / reach[index].mean(1)).log()


def test_outlyingness_is_the_local_factor_of_the_fifth_neighbour():
    mixed = draw(300, 3) @ draw(3, 3, seed=1) * UNITS  # correlated, in very different units
    outlyingness = SummaryOutlyingness.of(mixed, torch.Generator())
    observed = 3 * draw(40, 3, seed=2) * UNITS
    for s in (observed, mixed):
        torch.testing.assert_close(outlyingness(s), brute_force(s, mixed), rtol=1e-3, atol=1e-3)


def test_outlyingness_in_many_dimensions_needs_no_tree():
    s, observed = draw(200, 12), draw(20, 12, seed=1)
    outlyingness = SummaryOutlyingness.of(s, torch.Generator())
    for points in (s, observed):
        expected = brute_force(points, s)
        torch.testing.assert_close(outlyingness(points), expected, rtol=1e-3, atol=1e-3)


def test_off_a_curve_is_far_where_along_it_is_near():
    """Simulated summaries on an arc, 100 points, which are about a thirtieth apart."""
    angle = torch.linspace(0, 3, 100).double()
    arc = torch.stack([angle.cos(), angle.sin()], 1)
    outlyingness = SummaryOutlyingness.of(arc, torch.Generator())
    between = (angle[50] + angle[51]) / 2
    on = torch.stack([between.cos(), between.sin()])[None]
    assert outlyingness(on).abs() < 0.3
    assert outlyingness(0.5 * on) > 1.5 > 1 > outlyingness(arc).abs().max()


def test_within_two_sampling_errors_nothing_is_told_apart():
    lattice = torch.arange(20.0).double().repeat(10)[:, None]
    noise = torch.eye(1).double() * 4.0
    plain = SummaryOutlyingness.of(lattice, torch.Generator())
    floored = SummaryOutlyingness.of(lattice, torch.Generator(), noise)
    between = torch.tensor([[10.5]]).double()
    assert plain(between) > 5  # copies have a reach of 0
    assert floored(between) == 0
    assert floored(torch.tensor([[60.0]]).double()) > 2


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
    for s in (draw(5, 2), torch.ones(30, 2)):
        assert torch.equal(outlyingness(s), torch.zeros(len(s), dtype=torch.float64))


def test_at_most_ten_thousand_summaries_are_kept():
    s = draw(12_000, 1)
    outlyingness = SummaryOutlyingness.of(s, torch.Generator().manual_seed(0))
    assert outlyingness.points.shape == (10_000, 1)
    assert outlyingness(torch.zeros(1, 1)).abs() < 1  # as dense as what is around it


@pytest.mark.parametrize("num", [2, 5, 6])
def test_few_summaries_have_fewer_neighbours(num):
    """The first lies num - 1 from the farthest, its (num - 1)th neighbour."""
    s = torch.arange(num, dtype=torch.float64)[:, None]
    outlyingness = SummaryOutlyingness.of(s, torch.Generator())
    reach = outlyingness.reach * s.std(unbiased=False)
    torch.testing.assert_close(reach[0], s[min(5, num - 1), 0], rtol=1e-5, atol=0)
    assert outlyingness(s).isfinite().all()


def test_outlyingness_survives_its_state(tmp_path):
    outlyingness = SummaryOutlyingness.of(draw(100, 3), torch.Generator())
    again = reread(outlyingness, tmp_path / "summaries")
    s = draw(10, 3, seed=1)
    assert torch.equal(again(s), outlyingness(s))
    assert outlyingness(s[:0]).shape == (0,)
