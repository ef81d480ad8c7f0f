"""Rules chosen by the self-test's loss: where they matter, and where the default stays."""

from __future__ import annotations

import math

import pytest
import torch

from exact_models import NUM_OBS, locations, mean
from mindist import MinimumDistance, selftest, storage
from mindist.adaptation.sorting import CUT, Rules
from mindist.features.residuals import Residuals

STRICT, WIDE, NEVER = "a cut of 1% instead of 0.1%", "a kernel twice as wide", "no projecting"


def chosen_among(*names: str) -> MinimumDistance:
    """Fit with a choice among some of the alternatives, on a smaller panel."""
    kinds = ("shifts by 4 sd", "5 times the spread", "entries that drop out")
    with pytest.MonkeyPatch.context() as patch:
        some = {name: selftest.ALTERNATIVES[name] for name in names}
        patch.setattr(selftest, "ALTERNATIVES", some)
        patch.setattr(selftest, "CONTAMINANTS", {k: selftest.CONTAMINANTS[k] for k in kinds})
        patch.setattr(selftest, "SHARES", (0.1, 0.2))
        mds = MinimumDistance(mean, num_features=64)
        return mds.fit(locations(1_000), choose=True)


@pytest.fixture(scope="module")
def strict() -> MinimumDistance:
    return chosen_among(NEVER, STRICT)


@pytest.fixture(scope="module")
def default() -> MinimumDistance:
    return MinimumDistance(mean, num_features=64).fit(locations(1_000))


