"""From panels and rows to one figure with one legend, saved as PNG and SVG."""

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from mindist.report import plot_images
from mindist.report.before_after import plot_samples
from mindist.report.style import BLUE, GREY, VERMILION, figure_style
from mindist.storage import write_whole
from mindist_paper.report import style
from mindist_paper.report.curves import HOLLOW, PUBLISHED, plot_coverage, plot_curves
from mindist_paper.report.statistics import MATERIAL, Anchors, Panel, Rows, select, summarise
from mindist_paper.report.style import capital, method_style, metric_label, setting

Array = Any  # anything that NumPy takes for an array, tensors included


@dataclass(frozen=True)
class Images:
    """Sample images, a row for each label: label -> `(n, height, width)`."""

    rows: Mapping[str, Array]


@dataclass(frozen=True)
class Trajectories:
    """Time series of one dataset: label -> `(n, T)`, the first label the clean ones."""

    series: Mapping[str, Array]  # Drawn in this order, the later ones on top
    step: float = 1.0  # Time between two values


@dataclass(frozen=True)
class Posteriors:
    """Posterior samples that were kept for a figure."""

    samples: Mapping[str, Array]  # method -> `(B, S, d_theta)`, or a list of B
    theta: Array  # True parameters `(B, d_theta)`
    names: Sequence[str] = ()  # Names of the parameters


# What the panels "posterior", "images" and "trajectories" draw in place of rows
Material = Posteriors | Images | Trajectories
Find = Callable[[Panel], Material | None]
Slot = tuple[Callable[[Any], Any], str]  # A function that draws on axes, and their title
CURVES_IN_A_ROW, POSTERIORS_IN_A_ROW = 3, 4
WIDTH, HEIGHT, LEGEND_HEIGHT = 4.3, 3.5, 0.9  # inches; three panels are as wide as a page
LEGEND_COLUMNS_PER_PANEL = 2
LEGEND_HANDLE, LEGEND_LETTER = 0.75, 0.075  # inches at 10 points, spaces included


@dataclass(frozen=True)
class Strip:
    """Axes side by side, with their own title where they are one panel."""

    slots: Sequence[Slot]  # What is drawn, from left to right and from top to bottom
    title: str = ""  # Title above all of them
    height: float = HEIGHT  # Height of one line of axes, in inches
    columns: int = 0  # How many fit on a line; 0 for as many as the figure has columns of curves

    @property
    def lines(self) -> int:
        """How many lines of axes."""
        return math.ceil(len(self.slots) / self.columns) if self.columns else 1

    @property
    def total_height(self) -> float:
        """Height of all lines and the title, in inches."""
        return self.height * self.lines + (0.3 if self.title else 0.0)


def draw_figure(
    panels: Sequence[Panel],
    rows: Rows,
    *,
    title: str = "",
    anchors: Anchors | None = None,
    material: Find | None = None,
) -> Figure:
    """Draw one figure for all panels of an experiment."""
    with figure_style():
        strips = list(_layout(panels, rows, anchors or {}, material or (lambda panel: None)))
        columns = max((len(strip.slots) for strip in strips if not strip.columns), default=1)
        widest = max((strip.columns for strip in strips), default=0)
        width = WIDTH * max(columns, 2 if widest < CURVES_IN_A_ROW else CURVES_IN_A_ROW)
        height = sum(strip.total_height for strip in strips) + LEGEND_HEIGHT
        spaced = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03)
        figure = Figure(figsize=(width, height), layout=spaced)
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, fontsize=14, fontweight="bold")
        if strips:
            _draw_strips(figure, strips, columns)
        _add_legend(figure, int(width / WIDTH * LEGEND_COLUMNS_PER_PANEL))
        _freeze_layout(figure)
    return figure


