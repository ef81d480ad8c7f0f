"""See, sort, speak, calibrate: each part against what is known of it, then the whole way."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from exact_models import normal
from mindist import MinimumDistance
from mindist.adaptation import Status
from mindist.adaptation.calibration import COLLINEAR, HARMLESS, Calibration, moved_by, spread_of
from mindist.adaptation.procedure import STATISTICS
from mindist.adaptation.sorting import CUT, Sorter
from mindist.adaptation.speaking import Speaker, systematic
from mindist.detection import Misfit, SummaryOutlyingness
from mindist.features import residuals
from mindist.features.residuals import Regression, Residuals
from mindist.summarise import Summariser

NUM, NUM_OBS = 1_000, 100


def uniform(*shape, low=-1.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)


def within_binomial(count, trials, share, confidence=0.99):
    low, high = stats.binom.interval(confidence, trials, share)
    return low <= count <= high


# ------------------------------------------------------------------------------ regressions


def test_a_regression_is_exact_on_a_linear_function_and_extrapolates_it():
    s = uniform(400, 2)
    slope = torch.tensor([[2.0, -1.0], [0.5, 3.0]]).double()
    line, left_out = Regression.of(s, 1 + s @ slope, num=40)
    inside = uniform(50, 2, seed=1)
    torch.testing.assert_close(line(inside), 1 + inside @ slope, rtol=0, atol=1e-4)
    torch.testing.assert_close(left_out, 1 + s @ slope, rtol=0, atol=1e-4)
    beyond = torch.tensor([[1.9, 0.0], [-1.9, 1.9]]).double()  # half of the range of 2, and 1
    torch.testing.assert_close(line(beyond), 1 + beyond @ slope, rtol=0, atol=0.05)
    far = torch.tensor([[1e6, -1e6]]).double()
    torch.testing.assert_close(line(far), line(torch.stack([line.high[0], line.low[1]])[None]))


def test_left_out_predictions_are_those_of_regressions_without_each(monkeypatch):
    monkeypatch.setattr(residuals, "LENGTH_SCALES", (1.0,))
    monkeypatch.setattr(residuals, "RIDGES", (1e-2,))
    s, y = uniform(40, 1), normal(40, 2, seed=1)
    found, left_out = Regression.of(s, y, num=8)
    h = found.basis(s)
    penalty = torch.ones(h.shape[1], dtype=torch.float64)
    penalty[0], penalty[1] = 1e-9, residuals.LINEAR
    # The strength is that of 40 observations, and the constant is free.
    ridge = torch.diag(40 * 1e-2 * penalty)
    for i in (0, 17, 39):
        keep = torch.arange(40) != i
        weight = torch.linalg.solve(h[keep].T @ h[keep] + ridge, h[keep].T @ y[keep])
        torch.testing.assert_close(left_out[i], h[i] @ weight, rtol=1e-5, atol=1e-6)


def test_a_regression_of_constants_is_constant():
    one, left_out = Regression.of(torch.ones(50, 2), torch.full((50, 1), 3.0), num=10)
    assert one(uniform(5, 2)).flatten().tolist() == pytest.approx([3.0] * 5)
    assert left_out.flatten().tolist() == pytest.approx([3.0] * 50)


# ------------------------------------------------------------------------------ residuals


def regression_data(num, num_obs, noise=0.1, seed=0):
    """Covariates N(0, 1), responses a + b x + noise; coefficients in -2..2, and the data."""
    theta = uniform(num, 2, low=-2, high=2, seed=seed)
    covariate = normal(num, num_obs, seed=seed + 1)
    response = theta[:, :1] + theta[:, 1:] * covariate
    response = response + noise * normal(num, num_obs, seed=seed + 2)
    return theta, torch.stack([covariate, response], 2)


def least_squares(x):
    X, y = torch.stack([torch.ones_like(x[..., 0]), x[..., 0]], -1), x[..., 1:]
    return torch.linalg.solve(X.mT @ X, X.mT @ y)[..., 0]


def test_residuals_of_a_line_are_those_of_the_line():
    _, x = regression_data(600, 100)
    seen = Residuals.of(x, least_squares(x))
    theta, x_new = regression_data(200, 100, seed=10)
    rho = seen(x_new, theta).double()
    response = (residuals.NEAR * (rho[..., 1] / residuals.NEAR).sinh()).flatten()
    covariate = rho[..., 0].flatten()
    # 20,000 residuals; what is learned of T and D has an error of a few hundredths.
    assert response.std().item() == pytest.approx(1, abs=0.1)
    correlation = torch.corrcoef(torch.stack([covariate, response]))[0, 1]
    assert correlation.abs() < 0.1
    assert response.mean().abs() < 0.1
    # T has minus the slope below its diagonal.
    torch.testing.assert_close(seen.lower(theta)[:, 0], -theta[:, 1], rtol=0, atol=0.03)


def test_constant_and_collinear_columns_have_residuals():
    x = normal(300, 1, 1) + normal(300, 50, 1, seed=1)
    x = torch.cat([x, torch.full_like(x, 4.0), 2 * x, normal(300, 50, 1, seed=2)], 2)
    s = x.mean(1)[:, :1]
    rho = Residuals.of(x, s)(x, s)
    assert rho.isfinite().all()
    assert rho[..., [0, 3]].std((0, 1)).tolist() == pytest.approx([1, 1], abs=0.1)


def test_numbers_are_transformed_to_be_more_like_normal_ones():
    """Normal: as they are; Student's t: asinh; exponential: cube root; lognormal: logarithm."""
    torch.manual_seed(0)
    z, waiting = torch.randn(300, 100, 2), torch.distributions.Exponential(1.0).sample((300, 100))
    t = torch.distributions.StudentT(2.0).sample((300, 100))
    x = torch.stack([z[..., 0], t, waiting, (2 * z[..., 1]).exp()], 2)
    seen = Residuals.of(x, z.mean(1))
    assert seen.kind.tolist() == [0, 1, 2, 3]
    x[0, 0] = torch.tensor([1e9, -1e9, -1.0, 0.0])
    rho = seen(seen.straight(x), z.mean(1))
    assert rho.isfinite().all()
    # A logarithm has a mean of 0 and a standard deviation of 2: its residual is the normal number.
    torch.testing.assert_close(rho[1:, :, 3], (3 * torch.asinh(z[1:, :, 1] / 3)), rtol=0, atol=0.4)


