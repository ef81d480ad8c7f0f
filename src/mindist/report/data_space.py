r"""The observations of one dataset as they are: points, series or images.

Where an observation is a point in the plane, contours show where the decoder has its mass: the
decoded kernel density :math:`\langle \mu(s), z(x) \rangle` of the paper's Figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from mindist import checks
from mindist.fitted import Fitted
from mindist.report.images import plot_images
from mindist.report.style import CLOUD, OBSERVED

KINDS = ("values", "points", "series", "images")
LEAST_SIDE = 8
"""Of an image; what is narrower are a few series side by side."""

MOST_MARKS = 400
"""Observations of a kind that are drawn; of more, as many evenly spread ones."""

IMAGES_IN_A_ROW, MOST_ROWS = 6, 2
GRID = 120
LEVELS = (0.5, 0.9)
"""Of the contours, as shares of the largest density."""

STROKE = 12
"""The length of a stroke below a histogram, in points."""

LABELS = ("other observations", "suspicious observations")


def data_kind(event_shape: Sequence[int]) -> str:
    """How observations of a shape are drawn.

    Example:
        >>> [data_kind(shape) for shape in [(), (2,), (25,), (25, 2), (32, 32), (1, 32, 32)]]
        ['values', 'points', 'series', 'series', 'images', 'images']
    """
    shape = tuple(event_shape)
    if int(np.prod(shape, dtype=int)) == 1:
        return "values"
    if shape == (2,):
        return "points"
    return "images" if len(shape) >= 2 and min(shape[-2:]) >= LEAST_SIDE else "series"


def plot_data_space(
    axes: Any,
    x: Any,
    outliers: Any = None,
    *,
    score: Any = None,
    kind: str | None = None,
    labels: tuple[str, str] = LABELS,
    mark: str = "",
) -> Any:
    """The observations of one dataset, those that are suspicious in colour and on top.

    Arguments:
        axes: Matplotlib axes.
        x: Observations `(N, *event)`.
        outliers: Which of them are suspicious, `(N,)`; by default none.
        score: Outlier scores `(N,)`: of images, those with the highest are drawn.
        kind: `"values"` (a histogram), `"points"` (the first two coordinates), `"series"` (a line
            for each observation: its first column, or all its numbers in order) or `"images"`
            (some of each sort, with their index; channels averaged); by default what suits the
            shape of an observation.
        labels: Of the others and of the suspicious ones, for the legend.
        mark: If given, points and lines have the id `{mark}{index}` in an SVG file.

    Example:
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> x = torch.randn(50, 2)
        >>> axes = plot_data_space(axes, x, x[:, 0] > 1)
        >>> axes.get_legend_handles_labels()[1]
        ['other observations', 'suspicious observations']
    """
    values = np.asarray(checks.as_tensor(x, "x").detach().cpu(), dtype=float)
    strange = np.zeros(len(values), dtype=bool) if outliers is None else np.asarray(outliers)
    if strange.shape != values.shape[:1]:
        raise ValueError(
            f"outliers: expected shape ({len(values)},), one for each observation of x, got "
            f"{strange.shape}."
        )
    kind = checks.choice(kind or data_kind(values.shape[1:]), KINDS, "kind")
    draw = {"values": _values, "points": _points, "series": _series, "images": _images}[kind]
    shown = {
        label: np.flatnonzero(which) if kind == "images" else spread_out(np.flatnonzero(which))
        for label, which in zip(labels, (~strange, strange), strict=True)
    }
    if score is not None and kind == "images":
        highest = -np.asarray(score, dtype=float)
        shown = {k: v[np.argsort(highest[v], kind="stable")] for k, v in shown.items()}
    return draw(axes, values, {k: v for k, v in shown.items() if len(v)}, labels[1], mark)


def spread_out(index: Any) -> Any:
    """At most `MOST_MARKS` of some indices, evenly spread.

    Example:
        >>> len(spread_out(np.arange(10_000))), spread_out(np.arange(3)).tolist()
        (400, [0, 1, 2])
    """
    if len(index) <= MOST_MARKS:
        return index
    return index[np.linspace(0, len(index) - 1, MOST_MARKS).astype(int)]


def _values(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> Any:
    """A histogram of all, and a stroke below for each that is suspicious."""
    flat = x.reshape(len(x))
    axes.hist(flat, np.histogram_bin_edges(flat, 40), color=CLOUD, label="all observations")
    for label, index in shown.items():
        if label == strange:
            style = {"color": OBSERVED, "marker": "|", "markersize": STROKE, "linestyle": "none"}
            down = ScaledTranslation(0, -(STROKE / 2 + 4) / 72, axes.figure.dpi_scale_trans)
            axes.plot(
                flat[index],
                np.zeros(len(index)),
                transform=axes.get_xaxis_transform() + down,
                clip_on=False,
                label=label,
                **style,
            )
    axes.set(title="Data space", xlabel="value", ylabel="observations")
    axes.yaxis.get_major_locator().set_params(integer=True)  # they are counted
    axes.tick_params(axis="x", pad=STROKE + 4)  # below the strokes
    axes.legend(fontsize=9)
    return axes


def _points(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> Any:
    flat = x.reshape(len(x), -1)[:, :2]
    for label, index in shown.items():
        bad = label == strange
        style = {"marker": "x", "markersize": 6, "markeredgewidth": 1.8} if bad else {}
        style = style or {"marker": "o", "markersize": 4, "markeredgewidth": 0}
        for i in index:
            (drawn,) = axes.plot(
                *flat[i], color=OBSERVED if bad else CLOUD, linestyle="none", **style
            )
            if mark:
                drawn.set_gid(f"{mark}{i}")
        drawn.set_label(label)
    axes.set(
        title="Data space", xlabel="$x_1$", ylabel="$x_2$", aspect="equal", adjustable="datalim"
    )
    axes.legend(fontsize=9, loc="best")
    return axes


def _series(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> Any:
    lines = series_of(x)
    for label, index in shown.items():
        bad = label == strange
        style = {"linewidth": 1.2, "alpha": 0.9} if bad else {"linewidth": 0.8, "alpha": 0.6}
        for i in index:
            (drawn,) = axes.plot(lines[i], color=OBSERVED if bad else CLOUD, **style)
            if mark:
                drawn.set_gid(f"{mark}{i}")
        drawn.set_label(label)
    axes.set(title="Data space", xlabel="place in the series", ylabel="value")
    axes.legend(fontsize=9, loc="best")
    return axes


def series_of(x: Any) -> Any:
    """The lines `(N, T)` that stand for observations: their first column, or all numbers in order.

    Example:
        >>> series_of(np.zeros((3, 25, 2))).shape, series_of(np.zeros((3, 4, 2))).shape
        ((3, 25), (3, 8))
    """
    columns = x.reshape(len(x), len(x[0]), -1)
    return columns[..., 0] if columns.shape[1] >= LEAST_SIDE else x.reshape(len(x), -1)


def _images(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> Any:
    """Some images of each sort, with their index in a corner."""
    images = x.reshape(len(x), -1, *x.shape[-2:]).mean(1)
    rows: dict[str, Any] = {}
    for label, index in reversed(list(shown.items())):
        most = MOST_ROWS if label == strange or len(shown) == 1 else 1
        for row in range(min(most, -(-len(index) // IMAGES_IN_A_ROW))):
            part = index[row * IMAGES_IN_A_ROW :][:IMAGES_IN_A_ROW]
            rows[label.replace(" observations", "") + " " * row] = part
    plot_images(axes, {label: images[index] for label, index in rows.items()})
    height, width = images.shape[1:]
    gap = max(1, width // 16)
    box = {"facecolor": "black", "edgecolor": "none", "alpha": 0.65, "pad": 1.2}
    for i, index in enumerate(rows.values()):
        for j, n in enumerate(index):
            place = (j * (width + gap) + 1, i * (height + gap) + 1)
            axes.text(*place, f"{n}", fontsize=9, color="white", va="top", bbox=box)
    axes.set(title="Data space")
    return axes


def plot_density_contours(axes: Any, fitted: Fitted, at: Mapping[str, tuple[Tensor, str]]) -> Any:
    """Where the decoder has its mass in the plane, for some summaries.

    Contours at a half and at nine tenths of the largest decoded density, in and around what the
    axes show already.

    Arguments:
        axes: Matplotlib axes, of observations `(N, 2)`.
        fitted: A fitted estimator's parts, `mds.fitted_`.
        at: Label -> summary `(d_s,)` and colour.

    Example:
        >>> import mindist
        >>> from mindist.report import new_figure
        >>> x = torch.randn(500, 20, 2)
        >>> mds = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_data_space(axes, x[0])
        >>> axes = plot_density_contours(axes, mds.fitted_, {"mean": (torch.zeros(2), "#0072B2")})
        >>> axes.get_legend_handles_labels()[1]
        ['other observations', 'mean']
    """
    span = [_wider(*ends) for ends in (axes.get_xlim(), axes.get_ylim())]
    seen = [axes.dataLim.get_points().copy()]
    first, second = (line.to(fitted.probe.device) for line in span)
    z = fitted.embedding(torch.cartesian_prod(first, second).to(fitted.probe.dtype)).double()
    for label, (s, colour) in at.items():
        density = (z @ fitted.decoder(s[None].double())[0]).reshape(GRID, GRID).T.detach().cpu()
        levels = [share * float(density.max()) for share in LEVELS]
        drawn = axes.contour(*span, density, levels=levels, colors=colour, linewidths=1.5)
        seen += [line for lines in drawn.allsegs for line in lines if len(line)]
        axes.plot([], [], color=colour, label=label)
    every = np.concatenate(seen)
    axes.dataLim.set_points(
        np.stack([every.min(0), every.max(0)])
    )  # of what is drawn, not of the grid
    axes.autoscale_view()
    axes.legend(fontsize=9, loc="best")
    return axes


def _wider(low: float, high: float) -> Tensor:
    """A grid that reaches twice as far."""
    margin = (high - low) / 2
    return torch.linspace(float(low - margin), float(high + margin), GRID)


__all__ = ["KINDS", "data_kind", "plot_data_space", "plot_density_contours"]
