"""What figures show besides rows: posterior samples of a few datasets, images, time series."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindist.report.before_after import plot_samples
from mindist.report.style import BLUE, GREY, VERMILION
from mindist_paper.report.style import GREEN, method_style, sort_series

Array = Any  # Anything that NumPy takes for an array, tensors included


@dataclass(frozen=True)
class Images:
    """Sample images, a row for each label: label -> `(n, height, width)`."""

    rows: Mapping[str, Array]


@dataclass(frozen=True)
class Trajectories:
    """Time series of one dataset: label -> `(n, T)`, the first label the clean ones."""

    series: Mapping[str, Array]  # Drawn in this order, the later ones on top
    step: float = 1.0  # Time between two values


@dataclass(frozen=True)
class Posteriors:
    """Posterior samples that were kept for a figure."""

    samples: Mapping[str, Array]  # method -> `(B, S, d_theta)`, or a list of B
    theta: Array  # True parameters `(B, d_theta)`
    names: Sequence[str] = ()  # Names of the parameters

    def __len__(self) -> int:
        return len(self.theta)


def plot_posterior_samples(
    axes: Any, samples: Mapping[str, Array], theta: Array | None, names: Sequence[str] = ()
) -> Any:
    """Draw the posterior of one dataset by several methods."""
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
    """Draw time series as thin lines: the first label in grey, the others in colour."""
    colours = [GREY, VERMILION, BLUE, GREEN]
    for colour, (label, values) in zip(colours, series.items(), strict=False):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        time = step * np.arange(values.shape[1])
        lines = axes.plot(time, values.T, color=colour, linewidth=0.9, alpha=0.7)
        lines[0].set_label(label)
    axes.set(xlabel="time", ylabel="value")
    axes.legend(loc="best", fontsize=9, framealpha=0.85)
    return axes