# ------------------------------------------------------------------------------ sorting


@pytest.fixture(scope="module")
def sorter():
    """Of N(theta, 1), theta in -3..3, with the mean as summary."""
    x = uniform(800, 1, 1, low=-3, high=3) + normal(800, 100, 1, seed=1)
    s = x.mean(1)
    return Sorter.of(Residuals.of(x, s), x, s)


def test_about_a_thousandth_of_clean_observations_are_out(sorter):
    theta = uniform(300, 1, low=-2, high=2, seed=3)
    x = theta[:, None] + normal(300, 100, 1, seed=4)
    out = int((sorter(x, theta, clumps=False).weights == 0).sum())
    # 30 of 30,000 are expected; the tail is extrapolated from a twentieth, to a factor of 4.
    assert CUT == 1e-3
    assert 30 / 4 < out < 30 * 4
    assert sorter(x, theta).weights.mean() > 0.99


def test_a_gross_value_is_out_however_large(sorter):
    x = normal(4, 100, 1)
    x[:, 0] = torch.tensor([8.0, -20.0, 1e6, -1e30])[:, None]
    found = sorter(x, torch.zeros(4, 1).double())
    assert not found.weights[:, 0].any()
    assert (found.weights[:, 1:] > 0.5).double().mean() > 0.98
    assert found.rho.isfinite().all()


def test_copies_inside_the_support_lose_most_of_their_weight(sorter):
    x = normal(10, 100, 1, seed=5)
    x[:, :20] = 1.0
    weights = sorter(x, torch.zeros(10, 1).double()).weights
    # Within the narrow kernel of a copy about .25 h sqrt(2 pi) = 4 to 10 of 80 are expected.
    assert weights[:, :20].mean() < 0.5
    near = (x[:, 20:, 0] - 1).abs() < 0.3  # what lies next to the copies goes with them
    assert weights[:, 20:][~near].mean() > 0.95


