"""What `mindist reproduce` shows: known rows give known numbers, lines, colours and a safe page."""

import base64
import math
import re
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from mindist.report import plot_images
from mindist_paper.baselines import METHODS
from mindist_paper.report import (
    Images,
    Page,
    Panel,
    Posteriors,
    Section,
    Trajectories,
    describe_figure,
    draw_figure,
    experiment_tables,
    find_losses,
    loss_sentences,
    loss_tables,
    metric_table,
    panel_losses,
    panel_tables,
    plot_coverage,
    plot_curves,
    plot_posterior_samples,
    plot_rejections,
    plot_trajectories,
    render_page,
    save_png_and_svg,
    tables_in_markdown,
    write_page,
)
from mindist_paper.report.horizontal import Horizontal
from mindist_paper.report.statistics import by_level, paired_difference, select, summarise, wilson
from mindist_paper.report.style import METHOD_STYLES, method_style
from mindist_paper.report.table import mean_and_error
from page_reader import read

pd = pytest.importorskip("pandas")

EPSILONS = (0.0, 0.1, 0.2)
BASE = {"npe": 0.1, "npe-or": 0.15, "mds": 0.12, "oracle": 0.1}
SLOPE = {"npe": 1.0, "npe-or": 0.0, "mds": 0.5, "oracle": 0.0}
SPREAD = np.array([-0.02, 0.0, 0.02])  # three datasets: standard deviation .02
ERROR = 0.02 / math.sqrt(3)
ANCHORS = {"rmse": {"npe": {0.0: 0.097, 0.1: 0.173}, "mds": {0.2: 0.147}}}


def make_rows(seeds=(0,)):
    """The RMSE of a method is base + slope epsilon + spread of the dataset + .01 seed."""
    return pd.DataFrame(
        {
            "method": method,
            "method_options": "{}",
            "epsilon": epsilon,
            "delta": 3.0,
            "num_obs": 100,
            "seed": seed,
            "dataset": dataset,
            "rmse": BASE[method] + SLOPE[method] * epsilon + spread + 0.01 * seed,
            "coverage_50": 0.5,
            "coverage_80": 0.8,
            "coverage_90": float(dataset > 0),
            "coverage_95": 1.0,
            "detected": (dataset <= 10 * epsilon) if method == "mds" else None,
        }
        for method in BASE
        for epsilon in EPSILONS
        for seed in seeds
        for dataset, spread in enumerate(SPREAD)
    )


@pytest.fixture
def rows():
    return make_rows()


@pytest.fixture
def axes():
    return Figure().subplots()


