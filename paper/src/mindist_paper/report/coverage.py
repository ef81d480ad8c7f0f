"""Empirical coverage of credible intervals against their nominal level."""

from __future__ import annotations

from typing import Any

from mindist_paper.report.curves import plot_points, say_no_results
from mindist_paper.report.statistics import Rows, by_level, summarise
from mindist_paper.report.style import metric_label, quantity_label, series_styles


def plot_coverage(axes: Any, rows: Rows, *, series: str = "method") -> Any:
    """A line for each method, and the diagonal of a calibrated posterior.

    Below the diagonal a posterior is too sure of itself, above it too cautious.

    Arguments:
        axes: Matplotlib axes.
        rows: Rows of one setting, with columns "coverage_50" to "coverage_95".
        series: The column with a line for each value, such as "epsilon" for one method.

    Example:
        >>> import pandas
        >>> from mindist.report import new_figure
        >>> rows = {"method": "mds", "seed": 0, "dataset": range(4), "coverage_50": [0, 1, 0, 1]}
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_coverage(axes, pandas.DataFrame(rows))
        >>> axes.get_ylabel(), axes.get_legend_handles_labels()[1]
        ('empirical coverage', ['MDS (default)'])
    """
    points = summarise(by_level(rows), "coverage", "level", series)
    if not points:
        return say_no_results(axes, "coverage", "level")
    plot_points(axes, points, series_styles(series, list(points)), "level")
    axes.axline((0, 0), slope=1, color="#555555", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set(
        xlabel=quantity_label("level"),
        ylabel=metric_label("coverage"),
        xlim=(0.44, 1.0),
        ylim=(-0.03, 1.03),
    )
    return axes


__all__ = ["plot_coverage"]
