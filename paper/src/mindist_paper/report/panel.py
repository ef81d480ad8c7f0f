"""What a panel of a figure shows: which column of the rows, against which, for which rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Anchors = Mapping[str, Mapping[str, Mapping[float, float]]]
"""Published values: metric -> method -> value of `by` -> number; see `panel_anchors`."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a column of the rows against another, a line for each method.

    Three kinds of panel become a row of axes: "coverage" without a fixed epsilon (one for each),
    "posterior" (one for each dataset kept), "images" and "trajectories" (one for each example).
    The last three draw what the `material` of `mindist.report.draw_figure` gives for them.

    Arguments:
        metric: The column on the vertical axis: "rmse", "reference_mmd", "predictive_mmd",
            "summary_distance", "summary_distance_standardised", "coverage" (draws level by level),
            "detected" (rejection rates), "posterior", "images", "trajectories", or any other
            column of numbers.
        by: The column on the horizontal axis: "epsilon", "delta", "num_obs", "dim", "bandwidth".
            Words are drawn side by side in the order of the rows.
        title: Above the axes.
        where: Only rows with these values; a list or tuple of values lets through each of them.
        log: Whether the vertical axis is logarithmic.
        series: The column that has a line for each of its values.

    Example:
        >>> Panel("rmse", where={"task": "oup"}, log=True).by
        'epsilon'
    """

    metric: str
    by: str = "epsilon"
    title: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    log: bool = False
    series: str = "method"


def panel_anchors(panel: Panel, anchors: Anchors) -> Mapping[str, Mapping[float, float]]:
    """Published values that belong on a panel: method -> value of `by` -> number.

    The key "rmse" speaks of the RMSE by epsilon; by anything else it is "rmse/delta" and the like,
    so that a value by epsilon never lands on an axis of something else.

    Example:
        >>> anchors = {"rmse": {"npe": {0.1: 0.17}}}
        >>> panel_anchors(Panel("rmse"), anchors), panel_anchors(Panel("rmse", by="delta"), anchors)
        ({'npe': {0.1: 0.17}}, {})
    """
    if panel.series != "method":
        return {}
    key = panel.metric if panel.by == "epsilon" else f"{panel.metric}/{panel.by}"
    return anchors.get(key, {})


__all__ = ["Anchors", "Panel", "panel_anchors"]