def lines(axes) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Label, horizontal and vertical coordinates of every line with error bars."""
    for container in axes.containers:
        yield container.get_label(), *container[0].get_data()


# ------------------------------------------------------------------------------ statistics


def test_mean_and_standard_error_are_those_computed_by_hand(rows):
    points = summarise(rows, "rmse", "epsilon")
    assert list(points) == ["npe", "npe-or", "mds", "oracle"]  # the one order of methods
    assert [p.at for p in points["mds"]] == list(EPSILONS)
    assert [p.mean for p in points["mds"]] == pytest.approx([0.12, 0.17, 0.22])
    assert [p.error for p in points["mds"]] == pytest.approx([ERROR] * 3)
    assert points["mds"][0].count == 3


def test_seeds_are_averaged_for_each_dataset_first():
    point = summarise(make_rows(seeds=(0, 1)), "rmse", "epsilon")["npe"][0]
    assert point.mean == pytest.approx(0.105)
    # Without averaging first, six values would give sqrt(.02^2 * 4/5 + .005^2 * 6/5) / sqrt(6).
    assert point.error == pytest.approx(ERROR)
    assert point.count == 3


def test_values_that_are_missing_are_left_out_and_counted(rows):
    rows.loc[(rows.method == "npe") & (rows.dataset == 2), "rmse"] = math.inf
    point = summarise(rows, "rmse", "epsilon")["npe"][0]
    assert (point.mean, point.count, point.missing) == (pytest.approx(0.09), 2, 1)
    notes = " ".join(metric_table(rows, "rmse").notes)
    assert "left out: NPE, 1 at 0, 1 at 0.1, 1 at 0.2" in notes
    assert "over 2 to 3 test datasets" in notes


def test_one_dataset_has_a_mean_and_no_standard_error(rows, axes):
    one = rows[rows.dataset == 1]
    assert math.isnan(summarise(one, "rmse", "epsilon")["npe"][0].error)
    assert metric_table(one, "rmse").body[0][1].text == "0.1"
    plot_curves(axes, one, "rmse")
    assert find_losses(one, "rmse").sentences == ()


def test_rows_that_would_be_averaged_silently_are_an_error(rows):
    other = rows.assign(method_options='{"bandwidth": 0.5}')
    with pytest.raises(ValueError, match=r"got 2 that differ in \['method_options'\]"):
        summarise(pd.concat([rows, other], ignore_index=True), "rmse", "epsilon")


def test_a_missing_column_is_an_error(rows):
    with pytest.raises(ValueError, match=r"expected the columns \['bias'\]"):
        summarise(rows, "bias", "epsilon")


def test_select_takes_values_lists_rounded_numbers_json_and_none(rows):
    assert len(select(rows, {"method": "npe"})) == 9
    assert set(select(rows, {"method": ["npe", "mds"]}).method) == {"npe", "mds"}
    assert len(select(rows, {"epsilon": 0.1 + 1e-16, "dataset": 0})) == 4
    assert len(select(rows, {"method_options": {}})) == 36
    assert set(select(rows, {"detected": None}).method) == {"npe", "npe-or", "oracle"}


def test_rates_have_the_score_interval_of_wilson(rows):
    detected = summarise(rows, "detected", "epsilon")
    assert list(detected) == ["mds"]
    assert [p.mean for p in detected["mds"]] == pytest.approx([1 / 3, 2 / 3, 1.0])
    # Solutions r of (p - r)^2 = r (1 - r) / n, the definition of the interval.
    for p in detected["mds"]:
        for end in (p.low, p.high):
            assert (p.mean - end) ** 2 == pytest.approx(end * (1 - end) / 3)
    assert wilson(0.5, 0) == pytest.approx((math.nan, math.nan), nan_ok=True)


def test_paired_difference_knows_that_datasets_are_shared(rows):
    difference, error = paired_difference(rows, "rmse", "epsilon", 0.2, "mds", "npe-or")
    assert difference == pytest.approx(0.07)
    assert error == pytest.approx(0.0, abs=1e-12)


# ------------------------------------------------------------------------------ style


def test_every_method_has_a_colour_a_marker_and_a_label_of_its_own():
    assert set(METHODS) | {"oracle", "exact"} <= set(METHOD_STYLES)
    for name in ("colour", "marker", "label"):
        values = [getattr(style, name) for style in METHOD_STYLES.values()]
        assert len(set(values)) == len(values)
    assert [METHOD_STYLES[m].label for m in ("mds", "mds-rf", "npe-pfn-mds")] == [
        "MDS (default)",
        "MDS (RF)",
        "NPE-PFN + MDS",
    ]


# ------------------------------------------------------------------------------ axes


def test_curves_have_the_means_labels_and_colours(rows, axes):
    plot_curves(axes, rows, "rmse", anchors=ANCHORS["rmse"])
    drawn = {label: (x, y) for label, x, y in lines(axes)}
    assert list(drawn) == ["NPE", "NPE-OR", "MDS (default)", "oracle summary"]
    assert drawn["MDS (default)"][1] == pytest.approx([0.12, 0.17, 0.22])
    for container, method in zip(axes.containers, BASE, strict=True):
        style = method_style(method)
        assert to_hex(container[0].get_color()).upper() == style.colour.upper()
        assert container[0].get_marker() == style.marker
    bars = axes.containers[0][2][0].get_segments()[0]
    assert bars[:, 1] == pytest.approx([0.1 - ERROR, 0.1 + ERROR])
    assert axes.get_ylabel() == "RMSE of the posterior mean"
    assert axes.get_xlabel() == "contaminated fraction ε"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.1", "0.2"]


def test_points_of_different_methods_stand_side_by_side_near_their_setting(rows, axes):
    plot_curves(axes, rows, "rmse")
    places = np.array([x for _, x, _ in lines(axes)])
    assert len(np.unique(places)) == places.size
    assert np.abs(places - EPSILONS).max() < 0.03
    assert places.mean(0) == pytest.approx(EPSILONS)


def test_published_values_are_hollow_in_the_colour_of_their_method(rows, axes):
    plot_curves(axes, rows, "rmse", anchors=ANCHORS["rmse"])
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in hollow] == [[0.097, 0.173], [0.147]]
    colours = [line.get_markeredgecolor() for line in hollow]
    assert colours == [method_style("npe").colour, method_style("mds").colour]


def test_axes_of_sizes_are_logarithmic_and_words_stand_side_by_side():
    sizes = Horizontal.of("num_obs", [100, 5, 10])
    assert sizes.log
    assert [sizes.at(n) for n in (5, 10, 100)] == pytest.approx([5, 10, 100])
    words = Horizontal.of("start", ["observed", "nearest"])
    assert not words.log
    assert words.places == {"observed": 0.0, "nearest": 1.0}
    assert words.find("elsewhere") is None
    assert sizes.ordered
    assert not words.ordered, "no line between words"


def test_vertical_axis_is_logarithmic_where_asked(rows, axes):
    plot_curves(axes, rows, "rmse", log=True)
    assert axes.get_yscale() == "log"


def test_a_line_for_each_value_of_another_column(rows, axes):
    own = select(rows, {"method": "mds"}).assign(place=1.0)
    plot_curves(axes, own, "rmse", "place", series="epsilon")
    assert [label for label, *_ in lines(axes)] == ["ε = 0", "ε = 0.1", "ε = 0.2"]


def test_axes_without_results_say_so(rows, axes):
    plot_curves(axes, rows.assign(rmse=math.nan), "rmse")
    assert [text.get_text() for text in axes.texts] == ["no results"]


def test_coverage_by_level_with_the_diagonal(rows, axes):
    plot_coverage(axes, select(rows, {"epsilon": 0.2}))
    for _, x, y in lines(axes):
        assert x == pytest.approx([0.5, 0.8, 0.9, 0.95], abs=0.02)
        assert y == pytest.approx([0.5, 0.8, 2 / 3, 1.0])
    assert sum(getattr(line, "get_slope", lambda: None)() == 1 for line in axes.lines) == 1
    assert len(by_level(rows)) == 4 * len(rows)


def test_rejection_rates_have_a_line_at_the_level(rows, axes):
    plot_rejections(axes, rows, alpha=0.1)
    assert [label for label, *_ in lines(axes)] == ["MDS (default)"]
    assert [0.1, 0.1] in [list(line.get_ydata()) for line in axes.lines]
    assert axes.texts[0].get_text() == "α = 0.1"


def test_by_its_level_a_test_is_compared_with_the_diagonal(rows, axes):
    clean = select(rows, {"epsilon": 0.0, "method": "mds"})
    size = pd.concat([clean.assign(alpha=alpha) for alpha in (0.05, 0.5)])
    plot_rejections(axes, size, "alpha")
    assert axes.get_xlabel() == "level of the test α"
    assert not len(axes.texts)
    assert any(getattr(line, "get_slope", lambda: None)() == 1 for line in axes.lines)


def test_a_log_axis_ends_where_values_are_as_good_as_zero(rows, axes):
    tiny = rows.assign(rmse=rows.rmse.where(rows.method != "mds", 1e-150))
    plot_curves(axes, tiny, "rmse", log=True)
    low, high = axes.get_ylim()
    assert low == pytest.approx(0.3e-9)
    assert 0.3 < high < 30


def test_posteriors_in_one_and_two_dimensions():
    rng = np.random.default_rng(0)
    top, bottom = Figure().subplots(2)
    plot_posterior_samples(top, {"mds": rng.normal(size=(50, 1))}, [0.3])
    assert [line.get_xdata()[0] for line in top.lines] == [0.3]
    two = {"mds": rng.normal(size=(50, 2)), "npe": np.ones((50, 2))}  # the second has no density
    plot_posterior_samples(bottom, two, [5.0, -5.0])
    assert bottom.get_legend_handles_labels()[1] == ["NPE", "MDS (default)", "true parameter"]
    low, high = bottom.get_xlim()
    assert low < 5.0 < high, "the true parameter is inside"


def test_posteriors_come_from_what_the_store_kept():
    frame = pd.DataFrame({"dataset": [0, 1], "theta": [np.zeros(2), np.ones(2)]})
    frame["samples"] = [np.zeros((5, 2)), np.ones((5, 2))]
    kept = Posteriors.of_frames({"npe": frame, "mds": frame})
    assert len(kept) == 2
    assert np.array_equal(kept.samples["mds"][1], np.ones((5, 2)))
    assert len(Posteriors.of_frames({})) == 0


def test_images_stand_in_rows_and_trajectories_in_colours(axes):
    plot_images(axes, {"clean": np.zeros((3, 8, 8)), "noise": np.ones((2, 8, 8))})
    assert len(axes.images) == 5
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["clean", "noise"]
    other = Figure().subplots()
    plot_trajectories(other, {"clean": np.zeros((3, 4)), "contaminated": np.ones((1, 4))}, 0.5)
    assert len(other.lines) == 4
    assert list(other.lines[0].get_xdata()) == [0.0, 0.5, 1.0, 1.5]


# ------------------------------------------------------------------------------ figures

PANELS = [
    Panel("rmse", title="Error"),
    Panel("detected", title="Detection"),
    Panel("coverage"),
    Panel("posterior"),
    Panel("images"),
    Panel("trajectories"),
]


def material(panel):
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(4, 2))
    return {
        "posterior": Posteriors({m: rng.normal(size=(4, 30, 2)) for m in ("npe", "mds")}, theta),
        "images": Images({"clean": rng.normal(size=(3, 8, 8))}),
        "trajectories": Trajectories({"clean": rng.normal(size=(3, 9))}),
    }[panel.metric]


def test_a_figure_has_all_panels_and_one_legend(rows):
    figure = draw_figure(PANELS, rows, title="Known", anchors=ANCHORS, material=material)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:5] == ["Error", "Detection", "ε = 0", "ε = 0.1", "ε = 0.2"]
    assert titles[5:9] == [f"dataset {i}" for i in (1, 2, 3, 4)]
    assert len(titles) == 11
    (legend,) = figure.legends
    entries = [entry.get_text() for entry in legend.get_texts()]
    assert entries[:4] == ["NPE", "NPE-OR", "MDS (default)", "oracle summary"]
    assert entries[-1] == "published value"
    assert len(set(entries)) == len(entries)


def test_nothing_in_a_figure_overlaps(rows):
    figure = draw_figure(PANELS, rows, anchors=ANCHORS, material=material)
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
    for i, first in enumerate(boxes):
        assert first.x0 >= 0
        assert first.y0 >= 0
        for second in boxes[:i]:
            width = min(first.x1, second.x1) - max(first.x0, second.x0)
            height = min(first.y1, second.y1) - max(first.y0, second.y0)
            assert min(width, height) < 1, "two boxes share more than a pixel"


def test_a_legend_with_many_long_labels_stays_inside_the_figure(rows):
    names = [f"the default without idea number {i}" for i in range(13)]
    many = pd.concat([rows[rows.method == "npe"].assign(method=name) for name in names])
    figure = draw_figure([Panel("rmse"), Panel("rmse")], many)
    (legend,) = figure.legends
    box = legend.get_window_extent(figure.canvas.get_renderer())
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == 13


def test_a_setting_that_few_lines_have_keeps_its_tick():
    axes = Figure().subplots()
    horizontal = Horizontal.of("decoder", ["ridge", "mlp", "flow"])
    axes.plot([horizontal.at("ridge"), horizontal.at("mlp")], [1, 2])
    horizontal.set_ticks(axes)
    low, high = axes.get_xlim()
    assert low <= horizontal.at("ridge") < horizontal.at("flow") <= high


def test_a_method_has_the_same_colour_in_every_panel(rows):
    panels = [Panel("rmse"), Panel("rmse", where={"method": ["mds", "oracle"]})]
    left, right = draw_figure(panels, rows).axes
    colours = [{c.get_label(): c[0].get_color() for c in axes.containers} for axes in (left, right)]
    assert len(colours[1]) == 2
    assert colours[1].items() <= colours[0].items()


def test_panels_without_material_are_left_out(rows):
    assert len(draw_figure([Panel("rmse"), Panel("posterior")], rows).axes) == 1


def test_published_values_stay_on_their_own_axis(rows):
    (axes,) = draw_figure([Panel("rmse", by="delta", where={"epsilon": 0.1})], rows).axes
    assert not any(line.get_markerfacecolor() == "none" for line in axes.lines)


def test_files_are_the_same_bytes_every_time(rows, tmp_path):
    first, second = (
        save_png_and_svg(
            draw_figure(PANELS, rows, anchors=ANCHORS, material=material), tmp_path / name / "a.b"
        )
        for name in ("one", "two")
    )
    assert [path.name for path in first] == ["a.b.png", "a.b.svg"]
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()
    svg = first[1].read_text(encoding="utf-8")
    assert "<dc:date>" not in svg
    assert not re.search(r'href="(?!#|data:)', svg), "the figure loads nothing"


def test_the_alternative_text_says_what_is_drawn(rows):
    text = describe_figure(PANELS[:1], rows)
    assert text == (
        "RMSE of the posterior mean against contaminated fraction ε for NPE, NPE-OR, "
        "MDS (default), oracle summary. At ε = 0.2 the lowest is oracle summary with 0.1, the "
        "highest NPE with 0.3."
    )


# ------------------------------------------------------------------------------ tables


def test_the_table_has_the_known_values(rows):
    (table,) = panel_tables(Panel("rmse"), rows, ANCHORS)
    assert list(table.header) == [
        "contaminated fraction ε",
        "NPE",
        "NPE-OR",
        "MDS (default)",
        "oracle summary",
    ]
    text = table.markdown()
    # The standard error is .02 / sqrt(3) = .0115.
    assert "| 0 | 0.100 ± 0.012 (0.097) | 0.150 ± 0.012 | **0.120 ± 0.012** |" in text
    assert "| 0.2 | 0.300 ± 0.012 | **0.150 ± 0.012** | 0.220 ± 0.012 (0.147) |" in text
    assert "over 3 test datasets" in text


def test_only_a_robust_method_is_best_and_only_where_smaller_is_better(rows):
    body = metric_table(rows, "rmse").body
    assert [[cell.best for cell in row].index(True) for row in body] == [3, 2, 2]
    assert not any(cell.best for row in metric_table(rows, "coverage_90").body for cell in row)


def test_coverage_has_a_table_for_each_epsilon(rows):
    tables = panel_tables(Panel("coverage"), rows)
    assert [t.caption for t in tables] == [f"Empirical coverage, ε = {e:g}" for e in EPSILONS]
    assert [row[0].text for row in tables[0].body] == ["0.5", "0.8", "0.9", "0.95"]


def test_digits_follow_the_standard_error():
    assert mean_and_error(0.00456, 0.00012) == "0.00456 ± 0.00012"
    assert mean_and_error(math.nan, 1.0) == "–"
    assert mean_and_error(1e-9, 1e-10) == "1e-09 ± 1.0e-10"


def test_losses_name_the_method_the_metric_the_setting_and_the_difference(rows):
    rng = np.random.default_rng(0)
    noisy = rows.assign(rmse=rows.rmse + 1e-3 * rng.normal(size=len(rows)))
    (sentence,) = find_losses(noisy, "rmse").sentences
    assert sentence.startswith(
        "MDS (default) loses in RMSE of the posterior mean to NPE at ε = 0 ("
    )
    assert "to NPE-OR at ε = 0.1, 0.2 (most at 0.2: +0.0" in sentence
    assert "oracle" not in sentence, "a reference is no baseline"
    table = find_losses(noisy, "rmse").table
    assert [row[0].text for row in table.body] == [
        "MDS (default) to NPE",
        "MDS (default) to NPE-OR",
    ]
    difference, error = paired_difference(noisy, "rmse", "epsilon", 0.2, "mds", "npe-or")
    assert table.body[1][3].text == f"+{mean_and_error(difference, error)}"
    assert f"+{mean_and_error(difference, error)})" in sentence


def test_a_method_that_loses_nowhere_is_said_to(rows):
    won = rows.assign(rmse=rows.rmse.where(rows.method != "mds", 0.01))
    (sentence,) = loss_sentences(panel_losses([Panel("rmse"), Panel("coverage")], won))
    assert sentence.startswith("MDS (default) loses to no baseline in RMSE")
    assert "6 paired comparisons" in sentence
    assert find_losses(won, "rmse").table is None


def test_a_difference_within_its_error_is_no_loss(rows):
    rng = np.random.default_rng(3)
    alike = rows[rows.method.isin(["mds", "npe-or"])]
    alike = alike.assign(rmse=0.1 + 0.01 * rng.normal(size=len(alike)))
    difference, error = paired_difference(alike, "rmse", "epsilon", 0.0, "mds", "npe-or")
    assert difference < 2 * error
    assert find_losses(alike[alike.epsilon == 0], "rmse").table is None


def test_the_markdown_of_an_experiment_has_losses_and_all_tables(rows):
    panels = [Panel("rmse"), Panel("detected")]
    lost = panel_losses(panels, rows)
    tables = [*experiment_tables(panels, rows, ANCHORS), *loss_tables(lost)]
    text = tables_in_markdown(tables, loss_sentences(lost))
    assert text.index("Where MDS loses") < text.index("RMSE of the posterior mean**")
    assert "Rejection rate" in text
    assert text.count("|---|") == 3


# ------------------------------------------------------------------------------ page


@pytest.fixture
def page(rows, tmp_path):
    panels = [Panel("rmse"), Panel("detected")]
    _, svg = save_png_and_svg(draw_figure(panels, rows, anchors=ANCHORS), tmp_path / "figure")
    hostile = '<script>alert("1")</script> & "quotes"'
    section = Section(
        name="gaussian",
        title="Gaussian by ε",
        shows=hostile,
        source=hostile,
        command="mindist reproduce gaussian --profile smoke",
        figure=svg,
        alt=describe_figure(panels, rows) + hostile,
        tables=experiment_tables(panels, rows, ANCHORS),
        verdict=hostile,
        losses=loss_sentences(panel_losses(panels, rows)),
        configuration={"task": hostile},
        seconds=75,
    )
    other = Section(name='"odd" name', title=hostile)
    return Page([section, other], versions={"mindist": "0.1", hostile: hostile}, seconds=4000)


def test_the_page_parses_and_has_everything(page):
    reader = read(render_page(page))
    text = " ".join(reader.text)
    for part in (
        "Gaussian by ε",
        "mindist reproduce gaussian --profile smoke",
        "1 min 15 s",
        "1 h 6 min",
        "0.120 ± 0.012",
        "MDS (default) loses",
        "Configuration",
        "Versions",
    ):
        assert part in text
    tags = [tag for tag, _ in reader.seen]
    assert {"nav", "main", "details", "summary", "figure", "caption"} <= set(tags)
    assert [a["lang"] for tag, a in reader.seen if tag == "html"] == ["en"]
    assert all(a.get("alt") for tag, a in reader.seen if tag == "img")


def test_the_page_escapes_what_it_is_given(page):
    reader = read(render_page(page))
    assert "script" not in {tag for tag, _ in reader.seen}
    assert '<script>alert("1")</script>' in " ".join(reader.text)
    allowed = {"a", "body", "br", "caption", "code", "dd", "details", "div", "dl", "dt", "figure"}
    allowed |= {"footer", "h1", "h2", "h3", "head", "header", "html", "img", "li", "link", "main"}
    allowed |= {"meta", "nav", "ol", "p", "pre", "section", "small", "strong", "style", "summary"}
    allowed |= {"table", "tbody", "td", "th", "thead", "title", "tr", "ul"}
    assert {tag for tag, _ in reader.seen} <= allowed


def test_the_page_loads_nothing_and_its_links_lead_somewhere(page):
    text = render_page(page)
    reader = read(text)
    assert not re.search(r"url\(|@import", text)
    ids = [a["id"] for _, a in reader.seen if "id" in a]
    assert len(set(ids)) == len(ids)
    for tag, attributes in reader.seen:
        for name in ("src", "href", "srcset", "action", "data"):
            address = attributes.get(name)
            if address is not None:
                assert address.startswith(("#", "data:"))
                assert tag != "a" or address[1:] in ids
    (image,) = (a["src"] for tag, a in reader.seen if tag == "img")
    svg = base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")).decode()
    assert svg.rstrip().endswith("</svg>")
    assert not re.search(r'href="(?!#|data:)', svg)


def test_writing_the_page_leaves_nothing_else_behind(page, tmp_path):
    path = write_page(page, tmp_path / "new" / "index.html")
    write_page(page, path)
    assert path.read_text(encoding="utf-8") == render_page(page)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_renders_in_a_browser(page, chromium, tmp_path, width):
    path = write_page(page, tmp_path / "page" / "index.html")
    chromium.open(path, width=width)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.complaints == []
    assert chromium.requests == [path.as_uri()]
    # The figure is there: the vermilion of NPE, which no other element of the page has.
    vermilion = np.array([0xD5, 0x5E, 0x00])
    pixels = chromium.pixels(tmp_path / "shot.png")
    assert (np.abs(pixels - vermilion).max(-1) < 12).sum() > 50


def test_report_does_not_need_pandas() -> None:
    script = "import sys, mindist.report; print('pandas' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
