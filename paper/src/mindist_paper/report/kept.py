"""What figures show besides rows: posterior samples of a few datasets, images, time series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindist.report.before_after import plot_samples
from mindist.report.style import BLUE, GREY, VERMILION
from mindist_paper.report.style import GREEN, method_style, sort_series

Array = Any
"""Anything that NumPy takes for an array, tensors included."""


@dataclass(frozen=True)
class Images:
    """Sample images, a row for each label: label -> `(n, height, width)`.

    Example:
        >>> Images({"particles": np.zeros((3, 8, 8)), "noise": np.ones((3, 8, 8))}).rows.keys()
        dict_keys(['particles', 'noise'])
    """

    rows: Mapping[str, Array]


@dataclass(frozen=True)
class Trajectories:
    """Time series of one dataset: label -> `(n, T)`, the first label the clean ones.

    Arguments:
        series: Drawn in this order, the later ones on top.
        step: Time between two values.

    Example:
        >>> Trajectories({"clean": np.zeros((4, 25))}, step=0.2).step
        0.2
    """

    series: Mapping[str, Array]
    step: float = 1.0


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
    axes: Any, samples: Mapping[str, Array], theta: Array | None, names: Sequence[str] = ()
) -> Any:
    """Draw the posterior of one dataset by several methods.

    Arguments:
        axes: Matplotlib axes.
        samples: Method -> samples `(S, d_theta)`.
        theta: True parameters `(d_theta,)`, or None where nobody knows.
        names: Names of the parameters.

    Example:
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> samples = {"npe": np.zeros((5, 2)), "mds": np.ones((5, 2))}
        >>> axes = plot_posterior_samples(axes, samples, [1, 1], ["rate", "level"])
        >>> axes.get_xlabel(), axes.get_legend_handles_labels()[1]
        ('rate', ['NPE', 'MDS (default)', 'true parameter'])
    """
    styles = {method: method_style(method) for method in sort_series("method", list(samples))}
    dim = np.shape(next(iter(samples.values())))[-1]
    return plot_samples(
        axes,
        {style.label: samples[method] for method, style in styles.items()},
        theta,
        names or [f"$\\theta_{j + 1}$" for j in range(dim)],
        {style.label: style.colour for style in styles.values()},
    )


def plot_trajectories(axes: Any, series: Mapping[str, Array], step: float = 1.0) -> Any:
    """Time series as thin lines: the first label in grey, the others in colour.

    Arguments:
        axes: Matplotlib axes.
        series: Label -> values `(n, T)`.
        step: Time between two values.

    Example:
        >>> from mindist.report import new_figure
        >>> figure, (axes,) = new_figure(1)
        >>> axes = plot_trajectories(axes, {"clean": np.zeros((3, 10))}, step=0.5)
        >>> axes.lines[0].get_xdata()[-1]
        np.float64(4.5)
    """
    colours = [GREY, VERMILION, BLUE, GREEN]
    for colour, (label, values) in zip(colours, series.items(), strict=False):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        time = step * np.arange(values.shape[1])
        lines = axes.plot(time, values.T, color=colour, linewidth=0.9, alpha=0.7)
        lines[0].set_label(label)
    axes.set(xlabel="time", ylabel="value")
    axes.legend(loc="best", fontsize=9, framealpha=0.85)
    return axes


__all__ = ["Images", "Posteriors", "Trajectories", "plot_posterior_samples", "plot_trajectories"]
