"""What the data look like: rows of sample images, and time series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindist.report.style import GREY, VERMILION

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


def plot_images(axes: Any, rows: Mapping[str, Array]) -> Any:
    """Images side by side, a row for each label, each row in its own scale of greys.

    Arguments:
        axes: Matplotlib axes.
        rows: Label -> images `(n, height, width)`, all of the same height and width.

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
        for j, image in enumerate(images):
            left, top = j * (width + gap), i * (height + gap)
            axes.imshow(
                image,
                cmap="gray",
                vmin=low,
                vmax=high if high > low else low + 1,
                extent=(left, left + width, top + height, top),
                interpolation="nearest",
            )
    most = max(len(images) for images in arrays.values())
    axes.set(
        xlim=(0, most * (width + gap) - gap),
        ylim=(len(arrays) * (height + gap) - gap, 0),
        xticks=[],
        yticks=[i * (height + gap) + height / 2 for i in range(len(arrays))],
        yticklabels=list(arrays),
        aspect="equal",
    )
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return axes


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
    colours = [GREY, VERMILION, "#0072B2", "#009E73"]
    for colour, (label, values) in zip(colours, series.items(), strict=False):
        values = np.atleast_2d(np.asarray(values, dtype=float))
        time = step * np.arange(values.shape[1])
        lines = axes.plot(time, values.T, color=colour, linewidth=0.9, alpha=0.7)
        lines[0].set_label(label)
    axes.set(xlabel="time", ylabel="value")
    axes.legend(loc="best", fontsize=9, framealpha=0.85)
    return axes


__all__ = ["Images", "Trajectories", "plot_images", "plot_trajectories"]
