"""The report on an observed dataset: what it says, and that nothing gets into it unescaped."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import mindist
from mindist.report import (
    new_figure,
    new_grid,
    plot_data_space,
    plot_posteriors,
    plot_summary_pairs,
    write_report,
)
from mindist.report.page import duration, number, plus_minus, share
from mindist.report.style import plain
from mindist.report.write import STATISTICS, hold_all, predictive_p_value
from mindist.result import Status
from mindist.simulation.calls import predict_data
from page_reader import read

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{ \x00\n--> & ünï 漢'


@pytest.fixture(scope="module")
def x_obs(task):
    """A fifth of the observations are 4 units away."""
    x = task.simulate(torch.zeros(1, 2), generator=torch.Generator().manual_seed(5))[0]
    return torch.where(torch.arange(100)[:, None] < 20, x + 4, x)


@pytest.fixture(scope="module")
def posterior(task, mds_small):
    """A small neural posterior given the sample mean."""
    pytest.importorskip("sbi")
    from mindist.posteriors.sbi_bridge import train_npe

    noise = torch.randn(2, 500, 2, generator=torch.Generator().manual_seed(2))
    theta, s = noise[0], noise[0] + 0.1 * noise[1]
    with torch.random.fork_rng(devices=[]):
        npe = train_npe(
            task.prior,
            theta,
            s,
            density_estimator="mdn",
            learning_rate=1e-2,
            max_num_epochs=8,
            seed=1,
        )
    return mindist.RobustPosterior(npe, mds_small)


@pytest.fixture(scope="module")
def simulator(task):
    return lambda theta, generator: task.simulate(theta, generator=generator)


@pytest.fixture(scope="module")
def page(tmp_path_factory, mds_small, x_obs, posterior, simulator):
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    result = mds_small.adapt(x_obs)
    assert result.report(path, x=x_obs, posterior=posterior, simulator=simulator) == path
    return path.read_text(encoding="utf-8")


def test_the_page_says_what_was_found(page, mds_small, x_obs):
    text = " ".join(" ".join(read(page).text).split())
    result = mds_small.adapt(x_obs)
    assert "These data do not look like data from the simulator." in text
    assert f"The p-value is {float(result.p_value):.3g}" in text
    assert f"{int(result.outliers.sum())} of 100 observations are suspicious" in text
    assert f"{float(result.epsilon):.0%} ±" in text
    for part in ("Summaries", "Distance", "Observations", "Posterior", "predicts", "Settings"):
        assert part in text
    assert f"mindist {mindist.__version__}" in text


def test_the_page_says_what_makes_an_observation_suspicious(page):
    text = " ".join(" ".join(read(page).text).split())
    assert "how much of it the model does not account for. A suspicious one is above 1/2." in text


def test_observations_are_counted_in_whole_numbers():
    _, (axes,) = new_figure(1)
    plot_data_space(axes, torch.tensor([0.0] * 18 + [1.0]))  # else there are ticks at 2.5 and so on
    assert all(tick == int(tick) for tick in axes.get_yticks())


def test_the_page_is_well_formed_and_can_be_heard(page):
    reader = read(page)
    tags = [tag for tag, _ in reader.seen]
    assert tags.count("h1") == 1
    assert all(a.get("aria-label") for tag, a in reader.seen if tag == "svg")
    assert tags.count("table") == tags.count("caption")
    assert [a["aria-sort"] for _, a in reader.seen if "aria-sort" in a] == ["descending"]
    ids = [a["id"] for _, a in reader.seen if "id" in a]
    assert len(set(ids)) == len(ids)
    links = {a["href"][1:] for tag, a in reader.seen if tag in ("a", "use") and "href" in a}
    assert links <= set(ids)


def test_the_page_loads_nothing(page):
    assert "http" not in page.replace("http-equiv", "")
    assert not re.search(r"@import|url\((?!#)", page)
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    (policy,) = (a["content"] for tag, a in read(page).seen if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def test_the_table_is_ranked_by_score_and_marks_the_outliers(page, mds_small, x_obs):
    result = mds_small.adapt(x_obs)
    rows = re.findall(r'<tr( class="strange")?><th scope="row" data-v="(\d+)">', page)
    order = result.outlier_score.argsort(descending=True, stable=True).tolist()
    assert [int(index) for _, index in rows] == order
    assert [bool(strange) for strange, _ in rows] == result.outliers[order].tolist()


def test_what_people_give_is_escaped(tmp_path, mds_small, x_obs, posterior, simulator):
    path = write_report(
        tmp_path / "report.html",
        result=mds_small.adapt(x_obs),
        x=x_obs.numpy(),
        posterior=posterior,
        simulator=simulator,
        theta_names=[HOSTILE, "b"],
        summary_names=[HOSTILE, HOSTILE],
        title=HOSTILE,
        num_samples=50,
    )
    reader = read(path.read_text(encoding="utf-8"))
    assert [tag for tag, _ in reader.seen].count("script") == 1
    assert "img" not in [tag for tag, _ in reader.seen]
    assert not any(name.startswith("on") for _, a in reader.seen for name in a)
    assert "<script>alert(1)</script>" in " ".join(reader.text)


def test_without_a_posterior_the_page_says_how_to_get_the_rest(tmp_path, mds_small, x_obs):
    clean = torch.randn(100, 2, generator=torch.Generator().manual_seed(1))
    result = mds_small.adapt(clean)
    path = write_report(tmp_path / "report.html", result=result, x=clean, mds=mds_small)
    text = " ".join(read(path.read_text(encoding="utf-8")).text)
    assert "Nothing in these data speaks against the simulator." in text
    assert "All are 0, because data that pass the test are not sorted." in text
    assert "It is no proof that the model is right" in text
    assert "posterior=posterior, simulator=simulator" in text


@pytest.mark.parametrize("event", [(), (1,), (3,), (12, 2), (9, 10), (1, 9, 10)])
def test_data_of_every_shape_have_a_page(tmp_path, event):
    x = torch.randn(400, 12, *event, generator=torch.Generator().manual_seed(0))
    powers = torch.arange(1.0, 1 + max(1, len(event)))  # one to three summaries
    mds = mindist.MinimumDistance(
        lambda x: x.flatten(1).mean(1, keepdim=True) ** powers,
        num_features=16,
        representation="raw",
    ).fit(x)
    x_obs = x[0].clone()
    x_obs[:3] = 30.0
    path = write_report(tmp_path / "r.html", result=mds.adapt(x_obs), x=x_obs, mds=mds)
    page = path.read_text(encoding="utf-8")
    assert len(page) < 2**20
    assert "&lt;" not in page  # figures are not escaped
    assert [tag for tag, _ in read(page).seen].count("svg") == 4


def test_results_and_data_that_do_not_belong_together_are_an_error(mds_small, x_obs, tmp_path):
    result = mds_small.adapt(x_obs)
    for given, error in (
        ({"result": result, "x": x_obs + 1, "mds": mds_small}, "adaptation of this dataset"),
        ({"result": result, "x": x_obs[:50], "mds": mds_small}, "adaptation of this dataset"),
        (
            {"result": mds_small.adapt(x_obs[None].repeat(2, 1, 1)), "x": x_obs, "mds": mds_small},
            "results of 2",
        ),
    ):
        with pytest.raises(ValueError, match=error):
            write_report(tmp_path / "r.html", **given)
    for given, error in (
        ({"result": result, "x": x_obs}, "mds: expected the fitted"),
        ({"result": mds_small.detect(x_obs), "x": x_obs, "mds": mds_small}, "an Adaptation"),
        ({"result": result, "x": x_obs, "posterior": "p"}, "only a RobustPosterior"),
    ):
        with pytest.raises(TypeError, match=error):
            write_report(tmp_path / "r.html", **given)
    with pytest.raises(ValueError, match="summary_names: expected 2 names"):
        write_report(
            tmp_path / "r.html", result=result, x=x_obs, mds=mds_small, summary_names=["one"]
        )
    assert not (tmp_path / "r.html").exists()


def test_the_summary_that_was_kept_although_wrong_is_not_recommended(tmp_path, mds_small, x_obs):
    found = mds_small.adapt(x_obs)
    kept = replace(
        found,
        status=Status.KEPT_OBSERVED,
        s_star=found.s_obs,
        adapted=torch.zeros_like(found.adapted),
    )
    path = write_report(tmp_path / "report.html", result=kept, x=x_obs, mds=mds_small)
    assert "Do not trust the posterior" in " ".join(path.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("status", [Status.UNMOVED, Status.UNEXPLAINED])
def test_the_page_says_why_a_summary_was_kept(tmp_path, mds_small, x_obs, status):
    found = mds_small.adapt(x_obs)
    still = {"s_star": found.s_obs, "adapted": torch.zeros_like(found.adapted)}
    kept = replace(found, status=status, **still)
    path = write_report(tmp_path / "report.html", result=kept, x=x_obs, mds=mds_small)
    text = " ".join(read(path.read_text(encoding="utf-8")).text)
    assert f"M{status.message[1:]}." in " ".join(text.split())


def test_the_page_of_the_papers_preset_says_that_nothing_is_sorted(tmp_path, task, x_train, x_obs):
    mds = mindist.MinimumDistance(task.summary, sorting=False, num_features=64)
    mds.fit(x_train[:1_000])
    path = write_report(tmp_path / "report.html", result=mds.adapt(x_obs), x=x_obs, mds=mds)
    text = " ".join(" ".join(read(path.read_text(encoding="utf-8")).text).split())
    assert "All are 0, because this estimator does not sort observations." in text
    assert "None of the 100 observations is suspicious." in text


def test_the_parts_of_the_test_are_those_that_it_combines(task, mds_small, x_train, x_obs):
    alone = mds_small.fitted_.p_values(x_obs[None])
    assert list(alone) == list(mds_small.fitted_.procedure.test.names) == list(STATISTICS)[1:]
    # The smallest of several p-values, calibrated, is at least the smallest.
    assert min(p[0] for p in alone.values()) <= mds_small.detect(x_obs).p_value
    plain = mindist.MinimumDistance(task.summary, sorting=False, num_features=64)
    (distance,) = plain.fit(x_train[:1_000]).fitted_.p_values(x_obs[None]).values()
    assert distance[0] == plain.detect(x_obs).p_value


def test_numbers_and_names_as_people_read_them():
    said = [number(value) for value in (0.000199, 12.0, -1234.5, 0.05)]
    assert said == ["0.000199", "12", "−1.23e+03", "0.05"]
    assert (plus_minus(-1.234, 0.5), plus_minus(-0.003, 1.0)) == ("−1.23 ± 0.50", "0.0 ± 1.0")
    assert plus_minus(1 / 3, np.nan) == "0.333"
    assert [share(p) for p in (0.37, 0.0002)] == ["about 37 of 100", "about 2 of 10,000"]
    assert [duration(t) for t in (4.2, 200, 5000)] == ["4.2 s", "3 min 20 s", "1 h 23 min"]
    assert [plain(n) for n in ("in $", "two\nlines", "a" * 40)] == [
        "in \\$",
        "two lines",
        "a" * 27 + "…",
    ]


# ----------------------------------------------------------------------- replicated data


@pytest.mark.parametrize(
    "simulator",
    [
        lambda theta: theta[:, None] + torch.zeros(len(theta), 7, 2),
        lambda theta: theta + np.zeros((7, 2)),
        lambda theta, rng: theta + 0 * rng.normal(size=(7, 2)),
    ],
    ids=["batch", "one", "numpy"],
)
def test_a_simulator_is_called_as_it_wants(simulator):
    theta = torch.arange(10.0).reshape(5, 2)
    x, error = predict_data(simulator, theta, (7, 2), seed=0)
    assert error == ""
    assert torch.equal(x.float(), theta[:, None].expand(5, 7, 2))


def test_draws_that_fail_are_left_out():
    def simulator(theta):
        if theta.dim() != 1:
            raise ValueError("one at a time")
        if theta[0] > 2:
            raise ValueError("too fast")
        return torch.full((7, 2), float(theta[0]))

    x, error = predict_data(simulator, torch.arange(5.0)[:, None], (7, 2), seed=0)
    assert x[:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert error == "ValueError: too fast"


def test_replicated_data_agree_with_data_of_the_same_kind():
    generator = torch.Generator().manual_seed(0)
    # 400 embeddings; the p-value of one more of the same kind is uniform up to 1/401.
    z = torch.randn(400, 64, generator=generator)
    same = [predictive_p_value(z, torch.randn(64, generator=generator)) for _ in range(200)]
    # Distances to one observation go together: the p-value is that of its length, U-shaped at most.
    assert 0.3 < np.mean(same) < 0.7
    assert predictive_p_value(z, torch.full((64,), 2.0)) == pytest.approx(1 / 401)


def test_simulated_datasets_are_drawn_on_the_same_axes():
    for shape, kind, low, high in [
        ((), "values", -1.1, 1.1),
        ((2,), "points", -1.1, 1.1),
        ((25, 2), "series", -1.1, 1.1),
    ]:
        _, (axes,) = new_figure(1)
        x = torch.zeros(5, *shape)
        plot_data_space(axes, x)
        every = torch.cat([x, x - 1, x + 1])
        if kind == "series":
            every[..., 1] = 1e6  # not drawn
        hold_all(axes, kind, every)
        ends = axes.get_ylim() if kind == "series" else axes.get_xlim()
        assert ends == pytest.approx((low, high))


# ------------------------------------------------------------------------------- plots


def test_plots_say_what_is_wrong_with_their_arguments():
    _, (axes,) = new_figure(1)
    with pytest.raises(ValueError, match=r"outliers: expected shape \(5,\)"):
        plot_data_space(axes, torch.zeros(5, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=r"kind: expected one of 'values'"):
        plot_data_space(axes, torch.zeros(5, 2), kind="surface")
    _, grid = new_grid(2, 2, (2, 2))
    with pytest.raises(ValueError, match=r"grid: expected axes of shape \(3, 3\)"):
        plot_summary_pairs(grid, torch.randn(10, 3), torch.zeros(3))


def test_the_images_with_the_highest_scores_are_drawn():
    _, (axes,) = new_figure(1)
    score = torch.arange(40.0) / 40
    plot_data_space(axes, torch.rand(40, 9, 9), score > 0.5, score=score)
    drawn = [text.get_text() for text in axes.texts]
    assert drawn[:12] == [str(i) for i in range(39, 27, -1)]
    assert drawn[12:] == [str(i) for i in range(20, 14, -1)]


def test_of_many_observations_an_evenly_spread_part_is_drawn():
    _, (axes,) = new_figure(1)
    plot_data_space(axes, torch.rand(3_000, 2), mark="obs-")
    ids = [line.get_gid() for line in axes.lines]
    assert len(ids) == 400
    assert (ids[0], ids[-1]) == ("obs-0", "obs-2999")


def test_a_true_parameter_is_drawn_only_where_it_is_known():
    own = ["at the observed summary"]
    for theta, labels in ((None, own), ([0.0], [*own, "true parameter"])):
        _, (axes,) = new_figure(1)
        plot_posteriors(axes, torch.randn(50, 1), theta=theta)
        assert sorted(axes.get_legend_handles_labels()[1]) == labels
