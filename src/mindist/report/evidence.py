r"""The evidence against a dataset: its summary among simulated ones, distance, scores, and itself.

Where an observation is a point in the plane, contours show where the decoder has its mass: the
decoded kernel density :math:`\langle \mu(s), z(x) \rangle` of the paper's Figure 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import LogLocator
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from mindist import checks
from mindist.fitted import Fitted
from mindist.report.style import ADAPTED, CLOUD, GREY, OBSERVED, REFERENCE, numbered, plain
from mindist.selftest import SelfTest

MOST_SIMULATIONS = 1_000
ROOM = 1.0  # how far the axes may reach beyond the simulations, in widths of those
INSIDE = (0.005, 0.995)  # quantiles of the simulations between which their width is taken
BINS = 40
SMALLEST_SHARE = 1e-6  # of the largest distance: what is below is drawn at the edge
LEAST_SIDE = 8  # of an image; what is narrower are a few series side by side
MOST_MARKS = 400  # observations drawn of a kind; of more, an evenly spread part
IMAGES_IN_A_ROW, MOST_ROWS = 6, 2
GRID = 120
LEVELS = (0.5, 0.9)  # of the contours, as shares of the largest density
STROKE = 12  # length of a stroke below a histogram, in points
LABELS = ("other observations", "suspicious observations")


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

    Of the simulated summaries `(m, d_s)` the first 1,000 are drawn. All others are `(d_s,)`:
    `s_star` is None where nothing was adapted, `s_ref` is the summary of the clean data, the
    oracle. `names` are those of all summaries, `dims` says which two to draw.

    Example:
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
    points = _marks(s_obs, s_star, s_ref)
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
        >>> from mindist.report import new_grid
        >>> figure, grid = new_grid(2, 2, (3, 3))
        >>> grid = plot_summary_pairs(grid, torch.randn(500, 2), torch.ones(2), torch.zeros(2))
        >>> [axes.axison for axes in grid.flat], grid[1, 0].get_ylabel()
        ([True, False, True, True], 's₂')
    """
    cloud = np.asarray(cloud, dtype=float)
    dim = cloud.shape[1]
    if np.shape(grid) != (dim, dim):
        then = f"Make them with figure.subplots({dim}, {dim}, squeeze=False)."
        raise checks.wrong("grid", f"axes of shape ({dim}, {dim})", np.shape(grid), then)
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
    low, high = (float(end[0]) for end in limits(cloud[:, None], np.array([s_obs])))
    inside = cloud[(cloud >= low) & (cloud <= high)]
    axes.hist(inside, 30, range=(low, high), color=CLOUD, label="simulated")
    points = _marks(s_obs, s_star, None)
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


def _marks(s_obs: Any, s_star: Any, s_ref: Any) -> list[tuple[str, tuple[Any, str, str]]]:
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

    Null distances `(n,)` are such as `mds.fitted_.null.distances(N)`; `distance_star`, at the
    adapted summary, is None where nothing was adapted; above `threshold` the test rejects.

    Example:
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
    looks = ((~strange, GREY, "o"), (strange, OBSERVED, "X"))
    for label, (which, colour, marker) in zip(LABELS, looks, strict=True):
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
        >>> import mindist
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


def data_kind(event_shape: Sequence[int]) -> str:
    """Return how observations of a shape are drawn: values, points, series or images."""
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
    kinds = {"values": _values, "points": _points, "series": _series, "images": _images}
    kind = checks.choice(kind or data_kind(values.shape[1:]), tuple(kinds), "kind")
    shown = {}
    for label, which in zip(labels, (~strange, strange), strict=True):
        index = np.flatnonzero(which)
        if kind == "images" and score is not None:
            index = index[np.argsort(-np.asarray(score, dtype=float)[index], kind="stable")]
        elif kind != "images" and len(index) > MOST_MARKS:
            index = index[np.linspace(0, len(index) - 1, MOST_MARKS).astype(int)]
        if len(index):
            shown[label] = index
    kinds[kind](axes, values, shown, labels[1], mark)
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
        low, high = np.nanquantile(images, [0.005, 0.995])
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
        mean = fitted.wide.decoder(s[None].double())[0]
        density = (z @ mean).reshape(GRID, GRID).T.detach().cpu()
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
