"""A metric against epsilon, delta, N, D or the bandwidth: a line for each method."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from mindist_paper.report.statistics import Point, Published, Rows, by_level, summarise
from mindist_paper.report.style import metric_label, quantity_label, series_styles, text

PUBLISHED = "published value"  # Legend entry of the hollow markers
# Columns that the paper spaces by factors
LOGARITHMIC = ("num_obs", "dim", "bandwidth", "outlier", "small_epsilon")
SPREAD = 0.5  # share of the smallest gap between settings over which error bars stand side by side
CLOSEST_TICKS = 0.115  # ticks nearer than this share of the axis have no label
FEWEST_DECADES = 2.0  # a log axis with fewer is labelled between the powers of ten as well
MOST_DECADES = 9  # below the largest mean of a log axis: what is smaller is as good as 0
ALPHA = 0.05  # the level of the test in the paper (section 3)
HOLLOW = {"linestyle": "none", "markerfacecolor": "none", "markeredgewidth": 1.3, "zorder": 4}
BARS: Mapping[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4, "capsize": 2.5}
LINE = {"color": "#555555", "linewidth": 1, "zorder": 1}
NOMINAL: Mapping[str, Any] = {**LINE, "linestyle": (0, (4, 3))}


class Horizontal:
    """Where settings, which are numbers, stand on a horizontal axis."""

    def __init__(self, by: str, settings: Iterable[Any]) -> None:
        settings = sorted(set(settings))
        self.log = bool(by in LOGARITHMIC and settings and settings[0] > 0)
        self.places = {at: math.log(at) if self.log else float(at) for at in settings}

    def at(self, setting: Any, offset: float = 0.0) -> float:
        """Return the coordinate of a setting, moved sideways."""
        place = self.places[setting] + offset
        return math.exp(place) if self.log else place

    def offsets(self, count: int) -> list[float]:
        """Return how far to move each of so many lines."""
        gaps = np.diff(sorted(self.places.values()))
        width = SPREAD * float(gaps.min()) if len(gaps) else 0.5
        return [width * ((i + 0.5) / count - 0.5) for i in range(count)]

    def set_ticks(self, axes: Any) -> None:
        """Put a tick at each setting, with a label where there is room for it."""
        if self.log:
            axes.set_xscale("log")
        places = list(self.places.values())
        span = (places[-1] - places[0]) or 1.0
        labels: list[str] = []
        last = -math.inf
        for setting, place in self.places.items():
            room = (place - last) / span >= CLOSEST_TICKS
            labels.append(text(setting) if room else "")
            last = place if room else last
        ticks = [self.at(setting) for setting in self.places]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        # A setting that few lines have may stand outside their range.
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, ticks[0]), max(high, ticks[-1]))
        axes.set_xticklabels(labels)


def plot_curves(
    axes: Any,
    rows: Rows,
    metric: str,
    by: str = "epsilon",
    *,
    series: str = "method",
    anchors: Published | None = None,
    log: bool = False,
) -> Any:
    """Draw means over test datasets with standard errors, a line for each method."""
    points = summarise(rows, metric, by, series)
    axes.set(xlabel=quantity_label(by), ylabel=metric_label(metric))
    if not points:
        axes.text(0.5, 0.5, "no results", transform=axes.transAxes, ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return axes
    drawn = points
    if log:
        drawn = {name: tuple(p for p in own if p.mean > 0) for name, own in points.items()}
        if any(p.mean == 0 for own in points.values() for p in own):
            axes.annotate("zeros are not drawn", (0.02, 0.02), xycoords="axes fraction", size=8)
    _plot_points(axes, drawn, by, series, anchors or {})
    if log:
        _set_log(axes, [p.mean for own in drawn.values() for p in own])
    if metric == "detected" and by == "alpha":
        axes.axline((0, 0), slope=1, **NOMINAL)
    elif metric == "detected":
        axes.axhline(ALPHA, **NOMINAL)
        beside = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}
        axes.text(0.99, ALPHA, f"α = {ALPHA:g}", fontsize=9, color="#333333", **beside)
        axes.set_ylim(-0.03, 1.03)
    return axes


def plot_coverage(axes: Any, rows: Rows, *, series: str = "method") -> Any:
    """Draw the coverage of credible intervals by their level; a calibrated one is the diagonal."""
    plot_curves(axes, by_level(rows), "coverage", "level", series=series)
    axes.axline((0, 0), slope=1, **NOMINAL)
    axes.set(xlim=(0.44, 1.0), ylim=(-0.03, 1.03))
    return axes


def _plot_points(
    axes: Any, points: Mapping[Any, Sequence[Point]], by: str, series: str, anchors: Published
) -> None:
    horizontal = Horizontal(by, [p.at for own in points.values() for p in own])
    styles = series_styles(series, list(points))
    for name, offset in zip(points, horizontal.offsets(len(points)), strict=True):
        style, own = styles[name], points[name]
        bars = [[p.mean - p.low for p in own], [p.high - p.mean for p in own]]
        look = {"label": style.label, "color": style.colour, "markersize": style.size, **BARS}
        axes.errorbar(
            [horizontal.at(p.at, offset) for p in own],
            [p.mean for p in own],
            yerr=np.nan_to_num(np.maximum(bars, 0.0)),  # one dataset has no standard error
            marker=style.marker,
            linestyle=style.line,
            elinewidth=1.3,
            **look,
        )
        published = anchors.get(name, {})
        known = [(at, v) for at in horizontal.places for a, v in published.items() if a == at]
        if known:
            axes.plot(
                [horizontal.at(at, offset) for at, _ in known],
                [value for _, value in known],
                marker=style.marker,
                markersize=1.6 * style.size,
                markeredgecolor=style.colour,
                label=f"_{PUBLISHED}",  # hidden: the figure has one entry for all methods
                **HOLLOW,
            )
    if horizontal.places:
        horizontal.set_ticks(axes)


def _set_log(axes: Any, means: Sequence[float]) -> None:
    axes.set_yscale("log", nonpositive="clip")
    if not means:
        return
    low, high = axes.get_ylim()
    floor = max(means) / 10**MOST_DECADES
    if min(means) < floor:
        high = 10 * max(means)  # the margin was a share of the whole range
    axes.set_ylim(max(low, min(means) / 3, floor), high)  # a bar may reach 0
    if np.log10(max(means) / min(means)) < FEWEST_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