def shifted(num: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return clean means, and data of which a share is shifted by 4 standard deviations."""
    x = locations(num, seed=9)
    wrong = torch.arange(NUM_OBS)[:, None] < share * NUM_OBS
    return mean(x), torch.where(wrong, x + 4, x)


def expected(share: float, cut: float) -> float:
    """Return the bias over the sampling sd where shifted observations within the cut are kept."""
    normal = torch.distributions.Normal(0.0, 1.0)
    q = float(normal.icdf(torch.tensor(1 - cut / 2)))
    grid = torch.linspace(-q, q, 10_001)
    density = normal.log_prob(grid - 4).exp()
    kept = float(torch.trapezoid(density, grid))
    moved = float(torch.trapezoid(grid * density, grid))
    return share * moved / (1 - share + share * kept) * math.sqrt(NUM_OBS)


def test_a_stricter_cut_is_chosen_where_shifts_hide_in_the_tail(strict):
    """N(theta, 1): a cut of .1% keeps 24% of what is shifted by 4 sd, one of 1% keeps 8%."""
    found = strict.rules_
    assert found.chosen == found.picked == STRICT
    assert found.names == (selftest.DEFAULT, NEVER, STRICT)
    assert found.lower > 2 * found.error > 0
    assert math.log(found.judged[0] / found.judged[1]) == pytest.approx(found.lower)
    assert strict.fitted_.procedure.sorter.rules == Rules(cut=0.01)
    # Nothing is projected here: not projecting is the same, and not picked.
    assert found.losses[1] == found.losses[0] > found.losses[2]
    assert max(found.clean) <= 1.02


def test_fresh_data_gain_what_the_cut_should_give(strict, default):
    """The bias left at 20% is 1.1 sampling errors with the default's cut, .3 with the chosen."""
    clean, wrong = shifted(300, 0.2)
    bias = [
        float((mds.adapt(wrong).s_star - clean).mean()) * math.sqrt(NUM_OBS)
        for mds in (default, strict)
    ]
    # 300 datasets: the standard error of a mean bias is 1 / sqrt(300) = .06 at least.
    assert bias[0] == pytest.approx(expected(0.2, CUT), abs=0.25)
    assert bias[1] == pytest.approx(expected(0.2, 0.01), abs=0.25)


def test_the_choice_is_told_and_kept(strict, tmp_path):
    assert f"rules: {STRICT}" in repr(strict)
    said = strict.choice_["rules"]
    assert said.startswith(f"{STRICT}; of 2 alternatives the best, {STRICT}, has a loss of ")
    strict.save(tmp_path / "mds")
    loaded = MinimumDistance.load(tmp_path / "mds", mean)
    assert loaded.rules_ == strict.rules_
    assert loaded.choice_ == strict.choice_
    _, wrong = shifted(4, 0.2)
    torch.testing.assert_close(loaded.adapt(wrong).s_star, strict.adapt(wrong).s_star)


def test_the_default_stays_where_no_alternative_is_better(default):
    """In one dimension a wider kernel sees less."""
    mds = chosen_among(WIDE, NEVER)
    assert mds.rules_.chosen == selftest.DEFAULT
    assert mds.rules_.picked == WIDE
    assert mds.rules_.lower <= 2 * mds.rules_.error
    assert mds.fitted_.procedure.sorter.rules == Rules()
    assert mds.choice_["rules"].startswith(f"the default; of 2 alternatives the best, {WIDE}, ")
    assert default.rules_ is None
    assert "rules" not in default.choice_
    _, wrong = shifted(4, 0.2)
    assert torch.equal(default.adapt(wrong).s_star, mds.adapt(wrong).s_star)


@pytest.mark.slow
def test_it_repeats(strict):
    assert chosen_among(NEVER, STRICT).rules_ == strict.rules_


def test_the_loss_is_the_geometric_mean_of_the_worst_quarter():
    squared = torch.zeros(8, 3, dtype=torch.float64)
    squared[2], squared[5] = 3.0, torch.tensor([8.0, 16.0, torch.nan])  # errors 2 and sqrt(13)
    assert float(selftest._loss(squared)) == pytest.approx(math.sqrt(2 * math.sqrt(13)))
    weights = torch.ones(8, 3)
    weights[5, 1] = 0
    assert float(selftest._loss(squared, weights)) == pytest.approx(math.sqrt(2 * 3))


def test_raw_observations_look_the_same_at_every_summary():
    x = locations(200)
    raw = Residuals.of(x, mean(x), raw=True)
    at = [raw(raw.straight(x[:1]), torch.tensor([[s]])) for s in (-2.0, 2.0)]
    torch.testing.assert_close(*at)
    seen = Residuals.of(x, mean(x))
    low, high = (seen(x[:1].double(), torch.tensor([[s]])) for s in (-2.0, 2.0))
    assert bool((low > high + 1).all())


def test_what_sorts_nothing_has_nothing_to_choose():
    mds = MinimumDistance(mean, sorting=False, num_features=32)
    with pytest.raises(ValueError, match="choose: expected an estimator that sorts observations"):
        mds.fit(locations(500), choose=True)
    with pytest.raises(TypeError, match="choose"):
        mds.fit(locations(500), choose="all")


def test_the_standard_error_is_that_of_a_mean():
    """One cell, one rule without error: the log of a root mean square, by the delta method."""
    generator = torch.Generator().manual_seed(0)
    squared = 3 * torch.rand(1, 64, generator=generator, dtype=torch.float64)
    losses, lower, error = selftest._judge([squared, torch.zeros(1, 64)], 1_000, 101)
    mean = 1 + float(squared.mean())
    assert losses == pytest.approx((math.sqrt(mean), 1.0))
    assert lower == pytest.approx(math.log(mean) / 2)
    # 1,000 resamples know a standard deviation to 2.2%.
    known = float(squared.std()) / math.sqrt(64) / mean / 2
    assert error == pytest.approx(known, rel=0.1)


def test_a_damaged_choice_is_refused(strict, tmp_path):
    strict.save(tmp_path / "mds")
    config, tensors = storage.read_artefact(tmp_path / "mds", "MinimumDistance")
    for name, value in {"lower": "much", "judged": [], "chosen": 3}.items():
        damaged = config | {"choice": config["choice"] | {name: value}}
        storage.write_artefact(tmp_path / "mds", "MinimumDistance", damaged, tensors)
        with pytest.raises(ValueError, match=rf"mindist.json is damaged: 'choice.{name}' is "):
            MinimumDistance.load(tmp_path / "mds", mean)
