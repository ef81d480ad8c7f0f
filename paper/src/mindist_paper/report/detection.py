"""Rejection rates of the misspecification test: its size on clean data, its power otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindist_paper.report.curves import plot_curves
from mindist_paper.report.statistics import Rows

ALPHA = 0.05
"""The level of the test in the paper (section 3)."""


NOMINAL: Mapping[str, Any] = {
    "color": "#555555",
    "linewidth": 1,
    "linestyle": (0, (4, 3)),
    "zorder": 1,
}


def plot_rejections(
    axes: Any,
    rows: Rows,
    by: str = "epsilon",
    *,
    series: str = "method",
    anchors: Mapping[Any, Mapping[float, float]] | None = None,
    alpha: float = ALPHA,
) -> Any:
    """Share of datasets called misspecified, with binomial error bars and a line at the level.

    By "alpha", the nominal level, the line is the diagonal of a test that keeps it.

    Arguments:
        axes: Matplotlib axes.
        rows: Rows with a column "detected".
        by: The column on the horizontal axis.
        series: The column with a line for each value.
        anchors: Published rates, method -> value of `by` -> number.
        alpha: The nominal level, where it is the same everywhere.

    Example:
        >>> import pandas
        >>> from mindist.report import new_figure
        >>> rows = {"method": "mds", "seed": 0, "epsilon": [0, 0.2], "dataset": 0}
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_rejections(axes, pandas.DataFrame({**rows, "detected": [0.0, 1.0]}))
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('contaminated fraction ε', 'rejection rate')
    """
    plot_curves(axes, rows, "detected", by, series=series, anchors=anchors)
    if by == "alpha":
        axes.axline((0, 0), slope=1, **NOMINAL)
        return axes
    axes.axhline(alpha, **NOMINAL)
    axes.annotate(
        f"α = {alpha:g}",
        (1, alpha),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color="#333333",
    )
    axes.set_ylim(-0.03, 1.03)
    return axes


__all__ = ["ALPHA", "plot_rejections"]
