"""The three panels of the paper's Figure 1, as functions that take and return axes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from mindist.atomic import write_whole
from mindist.fitted import Fitted

# Colours of Okabe and Ito, told apart by colour-blind readers and in grey.
OBSERVED, ADAPTED, REFERENCE, CLOUD = "#D55E00", "#0072B2", "#000000", "#BBBBBB"


def plot_data_space(
    axes: Any, x_obs: Tensor, outlier: Tensor, fitted: Fitted, s_obs: Tensor, s_star: Tensor
) -> Any:
    r"""Observations, and where the decoder puts its mass before and after adaptation.

    The contours are those of the decoded kernel density :math:`\langle \mu(s), z(x) \rangle`, at
    a half and at nine tenths of its largest value.

    Arguments:
        axes: Matplotlib axes.
        x_obs: Observations `(N, 2)`.
        outlier: Which of them are contaminated, `(N,)`.
        fitted: A fitted estimator's parts.
        s_obs: Observed summary `(d_s,)`.
        s_star: Adapted summary `(d_s,)`.
    """
    clean, dirty = x_obs[~outlier], x_obs[outlier]
    axes.scatter(*clean.T, s=12, color=CLOUD, label="clean observations")
    axes.scatter(*dirty.T, s=22, color=OBSERVED, marker="x", label="contaminated observations")
    low, high = x_obs.amin(0) - 1.5, x_obs.amax(0) + 1.5
    first, second = (
        torch.linspace(float(a), float(b), 120) for a, b in zip(low, high, strict=True)
    )
    grid = torch.cartesian_prod(first, second)
    z = fitted.embedding(grid.double())
    for s, colour in ((s_obs, OBSERVED), (s_star, ADAPTED)):
        density = (z @ fitted.decoder(s[None].double())[0]).reshape(120, 120).T
        levels = [0.5 * float(density.max()), 0.9 * float(density.max())]
        axes.contour(first, second, density, levels=levels, colors=colour, linewidths=1.5)
    axes.set(
        title="Data space", xlabel="$x_1$", ylabel="$x_2$", aspect="equal", adjustable="datalim"
    )
    handles = [*axes.get_legend_handles_labels()[0]]
    handles += [
        Line2D([], [], color=OBSERVED, label=r"decoder at $\tilde{s}$ (observed)"),
        Line2D([], [], color=ADAPTED, label="decoder at $s^*$ (adapted)"),
    ]
    axes.legend(handles=handles, fontsize=8, loc="upper left")
    return axes


def plot_summary_space(
    axes: Any, cloud: Tensor, s_ref: Tensor, s_obs: Tensor, s_star: Tensor
) -> Any:
    """The first two summaries: simulated, of the clean data, observed and adapted.

    Arguments:
        axes: Matplotlib axes.
        cloud: Simulated summaries `(m, d_s)`.
        s_ref: Summary of the clean data `(d_s,)`, the oracle.
        s_obs: Observed summary `(d_s,)`.
        s_star: Adapted summary `(d_s,)`.
    """
    axes.scatter(*cloud[:1_000, :2].T, s=4, color=CLOUD, label="simulations")
    start, end = s_obs[:2].tolist(), s_star[:2].tolist()
    arrow = {"arrowstyle": "->", "color": ADAPTED, "linewidth": 1.5}
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
    for s, colour, marker, label in (
        (s_obs, OBSERVED, "X", r"$\tilde{s}$ (observed)"),
        (s_star, ADAPTED, "o", "$s^*$ (adapted)"),
        (s_ref, REFERENCE, "*", r"$s_{\mathrm{ref}}$ (clean)"),
    ):
        axes.scatter(*s[:2].tolist(), s=100, color=colour, marker=marker, label=label, zorder=3)
    axes.set(
        title="Summary space", xlabel="$s_1$", ylabel="$s_2$", aspect="equal", adjustable="datalim"
    )
    axes.legend(fontsize=8, loc="upper left")
    return axes


def plot_posteriors(axes: Any, before: Tensor, after: Tensor, theta: Tensor) -> Any:
    """Posterior samples before and after adaptation, and the true parameters.

    Arguments:
        axes: Matplotlib axes.
        before: Samples `(n, d_theta)` given the observed summary.
        after: Samples `(n, d_theta)` given the adapted summary.
        theta: True parameters `(d_theta,)`.
    """
    axes.scatter(*before[:, :2].T, s=5, alpha=0.5, color=OBSERVED, label="NPE")
    axes.scatter(*after[:, :2].T, s=5, alpha=0.5, color=ADAPTED, label="NPE with mindist")
    point = theta[:2].tolist()
    axes.scatter(*point, s=130, color=REFERENCE, marker="*", label=r"true $\theta$", zorder=3)
    axes.set(
        title="Posterior",
        xlabel=r"$\theta_1$",
        ylabel=r"$\theta_2$",
        aspect="equal",
        adjustable="datalim",
    )
    axes.legend(fontsize=8, loc="upper left")
    return axes


def new_figure(panels: int) -> tuple[Figure, list[Any]]:
    """A row of panels, drawn without a screen and without global state."""
    figure = Figure(figsize=(5 * panels, 5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure, making its folder, and return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format=path.suffix.removeprefix(".") or "png")
    write_whole(path, buffer.getvalue())
    return path
