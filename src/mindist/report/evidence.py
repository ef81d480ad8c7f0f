"""The evidence against a dataset: its summary among simulated ones, its distance, its scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import LogLocator

from mindist.report.style import ADAPTED, CLOUD, GREY, OBSERVED, REFERENCE, numbered, plain
from mindist.selftest import SelfTest

MOST_SIMULATIONS = 1_000
ROOM = 1.0  # how far the axes may reach beyond the simulations, in widths of those
INSIDE = (0.005, 0.995)  # quantiles of the simulations between which their width is taken
BINS = 40
SMALLEST_SHARE = 1e-6  # of the largest distance: what is below is drawn at the edge


def plot_summary_space(
    axes: Any,
    cloud: Any,
    s_obs: Any,
    s_star: Any = None,
    *,
    s_ref: Any = None,
    names: Sequence[str] = (),
    dims: tuple[int, int] = (0, 1),
) -> Any:
    """Draw two of the summaries: simulated, observed, adapted, and of the clean data where known.

    Arguments:
        axes: Matplotlib axes.
        cloud: Simulated summaries `(m, d_s)`, of which the first 1,000 are drawn.
        s_obs: Observed summary `(d_s,)`.
        s_star: Adapted summary `(d_s,)`, or None where nothing was adapted.
        s_ref: Summary of the clean data `(d_s,)`, the oracle.
        names: Names of all d_s summaries.
        dims: Which two of them.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_summary_space(axes, torch.randn(500, 3), torch.ones(3), torch.zeros(3))
        >>> axes.get_xlabel(), axes.get_legend_handles_labels()[1]
        ('s₁', ['simulated', 'observed', 'adapted'])
    """
    cloud = np.asarray(cloud, dtype=float)
    names = names or numbered("s", cloud.shape[1])
    chosen = list(dims)
    low, high = limits(cloud[:, chosen], np.asarray(s_obs, dtype=float)[chosen])
    drawn = cloud[:MOST_SIMULATIONS, chosen].T
    quiet = {"color": GREY, "alpha": 0.5, "linewidths": 0}  # visible on light and dark pages
    axes.scatter(*drawn, s=6, rasterized=True, **quiet)
    axes.scatter([], [], s=25, label="simulated", **quiet)  # the legend needs a larger mark
    points = _points(s_obs, s_star, s_ref)
    places = {k: np.clip(np.asarray(s, float)[chosen], low, high) for k, (s, _, _) in points}
    if "adapted" in places:
        arrow = {"arrowstyle": "->", "color": ADAPTED, "linewidth": 1.5}
        axes.annotate("", xy=places["adapted"], xytext=places["observed"], arrowprops=arrow)
    for zorder, (label, (_, colour, marker)) in zip((4, 3, 5), points, strict=False):
        style = {"color": colour, "marker": marker, "edgecolors": "white", "linewidths": 0.8}
        axes.scatter(*places[label], s=90, label=label, zorder=zorder, clip_on=False, **style)
    xlabel, ylabel = (plain(names[j]) for j in dims)
    axes.set(title="Summary space", xlabel=xlabel, ylabel=ylabel)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axes.legend(fontsize=9, loc="best")
    return axes


def plot_summary_pairs(
    grid: Any, cloud: Any, s_obs: Any, s_star: Any = None, *, names: Sequence[str] = ()
) -> Any:
    """Draw every pair of summaries below the diagonal, and each alone on it.

    `grid` is an array of axes `(d_s, d_s)`; other arguments as of `plot_summary_space`.

    Example:
        >>> import torch
        >>> from mindist.report import new_grid
        >>> figure, grid = new_grid(2, 2, (3, 3))
        >>> grid = plot_summary_pairs(grid, torch.randn(500, 2), torch.ones(2), torch.zeros(2))
        >>> [axes.axison for axes in grid.flat], grid[1, 0].get_ylabel()
        ([True, False, True, True], 's₂')
    """
    cloud = np.asarray(cloud, dtype=float)
    dim = cloud.shape[1]
    if np.shape(grid) != (dim, dim):
        raise ValueError(
            f"grid: expected axes of shape ({dim}, {dim}), as many lines and columns as summaries, "
            f"got {np.shape(grid)}. Make them with figure.subplots({dim}, {dim}, squeeze=False)."
        )
    names = names or numbered("s", dim)
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            axes.set_axis_off()
            continue
        if column == row:
            star = None if s_star is None else float(s_star[row])
            plot_summary(axes, cloud[:, row], float(s_obs[row]), star, names[row])
        else:
            plot_summary_space(axes, cloud, s_obs, s_star, names=names, dims=(column, row))
            axes.get_legend().remove()
        axes.set_title("")
        axes.locator_params(nbins=3)
        if row < dim - 1:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
        if 0 < column < row:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
    return grid


def plot_summary(axes: Any, cloud: Any, s_obs: float, s_star: float | None, name: str) -> Any:
    """Draw one summary: a histogram of simulated values `(m,)`, the observed and adapted value."""
    cloud = np.asarray(cloud, dtype=float)
    low, high = (float(end[0]) for end in limits(cloud[:, None], np.array([s_obs])))
    inside = cloud[(cloud >= low) & (cloud <= high)]
    axes.hist(inside, 30, range=(low, high), color=CLOUD, label="simulated")
    points = _points(s_obs, s_star, None)
    for (label, (s, colour, _)), line in zip(points, ("-", "--"), strict=False):
        at = float(np.clip(float(s), low, high))
        axes.axvline(at, color=colour, linewidth=2, linestyle=line, label=label)
    axes.set(xlabel=plain(name), yticks=[], xlim=(low, high))
    return axes


def limits(cloud: Any, s_obs: Any) -> tuple[Any, Any]:
    """Return where axes begin and end: around the simulations, and `s_obs` if it is near."""
    low, high = np.quantile(cloud, INSIDE, axis=0)
    width = np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
    near = np.clip(s_obs, low - ROOM * width, high + ROOM * width)
    margin = 0.09 * width
    return np.minimum(low, near) - margin, np.maximum(high, near) + margin


def _points(s_obs: Any, s_star: Any, s_ref: Any) -> list[tuple[str, tuple[Any, str, str]]]:
    """Return label, summary, colour and marker of what is drawn on top of the simulations."""
    every = {"observed": (s_obs, OBSERVED, "X"), "adapted": (s_star, ADAPTED, "o")}
    every["of the clean data"] = (s_ref, REFERENCE, "*")
    return [(label, point) for label, point in every.items() if point[0] is not None]


def plot_null_distance(
    axes: Any,
    null: Any,
    distance_obs: float,
    distance_star: float | None = None,
    *,
    threshold: float | None = None,
) -> Any:
    """Draw the squared distance of a dataset among those of simulations, on a logarithmic axis.

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
    given = {k: v for k, v in lines.items() if v[0] is not None and np.isfinite(v[0])}
    every = np.concatenate([null, [float(value or 0) for value, _, _ in given.values()]])
    floor = max(every.max() * SMALLEST_SHARE, np.finfo(float).tiny)
    inside = np.maximum(null, floor)
    edges = np.geomspace(inside.min(), max(inside.max(), inside.min() * 1.01), BINS + 1)
    axes.hist(inside, edges, color=CLOUD, label="simulated")
    for label, (value, colour, line) in given.items():
        at = max(float(value or 0), floor)
        axes.axvline(at, color=colour, linestyle=line, linewidth=2, label=label)
    axes.set(title="Distance", xlabel="squared distance", ylabel="simulated datasets", xscale="log")
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))  # labels of more run into each other
    axes.legend(fontsize=9, loc="best")
    return axes


