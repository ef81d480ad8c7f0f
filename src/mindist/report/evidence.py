"""What speaks against a dataset: its distance among null distances, and outlier scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindist.report.style import ADAPTED, CLOUD, GREY, OBSERVED, REFERENCE

BINS = 40
SMALLEST_SHARE = 1e-6
"""Of the largest distance, below which others are drawn at the edge of a logarithmic axis."""


def plot_null_distance(
    axes: Any,
    null: Any,
    distance_obs: float,
    distance_star: float | None = None,
    *,
    threshold: float | None = None,
) -> Any:
    """The squared distance of a dataset among those of simulations, on a logarithmic axis.

    Arguments:
        axes: Matplotlib axes.
        null: Null distances `(n,)`, such as `mds.fitted_.null.distances(N)`.
        distance_obs: At the observed summary.
        distance_star: At the adapted summary, or None where nothing was adapted.
        threshold: The distance above which a test at the chosen level rejects.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> null = torch.rand(500) + 0.5
        >>> axes = plot_null_distance(axes, null, 4.0, 1.2, threshold=1.45)
        >>> axes.get_xscale(), axes.get_legend_handles_labels()[1]
        ('log', ['simulated', 'threshold', 'observed', 'adapted'])
    """
    null = np.asarray(null, dtype=float)
    lines = {"threshold": (threshold, REFERENCE, ":"), "observed": (distance_obs, OBSERVED, "-")}
    lines["adapted"] = (distance_star, ADAPTED, "--")
    given = {
        label: (float(value), colour, line)
        for label, (value, colour, line) in lines.items()
        if value is not None and np.isfinite(value)
    }
    every = np.concatenate([null, [value for value, _, _ in given.values()]])
    floor = max(every.max() * SMALLEST_SHARE, np.finfo(float).tiny)
    inside = np.maximum(null, floor)
    edges = np.geomspace(inside.min(), max(inside.max(), inside.min() * 1.01), BINS + 1)
    axes.hist(inside, edges, color=CLOUD, label="simulated")
    for label, (value, colour, line) in given.items():
        at = max(value, floor)
        axes.axvline(at, color=colour, linestyle=line, linewidth=2, label=label)
    axes.set(title="Distance", xlabel="squared distance", ylabel="simulated datasets", xscale="log")
    axes.legend(fontsize=9, loc="best")
    return axes


def plot_outlier_scores(
    axes: Any, outlier_score: Any, outliers: Any, *, threshold: float | None = None
) -> Any:
    """The outlier scores of all observations, from the highest to the lowest.

    Arguments:
        axes: Matplotlib axes.
        outlier_score: Scores `(N,)` between 0 and 1.
        outliers: Which observations are suspicious, `(N,)`.
        threshold: The score that few simulated observations exceed.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> score = torch.tensor([0.2, 0.9, 0.4])
        >>> axes = plot_outlier_scores(axes, score, score > 0.8, threshold=0.8)
        >>> axes.collections[0].get_offsets().tolist()
        [[3.0, 0.20000000298023224], [2.0, 0.4000000059604645]]
    """
    score, strange = np.asarray(outlier_score, dtype=float), np.asarray(outliers, dtype=bool)
    order = np.argsort(-score, kind="stable")
    rank = np.empty(len(score))
    rank[order] = np.arange(1, len(score) + 1)
    for which, colour, marker, label in (
        (~strange, GREY, "o", "other observations"),
        (strange, OBSERVED, "X", "suspicious observations"),
    ):
        if which.any():
            axes.scatter(
                rank[which], score[which], s=22, color=colour, marker=marker, label=label, lw=0
            )
    if threshold is not None:
        style = {"color": REFERENCE, "linestyle": ":", "linewidth": 1.5}
        axes.axhline(threshold, label="exceeded by 1% of simulated", **style)
    axes.set(title="Outlier scores", xlabel="rank", ylabel="outlier score", ylim=(-0.03, 1.03))
    axes.legend(fontsize=9, loc="best")
    return axes


__all__ = ["plot_null_distance", "plot_outlier_scores"]