def test_the_misfit_of_other_data_from_the_model_is_that_of_the_null(sorter):
    """Mean 0 and within the null for data from the model; far beyond for wider and odd ones."""
    theta = uniform(1_000, 1, low=-2, high=2, seed=8)
    rho = sorter.residuals(theta[:, None] + normal(1_000, 100, 1, seed=9), theta)
    misfit, null = Misfit.of(rho, theta)
    assert null.mean(0).abs().max() < 0.1  # LOO regressions of log distances have no bias
    zero = torch.zeros(200, 1).double()
    x = normal(200, 100, 1, seed=6)
    fresh = misfit(sorter.residuals(x, zero), torch.ones(200, 100), zero)
    for own, other in zip(null.T, fresh.T, strict=True):
        # Kolmogorov and Smirnov's 99.9% limit of 200 against 1,000.
        assert stats.ks_2samp(own, other).pvalue > 1e-3
    wide = misfit(sorter.residuals(1.5 * x, zero), torch.ones(200, 100), zero)
    assert (wide.median(0).values > null.quantile(0.99, dim=0)).all()


# ------------------------------------------------------------------------------ speaking


def test_systematic_resamples_keep_as_many_as_the_weights_sum_to():
    weights = uniform(20, 50, low=0, high=1).float()
    for offset in (0.06, 0.5, 0.94):
        kept = systematic(weights, offset).sum(1)
        assert ((kept - weights.sum(1)).abs() < 1).all()
    half = systematic(weights, 0.5).sum(1)
    assert torch.equal(half, weights.double().sum(1).add(0.5 + 1e-6).floor().long())
    assert systematic(torch.ones(3, 50), 0.5).all()
    assert not systematic(torch.zeros(3, 50), 0.5).any()
    # Over all offsets an observation is kept as often as its weight says.
    offsets = torch.linspace(0.0005, 0.9995, 1_000).tolist()
    often = torch.stack([systematic(weights, o) for o in offsets]).double().mean(0)
    torch.testing.assert_close(often, weights.double(), rtol=0, atol=2e-3)


def speaker_of(function, x):
    summarise = Summariser(function)
    summarise(x[:3])
    return Speaker.of(summarise, x)


def mean_and_spread(x):
    return torch.cat([x.mean(1), x.std(1).log()], 1)


def test_the_speaker_says_the_summary_of_what_is_left():
    x = normal(5, 30, 2)
    speak = speaker_of(mean_and_spread, x)
    assert not speak.refill
    mask = uniform(5, 30, seed=1) > 0
    mask[4] = False
    said = speak(x, torch.arange(5), mask)
    for row in range(4):
        torch.testing.assert_close(said[row], mean_and_spread(x[row : row + 1, mask[row]])[0])
    assert said[4].isnan().all()
    torch.testing.assert_close(speak.weighted(x[:4], mask[:4].float()), said[:4])


def test_the_jackknife_influence_of_a_mean_is_the_deviation():
    """(n - 1) (mean - mean without x) = (n - 1) (x - mean) / (n - 1) = x - mean, of those left."""
    x = normal(3, 30, 2)
    speak = speaker_of(lambda x: x.mean(1), x)
    weights = torch.ones(3, 30)
    weights[:, :5] = 0
    value = speak.influence(x, weights)
    assert not value[:, :5].any()
    left = x[:, 5:]
    torch.testing.assert_close(value[:, 5:], left - left.mean(1, keepdim=True))


def test_a_summary_that_needs_all_observations_is_given_as_many():
    def fixed(x):
        if x.shape[1] != 30:
            raise RuntimeError("30 observations, please")
        return x.mean(1)

    x = normal(5, 30, 2)
    speak = speaker_of(fixed, x)
    assert speak.refill
    mask = torch.arange(30).expand(5, -1) >= 15
    torch.testing.assert_close(speak(x, torch.arange(5), mask), x[:, 15:].mean(1))


# ------------------------------------------------------------------------------ calibration


@pytest.fixture(scope="module")
def gaussian():
    """t = s + noise, both Gaussian: s given t is N(a t, (1 - a) S), a = var s / (var s + .25)."""
    s = normal(1_000, 2)
    t = s + 0.5 * normal(1_000, 2, seed=1)
    return Calibration.of(t, s), s


