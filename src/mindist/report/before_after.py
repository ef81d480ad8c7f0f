"""Draw what adaptation changes: the posterior, and the summaries that the posterior predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from mindist.report.style import ADAPTED, BLACK, OBSERVED, numbered, plain

BEFORE, AFTER = "at the observed summary", "at the adapted summary"
MASSES = (0.5, 0.9)  # shares of the samples that the contours hold
APART = 0.16  # distance of the two intervals of a summary, in lines
WIDE = 25.0  # standard deviations from which the axis is logarithmic, but for its middle


def plot_posteriors(
    axes: Any,
    before: Any,
    after: Any = None,
    theta: Any = None,
    *,
    names: Sequence[str] = (),
    labels: tuple[str, str] = (BEFORE, AFTER),
) -> Any:
    """Draw posterior samples before and after adaptation, and the true parameters where known.

    One parameter gives histograms, two or more a scatter of the first two with contours that hold a
    half and nine tenths of the samples `(n, d_theta)`: `before` given the observed summary, `after`
    given the adapted one; None leaves one out. `theta` are the true parameters `(d_theta,)`,
    `labels` those of both posteriors in the legend.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_posteriors(axes, torch.randn(200, 2) + 3, torch.randn(200, 2))
        >>> axes.get_legend_handles_labels()[1]
        ['at the observed summary', 'at the adapted summary']
    """
    samples = dict(zip(labels, (before, after), strict=True))
    samples = {label: drawn for label, drawn in samples.items() if drawn is not None}
    if not samples:
        raise ValueError("before, after: expected samples (n, d_theta) of one or both, got None.")
    dim = np.shape(next(iter(samples.values())))[-1]
    colours = dict(zip(labels, (OBSERVED, ADAPTED), strict=True))
    shown = [plain(name) for name in names or numbered("θ", dim)]
    plot_samples(axes, samples, theta, shown, colours)
    axes.set(title="Posterior")
    axes.legend(fontsize=9, loc="best")
    return axes


def plot_samples(axes: Any, samples: Any, theta: Any, names: Sequence[str], colours: Any) -> Any:
    """Draw samples `(S, d_theta)` by label: histograms of one parameter, or clouds of two."""
    arrays = {label: np.asarray(drawn, dtype=float) for label, drawn in samples.items()}
    dim = next(iter(arrays.values())).shape[-1]
    known = np.asarray([] if theta is None else theta, dtype=float).reshape(-1, dim)
    if dim == 1:
        edges = np.histogram_bin_edges(np.concatenate([*arrays.values(), known]), bins=40)
        for label, drawn in arrays.items():
            style = {"density": True, "color": colours[label]}
            axes.hist(drawn[:, 0], edges, alpha=0.25, **style)
            axes.hist(drawn[:, 0], edges, histtype="step", label=label, **style)
        for value in known[:, 0]:
            axes.axvline(value, color=BLACK, linestyle="--", linewidth=1.4, label="true parameter")
        axes.set(xlabel=names[0], yticks=[])
        axes.locator_params(axis="x", nbins=5)
        return axes
    for label, drawn in arrays.items():
        quiet = {"s": 4, "alpha": 0.3, "linewidths": 0, "rasterized": True}
        axes.scatter(*drawn[:, :2].T, color=colours[label], **quiet)
        _contours(axes, drawn[:, :2], colours[label])
        axes.plot([], [], color=colours[label], label=label)
    for value in known:
        star = {"s": 110, "marker": "*", "color": BLACK, "edgecolors": "white", "zorder": 5}
        axes.scatter(*value[:2], label="true parameter", **star)
    ends = [np.quantile(drawn[:, :2], [0.005, 0.995], axis=0) for drawn in arrays.values()]
    inside = np.concatenate([*ends, known[:, :2]])
    margin = 0.1 * (inside.max(0) - inside.min(0)) + 1e-12
    low, high = inside.min(0) - margin, inside.max(0) + margin
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel=names[0], ylabel=names[1])
    axes.locator_params(nbins=4)
    return axes


def _contours(axes: Any, drawn: Any, colour: str) -> None:
    """Draw contours of a kernel density estimate, where there is a density."""
    if len(drawn) < 10 or np.linalg.matrix_rank(np.cov(drawn.T)) < 2:
        return
    density = gaussian_kde(drawn.T)
    levels = sorted(np.quantile(density(drawn.T), [1 - mass for mass in MASSES]))
    low, high = drawn.min(0), drawn.max(0)
    margin = 0.15 * (high - low)
    first, second = np.meshgrid(*np.linspace(low - margin, high + margin, 60).T)
    values = density(np.stack([first.ravel(), second.ravel()])).reshape(first.shape)
    if levels[0] < levels[1]:
        axes.contour(first, second, values, levels=levels, colors=colour, linewidths=1.4)


def plot_predictive(
    axes: Any,
    before: Any,
    after: Any,
    s_obs: Any,
    s_star: Any,
    *,
    centre: Any,
    scale: Any,
    names: Sequence[str] = (),
) -> Any:
    """Draw summaries of replicated data, and those that they should match.

    For each summary the middle 50% (thick) and 90% (thin) of its replications `(n, d_s)`, simulated
    from the posterior at the observed summary (`before`) and at the adapted one (`after`), of which
    None leaves one out. What was queried, `s_obs` and `s_star`, should lie among them. Units are
    those of simulated summaries, with means `centre` and standard deviations `scale`, `(d_s,)`.

    Example:
        >>> import torch
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> drawn, zero, one = torch.randn(50, 2), torch.zeros(2), torch.ones(2)
        >>> axes = plot_predictive(axes, drawn + 3, drawn, 3 * one, zero, centre=zero, scale=one)
        >>> [text.get_text() for text in axes.get_yticklabels()]
        ['s₁', 's₂']
    """
    centre, scale = np.asarray(centre, dtype=float), np.asarray(scale, dtype=float)
    scale = np.where(scale > 0, scale, 1.0)
    lines = np.arange(len(centre))
    furthest = 0.0
    for label, drawn, s, offset, colour, marker in (
        (BEFORE, before, s_obs, -APART, OBSERVED, "X"),
        (AFTER, after, s_star, APART, ADAPTED, "o"),
    ):
        if drawn is None or not len(drawn):
            continue
        y = lines + offset
        z = (np.asarray(drawn, dtype=float) - centre) / scale
        for ends, width in (((0.05, 0.95), 1.6), ((0.25, 0.75), 5.0)):
            axes.hlines(y, *np.quantile(z, ends, axis=0), color=colour, linewidth=width)
        point = (np.asarray(s, dtype=float) - centre) / scale
        edge = {"edgecolors": "white", "linewidths": 0.8, "zorder": 3}
        axes.scatter(point, y, s=80, marker=marker, color=colour, label=label, **edge)
        furthest = max(furthest, np.abs(point).max(), np.abs(np.quantile(z, (0.05, 0.95))).max())
    shown = [plain(name) for name in names or numbered("s", len(centre))]
    axes.set(title="Predicted summaries", xlabel="sd from the mean of simulations")
    axes.set(yticks=lines, yticklabels=shown, ylim=(len(centre) - 0.5, -0.5))
    if furthest > WIDE:
        axes.set_xscale("symlog", linthresh=3.0)
    axes.grid(False, axis="y")
    axes.legend(fontsize=9, loc="best")
    return axes