def plot_outlier_scores(axes: Any, outlier_score: Any, outliers: Any) -> Any:
    """Draw the outlier scores `(N,)` from the highest to the lowest, those of `outliers` in colour.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> score = torch.tensor([0.2, 0.9, 0.4])
        >>> axes = plot_outlier_scores(axes, score, score > 0.8)
        >>> axes.collections[0].get_offsets().tolist()
        [[3.0, 0.20000000298023224], [2.0, 0.4000000059604645]]
    """
    score, strange = np.asarray(outlier_score, dtype=float), np.asarray(outliers, dtype=bool)
    rank = np.empty(len(score))
    rank[np.argsort(-score, kind="stable")] = np.arange(1, len(score) + 1)
    for which, colour, marker, label in (
        (~strange, GREY, "o", "other observations"),
        (strange, OBSERVED, "X", "suspicious observations"),
    ):
        if which.any():
            style = {"color": colour, "marker": marker, "label": label, "lw": 0}
            axes.scatter(rank[which], score[which], s=22, **style)
    axes.set(title="Outlier scores", xlabel="rank", ylabel="outlier score", ylim=(-0.03, 1.03))
    axes.legend(fontsize=9, loc="best")
    return axes


def plot_selftest(axes: Any, found: SelfTest) -> Any:
    """Draw, for each kind and share of contamination, the errors before and after adapting.

    Errors are relative to clean data, those after adapting in colour: blue is mended, orange not.

    Example:
        >>> import torch, mindist
        >>> from mindist.report import new_figure
        >>> x = torch.randn(500, 1, 1) + torch.randn(500, 20, 1)
        >>> found = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x).selftest()
        >>> figure, (axes,) = new_figure(1)
        >>> plot_selftest(axes, found).get_xlabel()
        'share of the observations'
    """
    observed, adapted = found.summaries.overall
    colour = adapted.clamp(1, 4).log2().numpy()
    blue_to_orange = LinearSegmentedColormap.from_list("mended", [ADAPTED, "#F4F4F4", OBSERVED])
    axes.imshow(colour, cmap=blue_to_orange, vmin=0, vmax=2, aspect="auto", alpha=0.6)
    for (k, e), value in np.ndenumerate(adapted.numpy()):
        errors = (observed[k, e].item(), value)
        text = " → ".join(f"{v:.2g}" if v < 100 else f"{v:.0f}" for v in errors)
        axes.text(e, k, text, ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(found.shares)), [f"{share:.0%}" for share in found.shares])
    axes.set_yticks(range(len(found.kinds)), found.kinds)
    axes.set(xlabel="share of the observations", title="Errors, observed → adapted")
    axes.grid(False)
    return axes
