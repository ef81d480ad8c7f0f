"""The self-test: known errors of known contaminations, and what it says of them."""

from __future__ import annotations

import json
import math

import pytest
import torch

from exact_models import NUM_OBS, locations, mean
from mindist import MinimumDistance, SelfTest


@pytest.fixture(scope="module")
def fitted() -> MinimumDistance:
    return MinimumDistance(mean).fit(locations(2_000))


@pytest.fixture(scope="module")
def found(fitted) -> SelfTest:
    return fitted.selftest()


def test_the_errors_of_doing_nothing_are_those_of_a_shifted_mean(found):
    """A share e shifted by k standard deviations moves the mean by e k: e k sqrt(N) sampling sd."""
    for kind, size in {"shifts by 4 sd": 4, "shifts by 10 sd": 10}.items():
        row = found.summaries.observed[found.kinds.index(kind), :, 0].tolist()
        for share, ratio in zip(found.shares, row, strict=True):
            moved = size * max(1, round(share * NUM_OBS)) / math.sqrt(NUM_OBS)
            # The noise of a summary is known to 5%, that of each dataset varies by 10%.
            assert ratio == pytest.approx(math.sqrt(1 + moved**2), rel=0.12)


def test_what_can_be_told_apart_is_mended(found):
    """What is left are (1 - e) N observations: at 40% an error of 1.29."""
    for kind in ("gross values", "shifts by 10 sd"):
        adapted = found.summaries.adapted[found.kinds.index(kind), :, 0].tolist()
        for share, ratio in zip(found.shares, adapted, strict=True):
            assert ratio <= 1.15 / math.sqrt(1 - share)
        assert found.breakdown[kind] == 0.4
        assert found.detected[found.kinds.index(kind)].tolist() == [1.0] * 4
    assert "Mends up to 40% of shifts by 10 sd" in found.verdict


def test_coverage_is_that_of_the_shift(found):
    """Doing nothing about copies at 5%: the interval holds s + e with the shift known."""
    coverage = found.summaries.coverage[found.kinds.index("gross values"), :, 0]
    # 64 datasets, each with a probability near .9: the standard error is far below .03.
    assert coverage.tolist() == pytest.approx([0.9] * 4, abs=0.06)


def test_clean_data_keep_their_level_and_cost_nothing(found):
    # 400 held-out datasets: the 99.9% interval of a share of .05 is .02 to .09.
    assert 0.02 < found.level.mean() < 0.09
    assert found.clean <= 1.02
    assert found.level.shape == (10, 1)
    assert found.visible[0] > 0.95


def test_it_is_text_json_and_a_picture(found, tmp_path):
    text = str(found)
    assert "40% gross values" in text
    stored = json.loads(json.dumps(found.to_dict()))
    again = SelfTest.from_dict(stored)
    assert again.verdict == found.verdict
    assert again.table() == found.table()
    assert "<li>Mends" in found._repr_html_()
    assert found.plot(tmp_path / "selftest.png").stat().st_size > 10_000
    assert [row["share"] for row in found.rows()][:4] == list(found.shares)


@pytest.mark.slow
def test_it_is_repeatable(fitted, found):
    assert fitted.selftest().to_dict() == found.to_dict()
    assert fitted.selftest_ is not None


@pytest.mark.slow
def test_an_estimator_from_a_file_asks_for_simulations(fitted, found, tmp_path):
    fitted.save(tmp_path / "mds")
    loaded = MinimumDistance.load(tmp_path / "mds", mean)
    with pytest.raises(ValueError, match=r"x: expected simulated datasets .* pass x="):
        loaded.selftest()
    fresh = loaded.selftest(x=locations(60, seed=9))
    assert fresh.num == 60
    assert any("Only 60 simulations" in note for note in fresh.notes)
    assert fresh.breakdown["gross values"] == 0.4


def test_the_paper_s_preset_says_that_it_sorts_nothing():
    mds = MinimumDistance(mean, sorting=False, num_features=32).fit(locations(500))
    with pytest.raises(ValueError, match="sorts observations"):
        mds.selftest()


@pytest.mark.slow
def test_a_summary_that_fails_on_contaminated_data_is_counted(fitted):
    def fragile(x: torch.Tensor) -> torch.Tensor:
        if x.abs().max() > 60:
            raise RuntimeError("too large")
        return x.mean(1)

    mds = MinimumDistance(fragile, num_features=64).fit(locations(600))
    found = mds.selftest()
    assert found.failed[found.kinds.index("gross values")].min() == 64
    assert any("failed on" in note for note in found.notes)


@pytest.mark.slow
def test_a_posterior_s_parameters_are_tested_too(fitted):
    """With the conjugate posterior, errors of theta are those of the mean, nearly."""

    def draw(s, num):
        precision = NUM_OBS + 1 / 9
        return NUM_OBS * s / precision + torch.randn(num, 1) / math.sqrt(precision)

    from mindist import RobustPosterior

    torch.manual_seed(0)
    found = fitted.selftest(RobustPosterior(draw, fitted))
    assert found.parameters is not None
    for name in ("observed", "adapted"):
        theta, s = getattr(found.parameters, name), getattr(found.summaries, name)
        torch.testing.assert_close(theta, s, rtol=0.15, atol=0.1)


def blind_data(num: int, seed: int = 0) -> torch.Tensor:
    """Images of 100 numbers: eight large components, and one small number whose scale matters."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(8, 100, generator=torch.Generator().manual_seed(1))
    x = torch.randn(num, 30, 8, generator=generator) @ basis
    scale = torch.rand(num, 1, generator=generator).exp()
    x[..., 57] = 0.01 * scale * torch.randn(num, 30, generator=generator)
    return x + 0.05 * torch.randn(x.shape, generator=generator) * (torch.arange(100) != 57)


def test_fit_says_which_summary_sorting_cannot_see():
    def log_scale(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[..., 57].std(1).log(), x[..., 0].mean(1)], 1)

    with pytest.warns(UserWarning, match="cannot see what moves summary 1: .* representation"):
        MinimumDistance(log_scale, num_features=64).fit(blind_data(500))
