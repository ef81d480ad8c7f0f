"""Posterior samples of a few datasets, before and after adaptation, with the true parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from mindist.report.style import BLACK, method_style, sort_series

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
    axes: Any, samples: Mapping[str, Array], theta: Array, names: Sequence[str] = ()
) -> Any:
    """The posterior of one dataset by several methods.

    One parameter gives histograms, two or more a scatter of the first two with contours that hold
    a half and nine tenths of the samples.

    Arguments:
        axes: Matplotlib axes.
        samples: Method -> samples `(S, d_theta)`.
        theta: True parameters `(d_theta,)`.
        names: Of the parameters.
    """
    theta = np.atleast_1d(np.asarray(theta, dtype=float))
    arrays = {
        method: np.asarray(samples[method], dtype=float).reshape(-1, len(theta))
        for method in sort_series("method", list(samples))
    }
    names = names or [f"$\\theta_{j + 1}$" for j in range(len(theta))]
    plot = plot_histograms if len(theta) == 1 else plot_clouds
    return plot(axes, arrays, theta, names)


def plot_histograms(axes: Any, samples: Mapping[str, Any], theta: Any, names: Sequence[str]) -> Any:
    """Densities of one parameter, with bins common to all methods."""
    edges = np.histogram_bin_edges(np.concatenate([*samples.values(), theta[:, None]]), bins=40)
    for method, drawn in samples.items():
        style = method_style(method)
        axes.hist(drawn[:, 0], edges, density=True, color=style.colour, alpha=0.25)
        axes.hist(
            drawn[:, 0], edges, density=True, histtype="step", color=style.colour, label=style.label
        )
    axes.axvline(theta[0], color=BLACK, linestyle="--", linewidth=1.4, label="true parameter")
    axes.set(xlabel=names[0], yticks=[])
    axes.locator_params(axis="x", nbins=5)
    return axes


def plot_clouds(axes: Any, samples: Mapping[str, Any], theta: Any, names: Sequence[str]) -> Any:
    """Samples and contours of the first two parameters."""
    for method, drawn in samples.items():
        style = method_style(method)
        axes.scatter(
            *drawn[:, :2].T, s=4, color=style.colour, alpha=0.3, linewidths=0, rasterized=True
        )
        plot_contours(axes, drawn[:, :2], style.colour)
        axes.plot([], [], color=style.colour, label=style.label)
    axes.scatter(
        *theta[:2],
        s=110,
        marker="*",
        color=BLACK,
        edgecolors="white",
        label="true parameter",
        zorder=5,
    )
    ends = [np.quantile(drawn[:, :2], [0.005, 0.995], axis=0) for drawn in samples.values()]
    inside = np.concatenate([*ends, theta[None, :2]])
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