def test_the_calibration_is_the_conditional_law(gaussian):
    (calibration, left_out, covariance), s = gaussian
    at = torch.tensor([[0.0, 0.0], [1.0, -1.0]]).double()
    centre, spread = calibration(at)
    # A thousand simulations: the mean to .45 sqrt(5 / 1,000), a variance from 60 neighbours.
    torch.testing.assert_close(centre, 0.8 * at, rtol=0, atol=0.12)
    expected = 0.2 * torch.eye(2).double().expand(2, 2, 2)
    torch.testing.assert_close(spread, expected, rtol=0, atol=3.5 * 0.2 * math.sqrt(2 / 60))
    torch.testing.assert_close(covariance.mean(0), expected[0], rtol=0, atol=0.03)
    assert (s - left_out).square().mean().item() == pytest.approx(0.2, abs=0.03)


def test_missing_observations_widen_by_their_share():
    """N0 = 100 trained, 80 of 100 kept: U = S + V / 4; with 400 observations S shrinks to S / 4."""
    S, V = torch.eye(2).double()[None], 4 * torch.eye(2).double()[None]
    torch.testing.assert_close(spread_of(S, V, torch.tensor([80.0]), 100, 100), S + V / 4)
    torch.testing.assert_close(spread_of(S, V, torch.tensor([400.0]), 400, 100), S / 4)
    torch.testing.assert_close(spread_of(S, V, torch.tensor([25.0]), 25, 100), 4 * S + 3 * V)


def test_the_length_of_a_move_is_chi_square_where_nothing_moved():
    num, dim = 2_000, 3
    root = normal(dim, dim, seed=1) * torch.tensor([1e-3, 1.0, 1e3]).double()
    U = (root.mT @ root).expand(num, -1, -1)
    V = torch.zeros_like(U)
    moved = normal(num, dim, seed=2) @ root
    H = moved_by(moved, torch.zeros_like(moved), U, V).expm1()
    # A thousandth is added to each correlation: not more than that is lost but near collinearity.
    assert COLLINEAR == 1e-3
    assert stats.kstest(H.numpy(), "chi2", (dim,)).statistic < 0.05
    harmless = moved_by(moved, torch.zeros_like(moved), V, U / HARMLESS).expm1()
    torch.testing.assert_close(harmless, H)


def test_outlyingness_along_a_line_of_even_steps():
    """In the middle 2.25 over 3; beyond the end 14.25 over 3, 3, 3, 4 and 5 of the last five."""
    outlyingness = SummaryOutlyingness.of(torch.arange(100.0)[:, None], torch.Generator())
    found = outlyingness(torch.tensor([[50.25], [109.25]])).exp()
    assert found.tolist() == pytest.approx([2.25 / 3, 14.25 / 3.6])


# ------------------------------------------------------------------------------ the whole way


def location_and_scale(num, num_obs=NUM_OBS, seed=0):
    """Centres in -3..3, standard deviations from 1/2 to 2."""
    centre = uniform(num, 1, 1, low=-3, high=3, seed=seed)
    scale = uniform(num, 1, 1, low=-math.log(2), high=math.log(2), seed=seed + 1).exp()
    return centre, scale, centre + scale * normal(num, num_obs, 1, seed=seed + 2)


@pytest.fixture(scope="module")
def fitted():
    return MinimumDistance(mean_and_spread, num_features=128).fit(location_and_scale(NUM)[2])


@pytest.fixture(scope="module")
def contaminated():
    """30 datasets with a fifth at 6 standard deviations, and the summaries of the clean data."""
    centre, scale, x = location_and_scale(30, seed=100)
    clean = mean_and_spread(x)
    x = x.clone()
    x[:, :20] = centre + scale * (6 + 0.3 * normal(30, 20, 1, seed=200))
    return clean, x


def test_contaminants_are_out_and_the_summary_is_that_of_the_rest(fitted, contaminated):
    clean, x = contaminated
    result = fitted.adapt(x)
    assert result.misspecified.all()
    assert result.status == (Status.SORTED,) * 30
    assert result.adapted.all()
    assert result.outliers[:, :20].all()
    assert result.outliers[:, 20:].double().mean() < 0.05
    assert (result.epsilon - 0.2).abs().max() < 0.1
    # Sampling sd of mean and log sd; without a fifth of the data 1/2 of one is lost in any case.
    scale = x[:, 20:].std(1)
    sampling = torch.cat([scale / 10, torch.full_like(scale, 1 / math.sqrt(200))], 1)
    error = ((result.s_star - clean) / sampling).square().mean(0).sqrt()
    assert error.max() < 0.8
    assert ((result.s_star - clean).abs() / sampling).mean() < 0.6
    assert ((result.s_obs - clean).abs() / sampling).mean() > 5


