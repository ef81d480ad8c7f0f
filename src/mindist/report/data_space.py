r"""Draw the observations of one dataset: values, points, series or images.

Where an observation is a point in the plane, contours show where the decoder has its mass: the
decoded kernel density :math:`\langle \mu(s), z(x) \rangle` of the paper's Figure 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from mindist import checks
from mindist.fitted import Fitted
from mindist.report.style import CLOUD, OBSERVED

KINDS = ("values", "points", "series", "images")
LEAST_SIDE = 8  # of an image; what is narrower are a few series side by side
MOST_MARKS = 400  # observations drawn of a kind; of more, an evenly spread part
IMAGES_IN_A_ROW, MOST_ROWS = 6, 2
GRID = 120
LEVELS = (0.5, 0.9)  # of the contours, as shares of the largest density
STROKE = 12  # length of a stroke below a histogram, in points
LABELS = ("other observations", "suspicious observations")


def data_kind(event_shape: Sequence[int]) -> str:
    """Return how observations of a shape are drawn, one of `KINDS`."""
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
    """Draw the observations of one dataset, suspicious ones in colour and on top.

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
        said = f"shape ({len(values)},), one for each observation of x"
        raise checks.wrong("outliers", said, strange.shape)
    kind = checks.choice(kind or data_kind(values.shape[1:]), KINDS, "kind")
    draw = {"values": _values, "points": _points, "series": _series, "images": _images}[kind]
    shown = {}
    for label, which in zip(labels, (~strange, strange), strict=True):
        index = np.flatnonzero(which)
        if kind == "images" and score is not None:
            index = index[np.argsort(-np.asarray(score, dtype=float)[index], kind="stable")]
        elif kind != "images" and len(index) > MOST_MARKS:
            index = index[np.linspace(0, len(index) - 1, MOST_MARKS).astype(int)]
        if len(index):
            shown[label] = index
    draw(axes, values, shown, labels[1], mark)
    axes.set(title="Data space")
    if kind != "images":
        axes.legend(fontsize=9, loc="best")
    return axes


def _values(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> None:
    """Draw a histogram of all values, and a stroke below for each that is suspicious."""
    flat = x.reshape(len(x))
    axes.hist(flat, np.histogram_bin_edges(flat, 40), color=CLOUD, label="all observations")
    if strange in shown:
        at = flat[shown[strange]]
        style = {"color": OBSERVED, "marker": "|", "markersize": STROKE, "linestyle": "none"}
        down = ScaledTranslation(0, -(STROKE / 2 + 4) / 72, axes.figure.dpi_scale_trans)
        place = {"transform": axes.get_xaxis_transform() + down, "clip_on": False}
        axes.plot(at, np.zeros(len(at)), label=strange, **place, **style)
    axes.set(xlabel="value", ylabel="observations")
    axes.yaxis.get_major_locator().set_params(integer=True)  # they are counted
    axes.tick_params(axis="x", pad=STROKE + 4)  # below the strokes


def _points(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> None:
    usual = {"marker": "o", "markersize": 4, "markeredgewidth": 0, "color": CLOUD}
    odd = {"marker": "x", "markersize": 6, "markeredgewidth": 1.8, "color": OBSERVED}
    points = x.reshape(len(x), -1)[:, :2, None]
    _draw_each(axes, points, shown, {strange: odd}, usual | {"linestyle": "none"}, mark)
    axes.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal", adjustable="datalim")


def _series(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> None:
    usual = {"linewidth": 0.8, "alpha": 0.6, "color": CLOUD}
    odd = {"linewidth": 1.2, "alpha": 0.9, "color": OBSERVED}
    _draw_each(axes, series_of(x)[:, None], shown, {strange: odd}, usual, mark)
    axes.set(xlabel="place in the series", ylabel="value")


def _draw_each(axes: Any, lines: Any, shown: Any, styles: Any, usual: Any, mark: str) -> None:
    """Draw each observation as an artist of its own, with an id where `mark` is given."""
    for label, index in shown.items():
        for i in index:
            (drawn,) = axes.plot(*lines[i], **usual | styles.get(label, {}))
            if mark:
                drawn.set_gid(f"{mark}{i}")
        drawn.set_label(label)


def series_of(x: Any) -> Any:
    """Return lines `(N, T)` that stand for observations: first column, or all numbers in order."""
    columns = x.reshape(len(x), len(x[0]), -1)
    return columns[..., 0] if columns.shape[1] >= LEAST_SIDE else x.reshape(len(x), -1)


def _images(axes: Any, x: Any, shown: Mapping[str, Any], strange: str, mark: str) -> None:
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


def plot_images(axes: Any, rows: Mapping[str, Any]) -> Any:
    """Draw images `(n, height, width)`, a row for each label, each row in its own scale of greys.

    Example:
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_images(axes, {"noise": np.random.default_rng(0).normal(size=(3, 8, 8))})
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['noise']
    """
    arrays = {label: np.asarray(images, dtype=float) for label, images in rows.items()}
    height, width = next(iter(arrays.values())).shape[-2:]
    gap = max(1, width // 16)
    for i, images in enumerate(arrays.values()):
        low, high = np.quantile(images, [0.005, 0.995])
        grey = {"cmap": "gray", "vmin": low, "vmax": high if high > low else low + 1}
        for j, image in enumerate(images):
            left, top = j * (width + gap), i * (height + gap)
            place = (left, left + width, top + height, top)
            axes.imshow(image, extent=place, interpolation="nearest", **grey)
    most = max(len(images) for images in arrays.values())
    middles = [i * (height + gap) + height / 2 for i in range(len(arrays))]
    axes.set(xlim=(0, most * (width + gap) - gap), ylim=(len(arrays) * (height + gap) - gap, 0))
    axes.set(xticks=[], yticks=middles, yticklabels=list(arrays), aspect="equal")
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return axes


def plot_density_contours(axes: Any, fitted: Fitted, at: Mapping[str, tuple[Tensor, str]]) -> Any:
    """Draw where the decoder of `mds.fitted_` has its mass in the plane, for some summaries.

    Contours at a half and at nine tenths of the largest decoded density, in and around what the
    axes show already; `at` has label -> summary `(d_s,)` and colour.

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
    seen_now = (axes.get_xlim(), axes.get_ylim())
    ends = [(low - (high - low) / 2, high + (high - low) / 2) for low, high in seen_now]
    span = [torch.linspace(float(low), float(high), GRID) for low, high in ends]
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
    # The limits follow what is drawn, not the grid.
    axes.dataLim.set_points(np.stack([every.min(0), every.max(0)]))
    axes.autoscale_view()
    axes.legend(fontsize=9, loc="best")
    return axes
