"""From panels and rows to one figure with one legend, saved as PNG and SVG.

Curves stand in rows of up to three. A panel that needs several axes, such as coverage for every
epsilon or the posteriors of four datasets, has a row of its own.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from mindist.report import plot_images
from mindist.report.style import figure_style
from mindist.storage import write_whole
from mindist_paper.report.coverage import plot_coverage
from mindist_paper.report.curves import PUBLISHED, plot_curves
from mindist_paper.report.detection import ALPHA, plot_rejections
from mindist_paper.report.kept import (
    Images,
    Posteriors,
    Trajectories,
    plot_posterior_samples,
    plot_trajectories,
)
from mindist_paper.report.panel import Anchors, Panel, panel_anchors
from mindist_paper.report.statistics import Rows, select, summarise
from mindist_paper.report.style import (
    capital,
    metric_label,
    quantity_label,
    series_styles,
    setting,
    sort_series,
)

Material = Posteriors | Images | Trajectories
"""What the panels "posterior", "images" and "trajectories" draw in place of rows."""

CURVES_IN_A_ROW, POSTERIORS_IN_A_ROW = 3, 4
WIDTH, HEIGHT = 4.3, 3.5
"""Inches of a panel of curves: three are as wide as a page of the report."""

LEGEND_HEIGHT = 0.9
LEGEND_COLUMNS_PER_PANEL = 2
LEGEND_HANDLE, LEGEND_LETTER = 0.75, 0.075  # inches at 10 points, spaces included
MATERIAL_METRICS = ("posterior", "images", "trajectories")


@dataclass(frozen=True)
class Slot:
    """One pair of axes: a function that draws on them, and their title."""

    draw: Callable[[Any], Any]
    title: str = ""


@dataclass(frozen=True)
class Strip:
    """Axes side by side, with their own title where they are one panel.

    Arguments:
        slots: What is drawn, from left to right and from top to bottom.
        title: Above all of them.
        height: Of one line of axes, in inches.
        columns: How many fit on a line; 0 for as many as the figure has columns of curves.
    """

    slots: Sequence[Slot]
    title: str = ""
    height: float = HEIGHT
    columns: int = 0

    @property
    def lines(self) -> int:
        """How many lines of axes."""
        return math.ceil(len(self.slots) / self.columns) if self.columns else 1

    @property
    def total_height(self) -> float:
        """Of all lines and the title, in inches."""
        return self.height * self.lines + (0.3 if self.title else 0.0)


def draw_figure(
    panels: Sequence[Panel],
    rows: Rows,
    *,
    title: str = "",
    anchors: Anchors | None = None,
    material: Callable[[Panel], Material | None] | None = None,
    alpha: float = ALPHA,
) -> Figure:
    """One figure for all panels of an experiment.

    Arguments:
        panels: In reading order.
        rows: One row for each test dataset, method, setting and seed.
        title: Above the figure.
        anchors: Published values, metric -> method -> value of `by` -> number.
        material: For a panel "posterior", "images" or "trajectories", what to draw; a panel without
            material is left out.
        alpha: Level of the test, for rejection rates.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> from mindist_paper.report import Panel
        >>> figure = draw_figure([Panel("rmse")], rows, title="Errors")
        >>> figure.axes[0].get_xlabel()
        'contaminated fraction ε'
    """
    with figure_style():
        strips = list(layout(panels, rows, anchors or {}, material, alpha))
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
            draw_strips(figure, strips, columns)
        add_legend(figure, int(width / WIDTH * LEGEND_COLUMNS_PER_PANEL))
        freeze_layout(figure)
    return figure


def layout(
    panels: Sequence[Panel],
    rows: Rows,
    anchors: Anchors,
    material: Callable[[Panel], Material | None] | None,
    alpha: float,
) -> Iterator[Strip]:
    """The rows of axes of a figure; four panels of curves stand two by two."""
    wide = [wide_strip(panel, rows, material) for panel in panels]
    plain = sum(
        strip is None and panel.metric not in MATERIAL_METRICS
        for panel, strip in zip(panels, wide, strict=True)
    )
    in_a_row = 2 if plain == 4 else CURVES_IN_A_ROW
    curves: list[Slot] = []
    for panel, strip in zip(panels, wide, strict=True):
        if strip is None and panel.metric not in MATERIAL_METRICS:
            curves.append(curve_slot(panel, rows, anchors, alpha))
        if curves and (strip is not None or len(curves) == in_a_row):
            yield Strip(tuple(curves))
            curves = []
        if strip is not None:
            yield strip
    if curves:
        yield Strip(tuple(curves))


def curve_slot(panel: Panel, rows: Rows, anchors: Anchors, alpha: float) -> Slot:
    """A panel with one pair of axes."""
    own, published = select(rows, panel.where), panel_anchors(panel, anchors)

    def draw(axes: Any) -> Any:
        if panel.metric == "coverage":
            return plot_coverage(axes, own, series=panel.series)
        if panel.metric == "detected":
            return plot_rejections(
                axes, own, panel.by, series=panel.series, anchors=published, alpha=alpha
            )
        return plot_curves(
            axes,
            own,
            panel.metric,
            panel.by,
            series=panel.series,
            anchors=published,
            log=panel.log,
        )

    return Slot(draw, panel.title)


def wide_strip(
    panel: Panel, rows: Rows, material: Callable[[Panel], Material | None] | None
) -> Strip | None:
    """A panel with several pairs of axes, or None for a panel with one."""
    if panel.metric == "coverage":
        return coverage_strip(panel, rows)
    given = material(panel) if material and panel.metric in MATERIAL_METRICS else None
    if isinstance(given, Posteriors) and len(given):
        return posterior_strip(panel, given)
    if isinstance(given, Images):
        slot = Slot(lambda axes: plot_images(axes, given.rows))
        return Strip((slot,), panel.title or "Sample images", 1.35 * len(given.rows), 1)
    if isinstance(given, Trajectories):
        slot = Slot(lambda axes: plot_trajectories(axes, given.series, given.step))
        return Strip((slot,), panel.title or "Time series", 2.8, 1)
    return None


def coverage_strip(panel: Panel, rows: Rows) -> Strip | None:
    """Coverage at every value of `by`, where the panel leaves it open."""
    own = select(rows, panel.where)
    settings = sort_series(panel.by, list(own[panel.by].dropna().unique()))
    if len(settings) < 2 or panel.series == panel.by:
        return None

    def slot(at: Any) -> Slot:
        return Slot(
            lambda axes: plot_coverage(axes, own[own[panel.by] == at], series=panel.series),
            setting(panel.by, at),
        )

    title = panel.title or "Coverage of credible intervals"
    columns = len(settings) if len(settings) <= POSTERIORS_IN_A_ROW else CURVES_IN_A_ROW
    return Strip([slot(at) for at in settings], title, 3.1, columns)


def posterior_strip(panel: Panel, given: Posteriors) -> Strip:
    """The posteriors of each dataset that was kept."""

    def slot(i: int) -> Slot:
        drawn = {method: samples[i] for method, samples in given.samples.items()}
        title = given.titles[i] if given.titles else f"dataset {i + 1}"
        return Slot(
            lambda axes: plot_posterior_samples(axes, drawn, given.theta[i], given.names), title
        )

    slots = [slot(i) for i in range(len(given))]
    columns = min(len(slots), POSTERIORS_IN_A_ROW)
    return Strip(slots, panel.title or "Posteriors", 3.0, columns)


def draw_strips(figure: Figure, strips: Sequence[Strip], columns: int) -> None:
    """Draw every strip on a part of the figure of its own."""
    heights = [strip.total_height for strip in strips]
    parts = figure.subfigures(len(strips), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, strip in zip(parts, strips, strict=True):
        if strip.title:
            part.suptitle(strip.title, fontsize=12)
        grid = part.subplots(strip.lines, strip.columns or columns, squeeze=False)
        cells = list(grid.flat)
        for axes, slot in zip(cells, strip.slots, strict=False):
            slot.draw(axes)
            axes.set_title(slot.title)
        for axes in cells[len(strip.slots) :]:
            axes.set_axis_off()
        if strip.title:
            for line in grid:
                label_outside_only(line)


def label_outside_only(row: Sequence[Any]) -> None:
    """Repeated labels of vertical axes stand at the first one only."""
    if len({axes.get_ylabel() for axes in row}) == 1:
        for axes in row[1:]:
            axes.set_ylabel("")
            if axes.get_ylim() == row[0].get_ylim():
                axes.tick_params(labelleft=False)


def add_legend(figure: Figure, columns: int) -> None:
    """One legend for all axes: methods in their order, then what is published."""
    handles: dict[str, Any] = {}
    published = False
    for axes in figure.axes:
        published |= any(line.get_label() == f"_{PUBLISHED}" for line in axes.lines)
        if axes.get_legend() is None:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    if published:
        handles[PUBLISHED] = Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor="#333333",
            markeredgewidth=1.3,
        )
    if handles:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(len(handles), max(columns, 2), legend_columns(figure, handles)),
            frameon=False,
            handlelength=3.2,
        )


def legend_columns(figure: Figure, labels: Iterable[str]) -> int:
    """How many columns of a legend fit side by side, each as wide as the longest label."""
    widest = LEGEND_HANDLE + LEGEND_LETTER * max(map(len, labels))
    return max(1, int(figure.get_figwidth() / widest))


def freeze_layout(figure: Figure) -> None:
    """Lay out once and keep the places, rounded.

    The solver of the layout differs in the last bits from run to run, and the SVG's names of
    clipping regions are hashes of all bits.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for part in figure.subfigs:
        box = part.bbox_relative
        box.p0, box.p1 = np.round(box.p0, 6), np.round(box.p1, 6)
    for axes in figure.axes:
        axes.set_position(tuple(np.round(axes.get_position(original=True).bounds, 6)))


