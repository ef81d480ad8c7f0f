"""What `mindist reproduce` shows: known rows give known numbers, lines, colours and a safe page."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from mindist_paper.baselines import METHODS
from mindist_paper.report import curves, figures, statistics, table
from mindist_paper.report.statistics import paired_difference, summarise, wilson
from mindist_paper.report.style import METHOD_STYLES, method_style
from page_reader import read

EPSILONS = (0.0, 0.1, 0.2)
BASE = {"npe": 0.1, "npe-or": 0.15, "mds": 0.12, "oracle": 0.1}
SLOPE = {"npe": 1.0, "npe-or": 0.0, "mds": 0.5, "oracle": 0.0}
SPREAD = np.array([-0.02, 0.0, 0.02])  # three datasets: standard deviation .02
ERROR = 0.02 / math.sqrt(3)
ANCHORS = {"rmse": {"npe": {0.0: 0.097, 0.1: 0.173}, "mds": {0.2: 0.147}}}
PANELS = [statistics.Panel("rmse", title="Error"), statistics.Panel("detected", title="Detection")]
PANELS += [statistics.Panel(metric) for metric in ("coverage", *statistics.MATERIAL)]


def make_rows(seeds=(0,)):
    """The RMSE of a method is base + slope epsilon + spread of the dataset + .01 seed."""
    return pd.DataFrame(
        {
            "method": method,
            "epsilon": epsilon,
            "seed": seed,
            "dataset": dataset,
            "rmse": BASE[method] + SLOPE[method] * epsilon + spread + 0.01 * seed,
            "coverage_90": float(dataset > 0),
            "detected": (dataset <= 10 * epsilon) if method == "mds" else None,
        }
        for method in BASE
        for epsilon in EPSILONS
        for seed in seeds
        for dataset, spread in enumerate(SPREAD)
    ).assign(method_options="{}", coverage_50=0.5, coverage_80=0.8, coverage_95=1.0)


@pytest.fixture
def rows():
    return make_rows()


def material(panel):
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(4, 2))
    return {
        "posterior": figures.Posteriors({"npe": rng.normal(size=(4, 30, 2))}, theta),
        "images": figures.Images({"clean": rng.normal(size=(3, 8, 8))}),
        "trajectories": figures.Trajectories({"clean": rng.normal(size=(3, 9))}),
    }[panel.metric]


def test_mean_and_standard_error_are_those_computed_by_hand(rows):
    points = summarise(rows, "rmse", "epsilon")
    assert list(points) == ["npe", "npe-or", "mds", "oracle"]  # the one order of methods
    assert [p.mean for p in points["mds"]] == pytest.approx([0.12, 0.17, 0.22])
    assert [p.error for p in points["mds"]] == pytest.approx([ERROR] * 3)
    # Seeds are averaged for each dataset first: else six values would give another error.
    point = summarise(make_rows(seeds=(0, 1)), "rmse", "epsilon")["npe"][0]
    assert (point.mean, point.error, point.count) == (pytest.approx(0.105), pytest.approx(ERROR), 3)
    difference, error = paired_difference(rows, "rmse", "epsilon", 0.2, "mds", "npe-or")
    assert (difference, error) == (pytest.approx(0.07), pytest.approx(0.0, abs=1e-12))


def test_rows_that_would_be_averaged_silently_are_an_error(rows):
    other = rows.assign(method_options='{"bandwidth": 0.5}')
    with pytest.raises(ValueError, match=r"got 2 that differ in \['method_options'\]"):
        summarise(pd.concat([rows, other], ignore_index=True), "rmse", "epsilon")
    with pytest.raises(ValueError, match=r"expected the columns \['bias'\]"):
        summarise(rows, "bias", "epsilon")


def test_rates_have_the_score_interval_of_wilson(rows):
    detected = summarise(rows, "detected", "epsilon")
    assert list(detected) == ["mds"]
    assert [p.mean for p in detected["mds"]] == pytest.approx([1 / 3, 2 / 3, 1.0])
    # Solutions r of (p - r)^2 = r (1 - r) / n, the definition of the interval.
    for p in detected["mds"]:
        for end in (p.low, p.high):
            assert (p.mean - end) ** 2 == pytest.approx(end * (1 - end) / 3)
    assert wilson(0.5, 0) == pytest.approx((math.nan, math.nan), nan_ok=True)


def test_every_method_has_a_colour_a_marker_and_a_label_of_its_own():
    assert set(METHODS) | {"oracle", "exact"} <= set(METHOD_STYLES)
    for name in ("colour", "marker", "label"):
        values = [getattr(style, name) for style in METHOD_STYLES.values()]
        assert len(set(values)) == len(values)


def test_curves_have_the_means_labels_and_colours(rows):
    axes = Figure().subplots()
    curves.plot_curves(axes, rows, "rmse", anchors=ANCHORS["rmse"])
    drawn = {bars.get_label(): bars[0].get_data() for bars in axes.containers}
    assert list(drawn) == ["NPE", "NPE-OR", "MDS (default)", "oracle summary"]
    assert drawn["MDS (default)"][1] == pytest.approx([0.12, 0.17, 0.22])
    bars = axes.containers[0][2][0].get_segments()[0]
    assert bars[:, 1] == pytest.approx([0.1 - ERROR, 0.1 + ERROR])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.1", "0.2"]
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in hollow] == [[0.097, 0.173], [0.147]]
    assert hollow[0].get_markeredgecolor() == method_style("npe").colour


def test_a_figure_has_all_panels_one_legend_and_nothing_overlaps(rows):
    figure = figures.draw_figure(PANELS, rows, title="Known", anchors=ANCHORS, material=material)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:5] == ["Error", "Detection", "ε = 0", "ε = 0.1", "ε = 0.2"]
    assert titles[5:9] == [f"dataset {i}" for i in (1, 2, 3, 4)]
    assert len(titles) == 11
    (legend,) = figure.legends
    entries = [entry.get_text() for entry in legend.get_texts()]
    assert entries[:4] == ["NPE", "NPE-OR", "MDS (default)", "oracle summary"]
    assert entries[-1] == "published value"
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes]
    boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
    for i, first in enumerate(boxes):
        for second in boxes[:i]:
            width = min(first.x1, second.x1) - max(first.x0, second.x0)
            height = min(first.y1, second.y1) - max(first.y0, second.y0)
            assert min(width, height) < 1, "two boxes share more than a pixel"


def test_the_table_has_the_known_values(rows):
    panels = [statistics.Panel("rmse"), statistics.Panel("images")]
    (known,) = table.experiment_tables(panels, rows, ANCHORS)
    text = known.markdown()
    assert "| contaminated fraction ε | NPE | NPE-OR | MDS (default) | oracle summary |" in text
    # The standard error is .02 / sqrt(3) = .0115. Only a robust method is best.
    assert "| 0 | 0.100 ± 0.012 (0.097) | 0.150 ± 0.012 | **0.120 ± 0.012** |" in text
    assert "| 0.2 | 0.300 ± 0.012 | **0.150 ± 0.012** | 0.220 ± 0.012 (0.147) |" in text
    assert "over 3 test datasets" in text
    tables = table.experiment_tables([statistics.Panel("coverage")], rows)
    assert [t.caption for t in tables] == [f"Empirical coverage, ε = {e:g}" for e in EPSILONS]


def test_losses_name_the_method_the_metric_the_setting_and_the_difference(rows):
    rng = np.random.default_rng(0)
    noisy = rows.assign(rmse=rows.rmse + 1e-3 * rng.normal(size=len(rows)))
    panels = [statistics.Panel("rmse"), statistics.Panel("coverage")]
    (sentence,), _ = table.panel_losses(panels, noisy)
    assert "MDS (default) loses in RMSE of the posterior mean to NPE at ε = 0 (" in sentence
    assert "to NPE-OR at ε = 0.1, 0.2 (most at 0.2: +0.0" in sentence
    assert "oracle" not in sentence, "a reference is no baseline"
    won = rows.assign(rmse=rows.rmse.where(rows.method != "mds", 0.01))
    (sentence,), tables = table.panel_losses(panels, won)
    assert sentence.startswith("MDS (default) loses to no baseline in RMSE")
    assert tables == []


@pytest.fixture
def written(rows, tmp_path):
    panels = [statistics.Panel("rmse"), statistics.Panel("detected")]
    drawn = figures.draw_figure(panels, rows, anchors=ANCHORS)
    _, svg = figures.save_png_and_svg(drawn, tmp_path / "figure")
    hostile = '<script>alert("1")</script> & "quotes"'
    command = "mindist reproduce gaussian --profile smoke"
    section = table.Section(
        *("gaussian", "Gaussian by ε", hostile, hostile, command, svg),
        alt=figures.describe_figure(panels, rows) + hostile,
        tables=table.experiment_tables(panels, rows, ANCHORS),
        losses=table.panel_losses(panels, rows)[0],
        **{"verdict": hostile, "configuration": {"task": hostile}, "seconds": 75},
    )
    other = table.Section(name='"odd" name', title=hostile)
    whole = table.Page(
        [section, other], versions={"mindist": "0.1", hostile: hostile}, seconds=4000
    )
    path = tmp_path / "new" / "index.html"
    path.parent.mkdir()
    path.write_text(table.as_html(whole), encoding="utf-8")
    return path


def test_the_page_has_everything_escapes_it_and_loads_nothing(written):
    text = written.read_text(encoding="utf-8")
    reader = read(text)
    words = " ".join(reader.text)
    for part in (
        *("Gaussian by ε", "mindist reproduce gaussian --profile smoke", "1 min 15 s"),
        *("1 h 6 min", "0.120 ± 0.012", "MDS (default) loses", "Configuration", "Versions"),
        '<script>alert("1")</script>',
    ):
        assert part in words
    assert "NPE 0.3." in text  # the alternative text of the figure
    assert "script" not in {tag for tag, _ in reader.seen}
    assert not re.search(r"url\(|@import", text)
    ids = [a["id"] for _, a in reader.seen if "id" in a]
    assert len(set(ids)) == len(ids)
    links = [a[name] for _, a in reader.seen for name in ("src", "href", "data") if name in a]
    assert all(link.startswith("data:") or link[1:] in ids for link in links)
    assert list(written.parent.iterdir()) == [written]


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_renders_in_a_browser(written, chromium, tmp_path, width):
    chromium.open(written, width=width)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.complaints == []
    assert chromium.requests == [written.as_uri()]
    # The figure is there: the vermilion of NPE, which no other element of the page has.
    pixels = chromium.pixels(tmp_path / "shot.png")
    assert (np.abs(pixels - np.array([0xD5, 0x5E, 0x00])).max(-1) < 12).sum() > 50
