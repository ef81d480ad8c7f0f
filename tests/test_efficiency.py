import math

import pytest
import torch

from exact_models import features, normal
from mindist import MinimumDistance
from mindist.adaptation import efficient_bandwidth
from mindist.adaptation.recovery import MULTIPLES, efficiency, recover, sampling_variance
from mindist.features import make_representation, median_distance
from mindist.summarise import Summariser

NUM_OBS = 50


def mean(x):
    return x.mean(1)


def locations(num, dim, seed=1):
    """Datasets `(num, 50, dim)` of unit variance about locations between -3 and 3."""
    generator = torch.Generator().manual_seed(seed)
    theta = 6 * torch.rand(num, 1, dim, generator=generator, dtype=torch.float64) - 3
    return theta + normal(num, NUM_OBS, dim, seed=seed + 1)


def closed_form(bandwidth, dim):
    return (1 - 1 / (bandwidth**2 + 2) ** 2) ** (dim / 2 + 1)


def chosen(share, x, seen=None, summary=mean):
    seen, summarise = x if seen is None else seen, Summariser(summary)
    generator = torch.Generator().manual_seed(0)
    return efficient_bandwidth(share, x, seen, summarise(x), summarise, generator)


# ---------------------------------------------------------------------------- the number


def test_the_closed_form_is_that_of_the_influence_function():
    """Var = E psi_1^2 / (E d_1 psi_1)^2 by 10^6 draws, for psi(u) = u exp(-u^2 / 2c)."""
    for dim, bandwidth in ((1, 0.5), (2, 1.0), (3, 2.0)):
        u, c = normal(10**6, dim), bandwidth**2 + 1
        damping = torch.exp(-u.square().sum(1) / (2 * c))
        psi, slope = u[:, 0] * damping, (1 - u[:, 0].square() / c) * damping
        variance = float(psi.square().mean() / slope.mean() ** 2)
        assert 1 / variance == pytest.approx(closed_form(bandwidth, dim), rel=0.01)


@pytest.mark.parametrize(("dim", "bandwidth"), [(1, 0.7), (1, 1.5), (2, 1.0), (2, 1.5), (2, 2.5)])
def test_the_efficiency_of_a_location_is_the_closed_form(dim, bandwidth):
    x = locations(4_000, dim)
    z_bar = features((dim,), 256, bandwidth).mean(x)
    found = recover(z_bar, x.mean(1), torch.Generator().manual_seed(0))
    variance = sampling_variance(Summariser(mean), x[found.index])
    measured = efficiency(found.s, found.s_star, variance)
    known = closed_form(bandwidth, dim)
    # The excess 1/eff - 1 is a mean of 1,000 squares in each coordinate; d eff = eff^2 d excess. A
    # decoder that is fitted, and one that stays near simulations, may change it by another 5%.
    error = 3.5 * math.sqrt(2 / (1_000 * dim)) + 0.05
    assert measured == pytest.approx(known, abs=known * (1 - known) * error)


def test_the_variance_of_a_mean_is_the_variance_over_n():
    x = locations(400, 2)
    variance = sampling_variance(Summariser(mean), x).mean(0)
    # 400 bootstraps with 19 degrees of freedom, of datasets with 49.
    error = 4 * math.sqrt((2 / 19 + 2 / 49) / 400) / NUM_OBS
    torch.testing.assert_close(variance, torch.full_like(variance, 1 / NUM_OBS), rtol=0, atol=error)


def test_the_efficiency_of_known_differences():
    """Variances 1 and 4, excesses 1/4 and 2 of them: sqrt(.8 / 3)."""
    s, noise = normal(100_000, 2, seed=3), torch.tensor([1.0, 4.0]).double().expand(100_000, 2)
    s_star = s + normal(100_000, 2, seed=4) * torch.tensor([0.5, math.sqrt(8)])
    known = math.sqrt(0.8 / 3)
    assert efficiency(s, s_star, noise) == pytest.approx(known, rel=0.01)
    assert efficiency(s, s, noise) == 1
    assert efficiency(1e6 * s, 1e6 * s_star, 1e12 * noise) == pytest.approx(known, rel=0.01)
    gross = s_star.clone()
    gross[:100] += 1e6
    assert efficiency(s, gross, noise) == pytest.approx(known, rel=0.01)


def test_datasets_with_noise_of_very_different_sizes_do_not_hide_each_other():
    size = torch.exp(0.7 * normal(100_000, 1, seed=5))
    s = normal(100_000, 1)
    s_star = s + size * normal(100_000, 1, seed=6) / 2
    assert efficiency(s, s_star, size.square()) == pytest.approx(0.8, rel=0.02)