def _layout(
    panels: Sequence[Panel], rows: Rows, anchors: Anchors, material: Find
) -> Iterator[Strip]:
    """Yield the rows of axes of a figure; four panels of curves stand two by two."""
    wide = [
        _material_strip(panel, material(panel))
        if panel.metric in MATERIAL
        else _coverage_strip(panel, rows)
        for panel in panels
    ]
    plain = [
        strip is None and panel.metric not in MATERIAL
        for panel, strip in zip(panels, wide, strict=True)
    ]
    in_a_row = 2 if sum(plain) == 4 else CURVES_IN_A_ROW
    curves: list[Slot] = []
    for panel, strip, is_curve in zip(panels, wide, plain, strict=True):
        if is_curve:
            curves.append((partial(_draw_curves, panel, rows, anchors), panel.title))
        if curves and (strip is not None or len(curves) == in_a_row):
            yield Strip(tuple(curves))
            curves = []
        if strip is not None:
            yield strip
    if curves:
        yield Strip(tuple(curves))


def _draw_curves(panel: Panel, rows: Rows, anchors: Anchors, axes: Any) -> None:
    own = select(rows, panel.where)
    if panel.metric == "coverage":
        plot_coverage(axes, own, series=panel.series)
        return
    how: dict[str, Any] = {"series": panel.series, "log": panel.log}
    plot_curves(axes, own, panel.metric, panel.by, anchors=panel.published(anchors), **how)


def _coverage_strip(panel: Panel, rows: Rows) -> Strip | None:
    """Return coverage at every value of `by`, where the panel leaves it open."""
    if panel.metric != "coverage":
        return None
    own = select(rows, panel.where)
    settings = style.sort_series(panel.by, list(own[panel.by].dropna().unique()))
    if len(settings) < 2 or panel.series == panel.by:
        return None
    slots: list[Slot] = []
    for at in settings:
        draw = partial(plot_coverage, rows=own[own[panel.by] == at], series=panel.series)
        slots.append((draw, setting(panel.by, at)))
    columns = len(settings) if len(settings) <= POSTERIORS_IN_A_ROW else CURVES_IN_A_ROW
    return Strip(slots, panel.title or "Coverage of credible intervals", 3.1, columns)


def _material_strip(panel: Panel, given: Material | None) -> Strip | None:
    """Return the axes of samples, images or series; None where there are none."""
    if isinstance(given, Images):
        slot = (partial(plot_images, rows=given.rows), "")
        return Strip([slot], panel.title or "Sample images", 1.35 * len(given.rows), 1)
    if isinstance(given, Trajectories):
        slot = (partial(plot_trajectories, series=given.series, step=given.step), "")
        return Strip([slot], panel.title or "Time series", 2.8, 1)
    if given is None:
        return None
    slots: list[Slot] = []
    for i, theta in enumerate(given.theta):
        drawn = {method: samples[i] for method, samples in given.samples.items()}
        draw = partial(plot_posterior_samples, samples=drawn, theta=theta, names=given.names)
        slots.append((draw, f"dataset {i + 1}"))
    return Strip(slots, panel.title or "Posteriors", 3.0, min(len(slots), POSTERIORS_IN_A_ROW))


def plot_posterior_samples(
    axes: Any, samples: Mapping[str, Array], theta: Array | None, names: Sequence[str] = ()
) -> Any:
    """Draw the posterior of one dataset by several methods."""
    styles = {method: method_style(method) for method in style.sort_series("method", list(samples))}
    dim = np.shape(next(iter(samples.values())))[-1]
    drawn = {own.label: samples[method] for method, own in styles.items()}
    colours = {own.label: own.colour for own in styles.values()}
    names = names or [f"$\\theta_{j + 1}$" for j in range(dim)]
    return plot_samples(axes, drawn, theta, names, colours)


def plot_trajectories(axes: Any, series: Mapping[str, Array], step: float = 1.0) -> Any:
    """Draw time series as thin lines: the first label in grey, the others in colour."""
    colours = [GREY, VERMILION, BLUE, style.GREEN]
    for colour, (label, values) in zip(colours, series.items(), strict=False):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        time = step * np.arange(values.shape[1])
        lines = axes.plot(time, values.T, color=colour, linewidth=0.9, alpha=0.7)
        lines[0].set_label(label)
    axes.set(xlabel="time", ylabel="value")
    axes.legend(loc="best", fontsize=9, framealpha=0.85)
    return axes