def save_png_and_svg(figure: Figure, stem: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.svg, the same bytes every time, and return both paths.

    Example:
        >>> import tempfile
        >>> from mindist.report import new_figure
        >>> figure, _ = new_figure(1)
        >>> folder = Path(tempfile.mkdtemp())
        >>> [path.name for path in save_png_and_svg(figure, folder / "figure")]
        ['figure.png', 'figure.svg']
    """
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
    """What a figure shows, in words: its alternative text.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame(
        ...     {"method": ["npe", "npe", "mds", "mds"], "epsilon": [0.0, 0.2] * 2,
        ...      "dataset": 0, "seed": 0, "rmse": [0.1, 0.4, 0.1, 0.2]}
        ... )
        >>> from mindist_paper.report import Panel
        >>> "NPE" in describe_figure([Panel("rmse")], rows)
        True
    """
    return " ".join(describe_panel(panel, rows) for panel in panels)


def describe_panel(panel: Panel, rows: Rows) -> str:
    """One or two sentences on a panel: what is drawn, and the ends of the last setting."""
    if panel.metric in MATERIAL_METRICS:
        return f"{panel.title or panel.metric.capitalize()}."
    if panel.metric == "coverage":
        return "Empirical coverage of credible intervals against their nominal level."
    points = summarise(select(rows, panel.where), panel.metric, panel.by, panel.series)
    styles = series_styles(panel.series, list(points))
    names = ", ".join(style.label for style in styles.values())
    if not points:
        return f"{capital(metric_label(panel.metric))}: no results."
    sentence = (
        f"{capital(metric_label(panel.metric))} against {quantity_label(panel.by)} for {names}."
    )
    last = max(points.values(), key=len)[-1].at
    ends = sorted(
        (p.mean, styles[name].label) for name, own in points.items() for p in own if p.at == last
    )
    if len(ends) > 1:
        (low, lowest), (high, highest) = ends[0], ends[-1]
        sentence += (
            f" At {setting(panel.by, last)} the lowest is {lowest} with {low:.3g}, "
            f"the highest {highest} with {high:.3g}."
        )
    return sentence


__all__ = ["Material", "describe_figure", "draw_figure", "save_png_and_svg"]