def test_the_excess_says_how_far_the_summary_may_be_off(fitted, contaminated):
    clean, x = contaminated
    result = fitted.adapt(x)
    off = (result.s_star - clean)[..., None]
    length = (off * torch.linalg.solve(result.excess, off)).sum((1, 2))
    # chi-square with 2 degrees of freedom has mean 2; of 30 the mean has standard error .37.
    assert 0.5 < length.mean() < 4


def test_clean_data_are_called_so_and_left_alone(fitted):
    x = location_and_scale(300, seed=300)[2]
    result = fitted.adapt(x)
    assert within_binomial(int(result.misspecified.sum()), 300, 0.05)
    still = ~result.adapted
    assert torch.equal(result.s_star[still], result.s_obs[still])
    assert not result.excess[~result.misspecified].any()
    assert result.weights[~result.misspecified].eq(1).all()
    assert not (result.adapted & ~result.misspecified).any()
    assert result.outliers.double().mean() < 0.01


def test_a_forced_adaptation_of_clean_data_moves_little(fitted):
    x = location_and_scale(50, seed=400)[2]
    result = fitted.adapt(x, force=True)
    sampling = torch.cat([x.std(1) / 10, torch.full((50, 1), 1 / math.sqrt(200))], 1)
    assert ((result.s_star - result.s_obs) / sampling).square().mean().sqrt() < 0.5


@pytest.fixture(scope="module")
def line():
    _, x = regression_data(600, NUM_OBS)
    return MinimumDistance(least_squares, num_features=128).fit(x)


@pytest.mark.slow
def test_other_covariates_leave_the_coefficients_where_they_are(line):
    """All covariates shifted by 1: the data are odd, and least squares does not mind."""
    theta, x = regression_data(30, NUM_OBS, seed=500)
    shift = torch.cat([torch.ones(30, 1).double(), theta[:, 1:]], 1)
    result = line.adapt(x + shift[:, None])
    assert result.misspecified.double().mean() > 0.9
    still = ~result.adapted
    assert still.double().mean() >= 0.9
    assert set(result[still].status) <= {Status.UNEXPLAINED, Status.UNMOVED, Status.WELL_SPECIFIED}
    assert torch.equal(result.s_star[still], result.s_obs[still])


@pytest.mark.slow
def test_outliers_of_a_line_are_found_by_their_residuals(line):
    """A tenth shifted by 10 noise standard deviations, well inside the range of the responses."""
    _, x = regression_data(30, NUM_OBS, seed=600)
    clean = least_squares(x)
    x[:, :10, 1] += 1.0
    result = line.adapt(x)
    assert result.misspecified.double().mean() > 0.9
    assert result.outliers[:, :10].double().mean() > 0.9
    error = (result.s_star - clean).square().mean(0).sqrt()
    assert (error < 0.1 * (result.s_obs - clean).square().mean(0).sqrt().max() + 0.005).all()


# ------------------------------------------------------------------------------ bad input


NAMES = ("s_star", "p_value", "weights", "epsilon", "excess", "influence", "outlier_score")


def test_a_saved_estimator_gives_equal_results(fitted, contaminated, tmp_path):
    fitted.save(tmp_path / "mds")
    again = MinimumDistance.load(tmp_path / "mds", mean_and_spread)
    before, after = fitted.adapt(contaminated[1]), again.adapt(contaminated[1])
    assert again.sorting
    assert before.status == after.status
    for name in NAMES:
        assert torch.equal(getattr(before, name), getattr(after, name)), name
    p = [mds.fitted_.p_values(contaminated[1]) for mds in (fitted, again)]
    assert tuple(p[0]) == STATISTICS
    assert all(torch.equal(p[0][name], p[1][name]) for name in p[0])