def _draw_strips(figure: Figure, strips: Sequence[Strip], columns: int) -> None:
    heights = [strip.total_height for strip in strips]
    parts = figure.subfigures(len(strips), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, strip in zip(parts, strips, strict=True):
        grid = part.subplots(strip.lines, strip.columns or columns, squeeze=False)
        cells = list(grid.flat)
        for axes, (draw, title) in zip(cells, strip.slots, strict=False):
            draw(axes)
            axes.set_title(title)
        for axes in cells[len(strip.slots) :]:
            axes.set_axis_off()
        if strip.title:
            part.suptitle(strip.title, fontsize=12)
            for line in grid:
                _label_outside_only(line)


def _label_outside_only(row: Sequence[Any]) -> None:
    if len({axes.get_ylabel() for axes in row}) == 1:
        for axes in row[1:]:
            axes.set_ylabel("")
            if axes.get_ylim() == row[0].get_ylim():
                axes.tick_params(labelleft=False)


def _add_legend(figure: Figure, columns: int) -> None:
    """Add one legend for all axes: methods in their order, then what is published."""
    handles: dict[str, Any] = {}
    published = False
    for axes in figure.axes:
        published |= any(line.get_label() == f"_{PUBLISHED}" for line in axes.lines)
        if axes.get_legend() is None:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    if published:
        hollow: dict[str, Any] = {"marker": "o", "markeredgecolor": "#333333", **HOLLOW}
        handles[PUBLISHED] = Line2D([], [], markersize=10, **hollow)
    if handles:
        widest = LEGEND_HANDLE + LEGEND_LETTER * max(map(len, handles))
        fitting = max(1, int(figure.get_figwidth() / widest))
        look: dict[str, Any] = {"loc": "outside lower center", "frameon": False}
        look |= {"handlelength": 3.2, "ncols": min(len(handles), max(columns, 2), fitting)}
        figure.legend(handles.values(), handles.keys(), **look)


def _freeze_layout(figure: Figure) -> None:
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        box = part.bbox_relative
        box.p0, box.p1 = np.round(box.p0, 6), np.round(box.p1, 6)
    for axes in figure.axes:
        axes.set_position(tuple(np.round(axes.get_position(original=True).bounds, 6)))


def save_png_and_svg(figure: Figure, stem: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.svg, the same bytes every time, and return both paths."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    with figure_style():
        for path, left_out in ((png, ("Software",)), (svg, ("Date", "Creator"))):
            buffer, none = io.BytesIO(), dict.fromkeys(left_out)
            figure.savefig(buffer, dpi=150, format=path.suffix[1:], metadata=none)
            write_whole(path, buffer.getvalue())
    return png, svg


def describe_figure(panels: Sequence[Panel], rows: Rows) -> str:
    """Return what a figure shows, in words: its alternative text."""
    return " ".join(_describe(panel, rows) for panel in panels)


def _describe(panel: Panel, rows: Rows) -> str:
    if panel.metric in MATERIAL:
        return f"{panel.title or panel.metric.capitalize()}."
    if panel.metric == "coverage":
        return "Empirical coverage of credible intervals against their nominal level."
    points = summarise(select(rows, panel.where), panel.metric, panel.by, panel.series)
    what = capital(metric_label(panel.metric))
    if not points:
        return f"{what}: no results."
    styles = style.series_styles(panel.series, list(points))
    last = max(points.values(), key=len)[-1].at
    means = {styles[k].label: p.mean for k, own in points.items() for p in own if p.at == last}
    ends = ", ".join(f"{name} {means[name]:.3g}" for name in sorted(means, key=means.__getitem__))
    against = f"{what} against {style.quantity_label(panel.by)}"
    return f"{against}. At {setting(panel.by, last)}, from low to high: {ends}."
