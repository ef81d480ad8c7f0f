"""The figures of the report on a dataset, each with words for who cannot see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist.report.before_after import plot_posteriors, plot_predictive
from mindist.report.data_space import (
    IMAGES_IN_A_ROW,
    data_kind,
    plot_data_space,
    plot_density_contours,
    series_of,
)
from mindist.report.dataset.material import Draws, Material
from mindist.report.dataset.words import number
from mindist.report.evidence import plot_null_distance, plot_outlier_scores
from mindist.report.inline import inline_figure
from mindist.report.style import ADAPTED, OBSERVED
from mindist.report.summary_space import plot_summary, plot_summary_pairs

MOST_SUMMARIES = 6
"""In the pair plot: those that moved most."""

MOST_PARAMETERS = 8
MARK = "obs-"


def summary_figure(material: Material) -> str:
    """Observed, adapted and simulated summaries, in pairs."""
    chosen = material.shift.abs().argsort(descending=True, stable=True)[:MOST_SUMMARIES].sort()[0]
    names = [material.summary_names[j] for j in chosen.tolist()]
    s_obs = material.result.s_obs[chosen].numpy()
    s_star = material.result.s_star[chosen].numpy() if material.adapted else None
    cloud, dim = material.cloud[:, chosen].numpy(), len(chosen)
    left_out = material.cloud.shape[1] - dim
    alt = (
        f"Simulated summaries ({', '.join(names)}) as grey points"
        f"{'' if dim > 1 else ' or bars'}, the observed one in orange"
        f"{', and an arrow to the adapted one in blue' if material.adapted else ''}."
    )
    caption = "Grey: simulated. Orange cross or line: observed. "
    caption += "Blue circle or dashed line: adapted. " if material.adapted else ""
    caption += "A summary far outside is drawn at the edge. "
    caption += f"The {left_out} summaries that moved least are left out." if left_out else ""
    if dim == 1:
        star = None if s_star is None else float(s_star[0])

        return inline_figure(
            "summaries",
            alt,
            lambda axes: plot_summary(axes, cloud[:, 0], float(s_obs[0]), star, names[0]),
            caption=caption,
        )

    def pairs(grid: Any) -> Any:
        return plot_summary_pairs(grid, cloud, s_obs, s_star, names=names)

    size = {2: (2.6, 2.2), 3: (2.2, 1.9)}.get(dim, (1.8, 1.6))
    return inline_figure("summaries", alt, pairs, size=size, grid=dim, caption=caption)


def distance_figure(material: Material) -> str:
    """The distance against its null."""
    result, num = material.result, len(material.x)
    null = material.mds.fitted_.null.distances(num).cpu().numpy()
    star = float(result.distance_star) if material.adapted else None
    alt = (
        f"Squared distances of {len(null):,} simulated datasets, from {number(null[0])} to "
        f"{number(null[-1])}; that of the observed data is {number(float(result.distance_obs))}"
        f"{'' if star is None else f', {number(star)} at the adapted summary'}. The threshold is "
        f"{number(result.threshold)}."
    )
    return inline_figure(
        "distance",
        alt,
        lambda axes: plot_null_distance(
            axes, null, float(result.distance_obs), star, threshold=result.threshold
        ),
    )


def score_figure(material: Material) -> str:
    """Outlier scores by rank."""
    result, threshold = material.result, material.mds.fitted_.score_threshold
    low, high = (number(float(end)) for end in result.outlier_score.aminmax())
    alt = (
        f"Outlier scores of {len(material.x):,} observations from {high} down to {low}; "
        f"{int(result.outliers.sum()):,} are marked as suspicious."
    )
    score, outliers = result.outlier_score.numpy(), result.outliers.numpy()
    return inline_figure(
        "scores",
        alt,
        lambda axes: plot_outlier_scores(axes, score, outliers, threshold=threshold or None),
    )


def data_figure(material: Material) -> str:
    """The observations, suspicious ones in colour."""
    result, kind = material.result, data_kind(material.x.shape[1:])
    outliers = result.outliers
    alt = (
        f"The {len(material.x):,} observations as {kind}, of which {int(outliers.sum()):,} "
        "suspicious ones are in orange."
    )

    def draw(axes: Any) -> Any:
        score = result.outlier_score.numpy()
        plot_data_space(axes, material.x, outliers.numpy(), score=score, mark=MARK)
        if kind == "points":
            decoded: dict[str, tuple[Tensor, str]] = {}
            decoded["model at the observed summary"] = (result.s_obs, OBSERVED)
            if material.adapted:
                decoded["model at the adapted summary"] = (result.s_star, ADAPTED)
            device = material.mds.device
            at = {label: (s.to(device), colour) for label, (s, colour) in decoded.items()}
            plot_density_contours(axes, material.mds.fitted_, at)
        return axes

    rows = 1 + min(2, -(-int(outliers.sum()) // IMAGES_IN_A_ROW))
    return inline_figure("data", alt, draw, size=data_size(kind, rows))


def posterior_figures(material: Material) -> list[str]:
    """Every parameter alone, and the first two together."""
    before, after = _samples(material.before), _samples(material.after)
    if before is None and after is None:
        return []
    shown = before if before is not None else after
    assert shown is not None
    names, dim = material.theta_names, shown.shape[1]
    groups = [[j] for j in range(min(dim, MOST_PARAMETERS))]
    groups = [[0, 1], *groups] if dim > 1 else groups
    return [_posterior_figure(before, after, j, [names[k] for k in j]) for j in groups]


def _posterior_figure(before: Any, after: Any, columns: list[int], names: list[str]) -> str:
    told = {"at the observed summary": before, "at the adapted summary": after}
    words = "; ".join(
        f"{where} "
        + ", ".join(
            f"{name} {number(float(drawn[:, k].mean()))} ± {number(float(drawn[:, k].std()))}"
            for k, name in zip(columns, names, strict=True)
        )
        for where, drawn in told.items()
        if drawn is not None
    )
    title = " and ".join(names)

    def draw(axes: Any) -> Any:
        given = [None if drawn is None else drawn[:, columns] for drawn in (before, after)]
        plot_posteriors(axes, *given, names=names)
        return axes.set_title("")

    name = f"posterior-{'-'.join(map(str, columns))}"
    return inline_figure(name, f"Posterior of {title}: mean ± standard deviation {words}.", draw)


def predictive_figures(material: Material) -> list[str]:
    """Replicated summaries, and a replicated dataset for each posterior."""
    summaries = {name: drawn.summaries for name, drawn in material.draws.items()}
    if all(s is None or not len(s) for s in summaries.values()):
        return []
    before, after = (_numpy(summaries.get(name)) for name in ("before", "after"))
    result, bank = material.result, material.mds.fitted_.bank
    alt = "Summaries of data simulated from the posterior, 50% and 90% intervals: " + "; ".join(
        predictive_words(material, name) for name in material.draws
    )
    figures = [
        inline_figure(
            "predictive",
            alt,
            lambda axes: plot_predictive(
                axes,
                before,
                after,
                result.s_obs,
                result.s_star,
                centre=bank.centre.cpu(),
                scale=bank.scale.cpu(),
                names=material.summary_names,
            ),
            size=(4.9, max(2.6, 1.6 + 0.5 * len(material.summary_names))),
        )
    ]
    where = {"before": "observed", "after": "adapted"}
    shown = {
        name: drawn.replicated.x[0]
        for name, drawn in material.draws.items()
        if drawn.replicated is not None and len(drawn.replicated.x)
    }
    usual = material.x[~result.outliers]
    every = torch.cat([usual, *(x.to(usual.dtype) for x in shown.values())])
    return figures + [_replicated_figure(x, where[name], every) for name, x in shown.items()]


def _replicated_figure(x: Tensor, where: str, every: Tensor) -> str:
    """One simulated dataset, on axes that would hold the others and the usual observations too."""
    labels, kind = ("simulated observations", ""), data_kind(x.shape[1:])

    def draw(axes: Any) -> Any:
        plot_data_space(axes, x, labels=labels)
        hold_all(axes, kind, every)
        return axes.set_title("")

    alt = f"One dataset simulated from the posterior at the {where} summary, to compare by eye."
    return inline_figure(
        f"replicated-{where}", alt, draw, size=data_size(kind, 2, (4.9, 3.5)), caption=alt
    )


def hold_all(axes: Any, kind: str, x: Tensor) -> None:
    """Let axes end where all of some observations would have their place."""
    if kind == "images":
        return
    values = x.double().numpy()
    shown = values.reshape(len(values), -1) if kind == "points" else values.reshape(-1, 1)
    shown = series_of(values).reshape(-1, 1) if kind == "series" else shown
    low, high = shown.min(0), shown.max(0)
    room = np.where(high > low, 0.04 * (high - low), 1.0)
    ends = zip(low - room, high + room, strict=True)
    for name, (first, last) in zip("y" if kind == "series" else "xy", ends, strict=False):
        getattr(axes, f"set_{name}lim")(first, last)


def data_size(
    kind: str, rows: int, otherwise: tuple[float, float] = (5.4, 4.2)
) -> tuple[float, float]:
    """Of a figure in data space, in inches: as high as its rows, where those are images."""
    return (5.4, 0.3 + 0.8 * rows) if kind == "images" else otherwise


def predictive_words(material: Material, name: str) -> str:
    """How many summaries lie inside the 90% interval of their replications, in words."""
    drawn = material.draws[name]
    where = {"before": "observed", "after": "adapted"}[name]
    if drawn.summaries is None or not len(drawn.summaries):
        return f"no data could be simulated at the {where} summary"
    s = material.result.s_obs if name == "before" else material.result.s_star
    low, high = np.quantile(drawn.summaries.double().numpy(), (0.05, 0.95), axis=0)
    inside = int(((s.double().numpy() >= low) & (s.double().numpy() <= high)).sum())
    return f"{inside} of {len(low)} {where} summaries lie in their 90% interval"


def _samples(drawn: Draws | None) -> Any:
    return None if drawn is None or not len(drawn.theta) else drawn.theta.double().numpy()


def _numpy(s: Tensor | None) -> Any:
    return None if s is None or not len(s) else s.double().numpy()


__all__ = [
    "data_figure",
    "distance_figure",
    "posterior_figures",
    "predictive_figures",
    "predictive_words",
    "score_figure",
    "summary_figure",
]
