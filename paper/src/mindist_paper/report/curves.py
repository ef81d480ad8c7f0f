"""A metric against epsilon, delta, N, D or the bandwidth: a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from mindist_paper.report.horizontal import Horizontal
from mindist_paper.report.statistics import Point, Rows, summarise
from mindist_paper.report.style import Style, metric_label, quantity_label, series_styles

PUBLISHED = "published value"
"""Legend entry of the hollow markers."""

FEWEST_DECADES = 2.0
"""A log axis that spans fewer decades is labelled between the powers of ten as well."""

MOST_DECADES = 9
"""A log axis shows no more than this below its largest mean: what is smaller is as good as 0."""


def plot_curves(
    axes: Any,
    rows: Rows,
    metric: str,
    by: str = "epsilon",
    *,
    series: str = "method",
    anchors: Mapping[Any, Mapping[float, float]] | None = None,
    log: bool = False,
) -> Any:
    """Means over test datasets with standard errors, a line for each method.

    Points of different methods are moved apart by a fraction of the gap between settings. Published
    values are hollow, larger and without a line.

    Arguments:
        axes: Matplotlib axes.
        rows: One row for each test dataset, method, setting and seed.
        metric: The column on the vertical axis.
        by: The column on the horizontal axis.
        series: The column with a line for each value.
        anchors: Published values, method -> value of `by` -> number.
        log: Whether the vertical axis is logarithmic.

    Example:
        >>> import pandas
        >>> from mindist.report import new_figure
        >>> rows = {"method": "npe", "seed": 0, "epsilon": [0, 0.2], "dataset": 0}
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_curves(axes, pandas.DataFrame({**rows, "rmse": [0.1, 0.4]}), "rmse")
        >>> axes.get_ylabel()
        'RMSE of the posterior mean'
    """
    points = summarise(rows, metric, by, series)
    if not points:
        return say_no_results(axes, metric, by)
    styles = series_styles(series, list(points))
    if log:
        positive = {name: tuple(p for p in own if p.mean > 0) for name, own in points.items()}
        plot_points(axes, positive, styles, by, anchors or {})
        set_log(axes, positive)
        if any(p.mean == 0 for own in points.values() for p in own):
            axes.annotate("zeros are not drawn", (0.02, 0.02), xycoords="axes fraction", size=8)
    else:
        plot_points(axes, points, styles, by, anchors or {})
    axes.set(xlabel=quantity_label(by), ylabel=metric_label(metric))
    return axes


def plot_points(
    axes: Any,
    points: Mapping[Any, Sequence[Point]],
    styles: Mapping[Any, Style],
    by: str,
    anchors: Mapping[Any, Mapping[float, float]] | None = None,
) -> Any:
    """Lines with error bars, published values, and the settings as ticks."""
    horizontal = Horizontal.of(by, [p.at for own in points.values() for p in own])
    for name, offset in zip(points, horizontal.offsets(len(points)), strict=True):
        style, own = styles[name], points[name]
        bars = [[p.mean - p.low for p in own], [p.high - p.mean for p in own]]
        axes.errorbar(
            [horizontal.at(p.at, offset) for p in own],
            [p.mean for p in own],
            yerr=np.nan_to_num(np.maximum(bars, 0.0)),  # one dataset has no standard error
            label=style.label,
            color=style.colour,
            marker=style.marker,
            markersize=style.size,
            linestyle=style.line if horizontal.ordered else "none",
            markeredgecolor="white",
            markeredgewidth=0.4,
            elinewidth=1.3,
            capsize=2.5,
        )
        published = {horizontal.find(at): v for at, v in (anchors or {}).get(name, {}).items()}
        published.pop(None, None)
        if published:
            plot_published(axes, horizontal, published, offset, style)
    return horizontal.set_ticks(axes)


def plot_published(
    axes: Any,
    horizontal: Horizontal,
    published: Mapping[Any, float],
    offset: float,
    style: Style,
) -> Any:
    """Hollow markers in the colour and shape of their method."""
    axes.plot(
        [horizontal.at(at, offset) for at in published],
        list(published.values()),
        linestyle="none",
        marker=style.marker,
        markersize=1.6 * style.size,
        markerfacecolor="none",
        markeredgecolor=style.colour,
        markeredgewidth=1.3,
        label=f"_{PUBLISHED}",  # hidden: the figure has one entry for all methods
        zorder=4,
    )
    return axes


def set_log(axes: Any, points: Mapping[Any, Sequence[Point]]) -> Any:
    """A logarithmic vertical axis, with enough labels on it."""
    axes.set_yscale("log", nonpositive="clip")
    means = [p.mean for own in points.values() for p in own if p.mean > 0]
    if means:
        low, high = axes.get_ylim()
        floor = max(means) / 10**MOST_DECADES
        if min(means) < floor:
            high = 10 * max(means)  # the margin was a share of the whole range
        axes.set_ylim(max(low, min(means) / 3, floor), high)  # a bar may reach 0
        if np.log10(max(means) / min(means)) < FEWEST_DECADES:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    return axes


def say_no_results(axes: Any, metric: str, by: str) -> Any:
    """Empty axes that say so."""
    axes.text(0.5, 0.5, "no results", transform=axes.transAxes, ha="center", va="center")
    axes.set(xlabel=quantity_label(by), ylabel=metric_label(metric), xticks=[], yticks=[])
    return axes


__all__ = ["PUBLISHED", "plot_curves", "plot_points", "say_no_results"]