def test_a_dataset_does_not_depend_on_its_batch(fitted, contaminated):
    together = fitted.adapt(contaminated[1][:6])
    for row in range(6):
        alone = fitted.adapt(contaminated[1][row])
        torch.testing.assert_close(alone.s_star, together.s_star[row], rtol=0, atol=1e-6)
        torch.testing.assert_close(alone.weights, together.weights[row], rtol=0, atol=1e-3)
        assert alone.status is together.status[row]


def test_fewer_observations_than_simulated_work(fitted):
    centre, scale, x = location_and_scale(100, 30, seed=700)
    clean = fitted.adapt(x)
    assert int(clean.misspecified.sum()) <= stats.binom.ppf(0.999, 100, 0.05)
    x = x.clone()
    x[:, :6] = centre + 8 * scale
    result = fitted.adapt(x)
    assert result.misspecified.double().mean() > 0.8
    assert result[result.adapted].outliers[:, :6].double().mean() > 0.9


@pytest.mark.parametrize("num_obs", [2, 3, 5])
def test_a_handful_of_observations_gives_numbers(fitted, num_obs):
    x = location_and_scale(5, num_obs, seed=800)[2]
    x[0, 0] += 50
    for force in (False, True):
        result = fitted.adapt(x, force=force)
        for name in NAMES:
            assert getattr(result, name).isfinite().all(), name


@pytest.mark.parametrize("num_obs", [3, 5])
def test_simulations_of_a_handful_of_observations_work(num_obs):
    x = normal(600, 1, 1) * 3 + normal(600, num_obs, 1, seed=1)
    mds = MinimumDistance(lambda x: x.mean(1), num_features=32).fit(x)
    x_new = normal(200, 1, 1, seed=2) * 3 + normal(200, num_obs, 1, seed=3)
    result = mds.adapt(x_new)
    assert int(result.misspecified.sum()) <= stats.binom.ppf(0.9999, 200, 0.05)
    assert result.s_star.isfinite().all()
    x_new[:, 0] += 100
    assert mds.adapt(x_new).s_star.isfinite().all()


def rounded(x):
    return (x * 10).round() / 10


@pytest.mark.slow
def test_rounded_data_are_no_false_alarm(fitted):
    """To a tenth of a standard deviation, of observed data only, and of simulated ones too."""
    x = rounded(location_and_scale(200, seed=900)[2])
    limit = stats.binom.ppf(0.999, 200, 0.05)
    assert int(fitted.detect(x).misspecified.sum()) <= limit
    both = MinimumDistance(mean_and_spread, num_features=64)
    both.fit(rounded(location_and_scale(600)[2]))
    assert int(both.detect(x).misspecified.sum()) <= limit


@pytest.mark.parametrize("offset", [1e3, 1e8])
def test_data_that_are_all_far_off_give_numbers_and_a_message(fitted, offset):
    x = location_and_scale(5, seed=1_000)[2] + offset
    result = fitted.adapt(x)
    assert result.misspecified.all()
    for name in NAMES:
        assert getattr(result, name).isfinite().all(), name
    assert all("misspecified" in text or "adapted" in text for text in result.message)
    assert Status.WELL_SPECIFIED not in result.status


def test_a_summary_in_numpy_gives_the_same():
    def summary(x):
        assert isinstance(x, np.ndarray)
        return np.concatenate([x.mean(1), np.log(x.std(1, ddof=1))], 1)

    x = location_and_scale(400, 30)[2]
    found = [
        MinimumDistance(f, num_features=64).fit(data).adapt(data[:20] + 2)
        for f, data in ((summary, x.numpy()), (mean_and_spread, x))
    ]
    assert found[0].status == found[1].status
    torch.testing.assert_close(found[0].s_star, found[1].s_star, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_summary_that_raises_on_other_sizes_is_refilled(contaminated):
    def summary(x):
        if x.shape[1] != NUM_OBS:
            raise RuntimeError(f"expected {NUM_OBS} observations")
        return mean_and_spread(x)

    clean, x = contaminated
    mds = MinimumDistance(summary, num_features=64).fit(location_and_scale(500)[2])
    assert mds.fitted_.procedure.refill
    result = mds.adapt(x)
    assert result.misspecified.all()
    assert result.outliers[:, :20].double().mean() > 0.95
    assert (result.s_star - clean).abs().mean() < 0.2 * (result.s_obs - clean).abs().mean()
