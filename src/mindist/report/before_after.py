"""What adaptation changes: the posterior, and the summaries that the posterior predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindist.report.posteriors import plot_posterior_samples
from mindist.report.style import ADAPTED, OBSERVED, Style, numbered, plain

BEFORE, AFTER = "at the observed summary", "at the adapted summary"
STYLES = {BEFORE: Style(BEFORE, OBSERVED, "X"), AFTER: Style(AFTER, ADAPTED, "o")}
APART = 0.16
"""Of the two intervals of a summary, in lines."""

WIDE = 25.0
"""Standard deviations from which the axis is logarithmic, but for its middle."""


def plot_posteriors(
    axes: Any,
    before: Any,
    after: Any = None,
    theta: Any = None,
    *,
    names: Sequence[str] = (),
    labels: tuple[str, str] = (BEFORE, AFTER),
) -> Any:
    """Posterior samples before and after adaptation, and the true parameters where known.

    One parameter gives histograms, two or more a scatter of the first two with contours that hold
    a half and nine tenths of the samples.

    Arguments:
        axes: Matplotlib axes.
        before: Samples `(n, d_theta)` given the observed summary; None leaves them out.
        after: Samples `(n, d_theta)` given the adapted summary, or None where nothing was adapted.
        theta: True parameters `(d_theta,)`.
        names: Of the parameters.
        labels: Of both posteriors, for the legend.

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
    styles = dict(zip(labels, STYLES.values(), strict=True))
    styles = {k: Style(k, style.colour, style.marker) for k, style in styles.items()}
    shown = [plain(name) for name in names or numbered("θ", dim)]
    plot_posterior_samples(axes, samples, theta, shown, styles=styles)
    axes.set(title="Posterior")
    axes.legend(fontsize=9, loc="best")
    return axes


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
    """Posterior-predictive check: summaries of replicated data, and those that they should match.

    For each summary the middle 50% (thick) and 90% (thin) of its replications, in standard
    deviations of the simulated summaries. What was queried should lie among them.

    Arguments:
        axes: Matplotlib axes.
        before: Summaries `(n, d_s)` of data simulated from the posterior at the observed summary;
            None leaves them out.
        after: The same at the adapted summary; None where nothing was adapted.
        s_obs: Observed summary `(d_s,)`.
        s_star: Adapted summary `(d_s,)`.
        centre: Mean of the simulated summaries `(d_s,)`.
        scale: Their standard deviation `(d_s,)`.
        names: Of the summaries.

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
    rows = ((BEFORE, before, s_obs, -APART), (AFTER, after, s_star, APART))
    furthest = 0.0
    for label, drawn, s, offset in rows:
        if drawn is None or not len(drawn):
            continue
        style, y = STYLES[label], lines + offset
        z = (np.asarray(drawn, dtype=float) - centre) / scale
        for ends, width in (((0.05, 0.95), 1.6), ((0.25, 0.75), 5.0)):
            axes.hlines(y, *np.quantile(z, ends, axis=0), color=style.colour, linewidth=width)
        point = (np.asarray(s, dtype=float) - centre) / scale
        axes.scatter(
            *(point, y),
            s=80,
            marker=style.marker,
            color=style.colour,
            label=label,
            zorder=3,
            edgecolors="white",
            linewidths=0.8,
        )
        furthest = max(furthest, np.abs(point).max(), np.abs(np.quantile(z, (0.05, 0.95))).max())
    axes.set(
        title="Predicted summaries",
        xlabel="sd from the mean of simulations",
        yticks=lines,
        yticklabels=[plain(name) for name in names or numbered("s", len(centre))],
        ylim=(len(centre) - 0.5, -0.5),
    )
    if furthest > WIDE:
        axes.set_xscale("symlog", linthresh=3.0)
    axes.grid(False, axis="y")
    axes.legend(fontsize=9, loc="best")
    return axes


__all__ = ["AFTER", "BEFORE", "plot_posteriors", "plot_predictive"]
