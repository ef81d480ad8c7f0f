"""Posterior samples of a few datasets, before and after adaptation, with the true parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from mindist.report.style import BLACK, Style, method_style, sort_series

MASSES = (0.5, 0.9)
"""What share of the samples the contours hold."""

Array = Any
"""Anything that NumPy takes for an array, tensors included."""


@dataclass(frozen=True)
class Posteriors:
    """Posterior samples that were kept for a figure.

    Arguments:
        samples: Method -> samples `(B, S, d_theta)` of B datasets, or a list of B.
        theta: True parameters `(B, d_theta)`.
        names: Of the parameters.
        titles: Of the datasets.

    Example:
        >>> kept = Posteriors({"npe": np.zeros((2, 100, 1))}, np.zeros((2, 1)), ["rate"])
        >>> len(kept)
        2
    """

    samples: Mapping[str, Array]
    theta: Array
    names: Sequence[str] = ()
    titles: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.theta)

    @classmethod
    def of_frames(cls, frames: Mapping[str, Any], names: Sequence[str] = ()) -> Posteriors:
        """From what the store kept of each method: frames with columns "theta" and "samples"."""
        samples = {method: list(frame["samples"]) for method, frame in frames.items()}
        theta = list(next(iter(frames.values()))["theta"]) if frames else []
        return cls(samples, theta, names)


def plot_posterior_samples(
    axes: Any,
    samples: Mapping[str, Array],
    theta: Array | None,
    names: Sequence[str] = (),
    *,
    styles: Mapping[str, Style] | None = None,
) -> Any:
    """The posterior of one dataset by several methods.

    One parameter gives histograms, two or more a scatter of the first two with contours that hold
    a half and nine tenths of the samples.

    Arguments:
        axes: Matplotlib axes.
        samples: Method -> samples `(S, d_theta)`.
        theta: True parameters `(d_theta,)`, or None where nobody knows.
        names: Of the parameters.
        styles: Method -> colour and label; by default those of the methods of the paper.

    Example:
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> samples = {"npe": np.zeros((5, 2)), "mds": np.ones((5, 2))}
        >>> axes = plot_posterior_samples(axes, samples, [1, 1], ["rate", "level"])
        >>> axes.get_xlabel(), axes.get_legend_handles_labels()[1]
        ('rate', ['NPE', 'MDS (default)', 'true parameter'])
    """
    known = np.zeros((0, np.shape(next(iter(samples.values())))[-1])) if theta is None else theta
    known = np.atleast_1d(np.asarray(known, dtype=float))
    known = known if known.ndim == 2 else known[None]
    dim = known.shape[1]
    arrays = {
        method: np.asarray(samples[method], dtype=float).reshape(-1, dim)
        for method in (samples if styles else sort_series("method", list(samples)))
    }
    looks = {method: (styles or {}).get(method) or method_style(method) for method in arrays}
    names = names or [f"$\\theta_{j + 1}$" for j in range(dim)]
    plot = plot_histograms if dim == 1 else plot_clouds
    return plot(axes, arrays, known, names, looks)


def plot_histograms(
    axes: Any,
    samples: Mapping[str, Any],
    theta: Any,
    names: Sequence[str],
    styles: Mapping[str, Style],
) -> Any:
    """Densities of one parameter, with common bins; theta is `(1, 1)` or `(0, 1)`."""
    edges = np.histogram_bin_edges(np.concatenate([*samples.values(), theta]), bins=40)
    for method, drawn in samples.items():
        style = styles[method]
        axes.hist(drawn[:, 0], edges, density=True, color=style.colour, alpha=0.25)
        axes.hist(
            drawn[:, 0], edges, density=True, histtype="step", color=style.colour, label=style.label
        )
    for value in theta[:, 0]:
        axes.axvline(value, color=BLACK, linestyle="--", linewidth=1.4, label="true parameter")
    axes.set(xlabel=names[0], yticks=[])
    axes.locator_params(axis="x", nbins=5)
    return axes


def plot_clouds(
    axes: Any,
    samples: Mapping[str, Any],
    theta: Any,
    names: Sequence[str],
    styles: Mapping[str, Style],
) -> Any:
    """Samples and contours of the first two parameters; theta is `(1, d)` or `(0, d)`."""
    for method, drawn in samples.items():
        style = styles[method]
        axes.scatter(
            *drawn[:, :2].T, s=4, color=style.colour, alpha=0.3, linewidths=0, rasterized=True
        )
        plot_contours(axes, drawn[:, :2], style.colour)
        axes.plot([], [], color=style.colour, label=style.label)
    for value in theta:
        axes.scatter(
            *value[:2],
            s=110,
            marker="*",
            color=BLACK,
            edgecolors="white",
            label="true parameter",
            zorder=5,
        )
    ends = [np.quantile(drawn[:, :2], [0.005, 0.995], axis=0) for drawn in samples.values()]
    inside = np.concatenate([*ends, theta[:, :2]])
    margin = 0.1 * (inside.max(0) - inside.min(0)) + 1e-12
    low, high = inside.min(0) - margin, inside.max(0) + margin
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel=names[0], ylabel=names[1])
    axes.locator_params(nbins=4)
    return axes


def plot_contours(axes: Any, drawn: Any, colour: str) -> Any:
    """Contours of a kernel density estimate, where there is a density."""
    if len(drawn) < 10 or np.linalg.matrix_rank(np.cov(drawn.T)) < 2:
        return axes
    density = gaussian_kde(drawn.T)
    levels = sorted(np.quantile(density(drawn.T), [1 - mass for mass in MASSES]))
    low, high = drawn.min(0), drawn.max(0)
    margin = 0.15 * (high - low)
    grid = [np.linspace(a, b, 60) for a, b in zip(low - margin, high + margin, strict=True)]
    first, second = np.meshgrid(*grid)
    values = density(np.stack([first.ravel(), second.ravel()])).reshape(first.shape)
    if levels[0] < levels[1]:
        axes.contour(first, second, values, levels=levels, colors=colour, linewidths=1.4)
    return axes


__all__ = ["Posteriors", "plot_posterior_samples"]