def test_summaries_without_sampling_noise_are_left_out():
    s = torch.cat([normal(1_000, 1), torch.full((1_000, 1), 2.5), normal(1_000, 1, seed=2)], 1)
    s_star = s + torch.tensor([1 / 3, 0.0, 9.0])
    noise = torch.tensor([1.0, 0.0, 0.0]).double().repeat(1_000, 1)
    noise[7, 0] = math.nan  # a resampled dataset without a summary
    assert efficiency(s, s_star, noise) == pytest.approx(1 / (1 + 1 / 9 / 0.873), abs=1e-3)
    with pytest.raises(ValueError, match="bandwidth: expected a summary with sampling noise"):
        efficiency(s, s_star, torch.zeros_like(noise))


# ---------------------------------------------------------------------------- the bandwidth


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2])
def test_the_bandwidth_is_the_narrowest_of_the_grid_that_keeps_the_share(dim):
    x = locations(1_000, dim)
    median = median_distance(x, torch.Generator().manual_seed(0))
    found = []
    for share in (0.8, 0.9, 0.95):
        step = next(i for i, m in enumerate(MULTIPLES) if closed_form(m * median, dim) >= share)
        got = chosen(share, x) / median
        near = [i for i, m in enumerate(MULTIPLES) if m == pytest.approx(got)]
        assert abs(near[0] - step) <= 1  # 250 held-out datasets may miss by a step
        found.append(got)
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_the_choice_has_no_units_and_leaves_the_global_seed_alone():
    x = locations(600, 1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    given = chosen(0.9, x)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert chosen(0.9, x) == given
    assert chosen(0.9, 1_000 * x) == pytest.approx(1_000 * given)


def test_where_nothing_keeps_the_share_it_is_the_median_with_a_warning():
    """The kernel sees the first coordinate, the summary is the mean of the second."""
    x = locations(600, 2)
    message = r"bandwidth: expected a bandwidth that keeps 0.9 .* got at most 0.* Ask for less"
    with pytest.warns(UserWarning, match=message):
        given = chosen(0.9, x, x[..., :1], lambda x: x[..., 1:].mean(1))
    assert given == median_distance(x[..., :1], torch.Generator().manual_seed(0))


def test_datasets_of_numbers_and_observations_that_coincide():
    x = locations(600, 1)
    numbers = chosen(0.9, x[..., 0], summary=lambda x: x.mean(1, keepdim=True))
    assert numbers == pytest.approx(chosen(0.9, x))
    with pytest.raises(ValueError, match="the median distance between simulated observations is 0"):
        chosen(0.9, x, torch.zeros_like(x))


def test_images_are_judged_through_their_representation():
    """Noise of unknown size: its log power is known to the spectrum as to the mean square."""
    x = torch.exp(normal(400, 1, 1, 1, seed=1)) * normal(400, 20, 8, 8)
    seen = make_representation("power-spectrum", x)(x)
    width = chosen(0.4, x, seen, lambda x: x.square().mean((1, 2, 3)).log()[:, None])
    assert width < 2 * median_distance(seen, torch.Generator().manual_seed(0))


def test_a_bounded_number_of_datasets_is_embedded(monkeypatch):
    sizes = []

    def spy(z_bar, s, generator):
        sizes.append(len(z_bar))
        return recover(z_bar, s, generator)

    monkeypatch.setattr("mindist.adaptation.recovery.recover", spy)
    x = locations(1_200, 1)
    for most, size in ((2**26, 1_000), (300 * x[:1].nbytes, 300), (1, 200)):
        monkeypatch.setattr("mindist.adaptation.recovery.SAMPLE_BYTES", most)
        chosen(0.5, x)
        assert sizes.pop() == size


# ---------------------------------------------------------------------------- the estimator


@pytest.mark.slow
def test_an_estimator_takes_the_rule_and_is_stored_with_it(tmp_path):
    x = locations(1_000, 2).float()
    median = MinimumDistance(mean, num_features=64).fit(x)
    mds = MinimumDistance(mean, bandwidth="90% efficient", num_features=64).fit(x)
    ratio = mds.fitted_.features.bandwidth / median.fitted_.features.bandwidth
    assert min(abs(ratio - m) for m in MULTIPLES) < 1e-3
    assert closed_form(mds.fitted_.features.bandwidth, 2) == pytest.approx(0.9, abs=0.05)
    mds.save(tmp_path / "mds")
    again = MinimumDistance.load(tmp_path / "mds", mean)
    assert again.bandwidth == "90% efficient"
    assert again.fitted_.features.bandwidth == mds.fitted_.features.bandwidth
    x_obs = torch.cat([x[0, :40], x[0, :10] + 5])
    assert torch.equal(again.adapt(x_obs).s_star, mds.adapt(x_obs).s_star)


def test_the_paper_preset_takes_the_rule():
    x = locations(400, 1).float()
    mds = MinimumDistance.paper(mean, bandwidth="80% efficient")
    mds.decoder.max_epochs = 2
    mds.fit(x)
    assert closed_form(mds.fitted_.features.bandwidth, 1) == pytest.approx(0.8, abs=0.1)
