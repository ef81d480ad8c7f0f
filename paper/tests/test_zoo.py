"""The zoo: every model keeps one contract, contaminations are where they say, a run is resumed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mindist_paper.zoo.cases import away, contaminate
from mindist_paper.zoo.evaluate import Settings, ratios, score
from mindist_paper.zoo.judges import JUDGES
from mindist_paper.zoo.models import MODELS
from mindist_paper.zoo.published import BENCHMARKS
from mindist_paper.zoo.run import KNOWN, run_zoo, verdict

EVERY = KNOWN | {b.model.name: b.model for b in BENCHMARKS.values()}
MARKS = {"learned": pytest.mark.slow}  # trains a network
TINY = Settings(simulations=400, datasets=5, size_datasets=50)


def made(model, num=20, seed=0):
    rng = np.random.default_rng(seed)
    theta = model.sample_prior(num, rng)
    return theta, model.simulate(theta, model.num_obs, rng)


@pytest.mark.parametrize("name", [pytest.param(m, marks=MARKS.get(m, ())) for m in EVERY])
def test_every_model_keeps_the_contract(name):
    model = EVERY[name]
    theta, x = made(model)
    assert len(EVERY) == len(MODELS) + len(JUDGES) + len(BENCHMARKS)  # no name is in two
    assert x.shape[:2] == (20, model.num_obs)
    assert x.dtype == np.float32
    for part in (x, x[:, :4], np.repeat(x[:, :1], 10, 1)):  # subsets, and copies of one
        s = model.summary(torch.from_numpy(part))
        assert s.dim() == 2
        assert torch.isfinite(s).all()
    assert np.array_equal(x, made(model)[1])
    assert not np.array_equal(x, made(model, seed=1)[1])
    assert name not in KNOWN or sum(case.epsilon < 1 for case in model.cases) >= 4
    assert len({(case.name, case.epsilon) for case in model.cases}) == len(model.cases)
    for case in model.cases:
        bad = contaminate(model, case, x, theta, np.random.default_rng(1))
        assert torch.isfinite(model.summary(torch.from_numpy(bad))).all(), case.name
        assert np.array_equal(model.possible(bad), bad)
        changed = (bad != x).reshape(20, model.num_obs, -1).any(2).sum(1)
        assert changed.max() <= max(1, round(case.epsilon * model.num_obs)), case.name
        assert changed.max() > 0


def test_contaminations_lie_where_they_say():
    model, rng = MODELS["location"], np.random.default_rng(0)
    theta, x = made(model, 200)
    cases = {(case.name, case.epsilon): case for case in model.cases}

    def offsets(name, epsilon):
        bad = contaminate(model, cases[name, epsilon], x, theta, rng)
        chosen = (bad != x)[..., 0]
        assert (chosen.sum(1) == round(100 * epsilon)).all()
        return (bad - theta[:, None])[..., 0][chosen]

    far = offsets("cluster at 6 sd", 0.1)
    # The place has the error of a median of 400, .06, and of a half width, .3 at 6 sd.
    assert far.mean() == pytest.approx(6, abs=0.1)
    assert far.std() == pytest.approx(np.hypot(0.2, 0.3), abs=0.1)
    sides = offsets("symmetric at 4 sd", 0.2)
    assert (sides > 0).mean() == pytest.approx(0.5, abs=0.05)
    assert np.abs(sides).mean() == pytest.approx(4, abs=0.1)
    many = offsets("gross, 10 to 50 sd", 0.3)
    assert (many.mean(), many.min() > 7) == (pytest.approx(30, rel=0.03), True)
    wide = MODELS["mean-50"]
    theta, x = made(wide)
    lengths = np.linalg.norm(away(6, width=0)(wide, x, theta, rng) - theta[:, None], axis=2)
    assert lengths.mean() == pytest.approx(6, abs=0.2)


def test_leverage_points_are_off_the_line_by_noise_sd():
    model, rng = MODELS["line-scale"], np.random.default_rng(0)
    theta, x = made(model)
    (case,) = (case for case in model.cases if case.name.startswith("leverage"))
    bad = contaminate(model, replace(case, epsilon=1.0), x, theta, rng)
    assert bad[..., 0].mean() == pytest.approx(5, abs=0.05)
    residual = bad[..., 1] - theta[:, :1] - theta[:, 1:2] * bad[..., 0]
    assert (residual / np.exp(theta[:, 2:])).mean() == pytest.approx(20, abs=0.1)


def test_scores_and_ratios_are_those_computed_by_hand():
    def net(s):
        return s, torch.ones_like(s)

    points, theta = torch.tensor([[[0.0], [2.0]], [[9.0], [9.0]]]), torch.tensor([[3.0], [9.0]])
    error, covered = score(net, points, theta)
    assert error.tolist() == [4.0, 0.0]
    assert covered.tolist() == [1.0, 1.0]  # F(3) = (Phi(3) + Phi(1)) / 2 = .92
    found = ratios(np.full(9, 4.0), np.full(9, 9.0), np.full(9, 1.0))
    assert (found["plain"], found["mindist"], found["against_plain"]) == (2.0, 3.0, 1.5)
    assert found["against_plain_se"] == 0.0


def test_a_run_is_resumed_and_judged(tmp_path):
    lines = run_zoo(tmp_path, TINY, ["location"], tell=lambda line: None)
    record = json.loads((tmp_path / "location.json").read_text())
    assert [cell["case"] for cell in record["cells"][:2]] == ["clean", "gross, 10 to 50 sd"]
    assert record["cells"][0]["plain"] == 1.0
    assert all(line.startswith(("- holds: ", "- MISSED: ")) for line in lines)
    record["cells"][0]["mindist"] = 1.5
    (tmp_path / "location.json").write_text(json.dumps(record))
    lines = run_zoo(tmp_path, TINY, ["location"], tell=lambda line: None)
    assert lines[0] == "- MISSED: clean at most 1.02 (1 of 1 outside; location, clean, 0: 1.5)"
    assert lines == verdict([record])
    assert lines[0] in (tmp_path / "table.md").read_text()
    with pytest.raises(ValueError, match=r"models: expected some of line, .*, got lines"):
        run_zoo(tmp_path, TINY, ["lines"])
