"""The figures of the report on a dataset, each with words for those who cannot see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from mindist.report import data_space
from mindist.report.before_after import plot_posteriors, plot_predictive
from mindist.report.data_space import data_kind, plot_data_space, plot_density_contours
from mindist.report.evidence import (
    plot_null_distance,
    plot_outlier_scores,
    plot_selftest,
    plot_summary_pairs,
)
from mindist.report.material import Material
from mindist.report.page import inline_figure, number, plus_minus
from mindist.report.style import ADAPTED, OBSERVED

MOST_SUMMARIES = 6  # in the pair plot: those that moved most
MOST_PARAMETERS = 8
WHERE = {"before": "observed", "after": "adapted"}


def every_figure(material: Material) -> dict[str, Any]:
    """Return all figures of the page, by name."""
    return {
        "summaries": summary_figure(material),
        "distance": distance_figure(material),
        "data": data_figure(material),
        "scores": score_figure(material),
        "posterior": posterior_figures(material),
        "predictive": predictive_figures(material),
        "selftest": selftest_figure(material),
    }


def selftest_figure(material: Material) -> Markup | None:
    """Draw what the estimator mends on its own simulations, if that was tested."""
    found = material.mds.selftest_
    if found is None:
        return None

    def draw(axes: Any) -> None:
        plot_selftest(axes, found)

    size = (6.5, 0.4 * len(found.kinds) + 1.5)
    return inline_figure("selftest", f"As a table of errors. {found.verdict}", draw, size=size)


def summary_figure(material: Material) -> Markup:
    """Draw observed, adapted and simulated summaries, in pairs."""
    every = material.mds.fitted_.bank.s.cpu()
    chosen = material.shift.abs().argsort(descending=True, stable=True)[:MOST_SUMMARIES].sort()[0]
    names = [material.summary_names[j] for j in chosen.tolist()]
    s_obs = material.result.s_obs[chosen].numpy()
    s_star = material.result.s_star[chosen].numpy() if material.adapted else None
    dim, left_out = len(chosen), every.shape[1] - len(chosen)
    cloud = every[:, chosen].numpy()
    alt = (
        f"Simulated summaries ({', '.join(names)}) as grey "
        f"{'points and bars' if dim > 1 else 'bars'}, the observed one in orange"
        f"{', and an arrow to the adapted one in blue' if material.adapted else ''}."
    )
    caption = "Grey: simulated. Orange cross or line: observed. "
    caption += "Blue circle or dashed line: adapted. " if material.adapted else ""
    caption += "A summary far outside is drawn at the edge. "
    caption += f"The {left_out} summaries that moved least are left out." if left_out else ""
    size = {1: (4.9, 2.6), 2: (2.6, 2.2), 3: (2.2, 1.9)}.get(dim, (1.8, 1.6))

    def draw(grid: Any) -> Any:
        return plot_summary_pairs(grid, cloud, s_obs, s_star, names=names)

    return inline_figure("summaries", alt, draw, size=size, grid=dim, caption=caption)


def distance_figure(material: Material) -> Markup:
    """Draw the distance against its null."""
    result = material.result
    null = material.mds.fitted_.null.distances(len(material.x)).cpu().numpy()
    observed, star = float(result.distance_obs), float(result.distance_star)
    at_the_adapted = f", {number(star)} at the adapted summary" if material.adapted else ""
    alt = (
        f"Squared distances of {len(null):,} simulated datasets, from {number(null[0])} to "
        f"{number(null[-1])}; that of the observed data is {number(observed)}{at_the_adapted}. "
        f"The threshold is {number(result.threshold)}."
    )

    def draw(axes: Any) -> None:
        adapted = star if material.adapted else None
        plot_null_distance(axes, null, observed, adapted, threshold=result.threshold)

    return inline_figure("distance", alt, draw)


def score_figure(material: Material) -> Markup:
    """Draw outlier scores by rank."""
    result = material.result
    low, high = (number(end) for end in result.outlier_score.aminmax())
    alt = (
        f"Outlier scores of {len(material.x):,} observations from {high} down to {low}; "
        f"{int(result.outliers.sum()):,} are marked as suspicious."
    )
    given = (result.outlier_score.numpy(), result.outliers.numpy())
    return inline_figure("scores", alt, lambda axes: plot_outlier_scores(axes, *given))


def data_figure(material: Material) -> Markup:
    """Draw the observations, suspicious ones in colour; the script lights them up by their ids."""
    result, kind = material.result, data_kind(material.x.shape[1:])
    found = int(result.outliers.sum())
    alt = (
        f"The {len(material.x):,} observations as {kind}, of which {found:,} suspicious ones are "
        "in orange."
    )

    def draw(axes: Any) -> None:
        score = result.outlier_score.numpy()
        plot_data_space(axes, material.x, result.outliers.numpy(), score=score, mark="obs-")
        if kind == "points":
            device = material.mds.device
            at = {"model at the observed summary": (result.s_obs.to(device), OBSERVED)}
            if material.adapted:
                at["model at the adapted summary"] = (result.s_star.to(device), ADAPTED)
            plot_density_contours(axes, material.mds.fitted_, at)

    rows = 1 + min(2, -(-found // data_space.IMAGES_IN_A_ROW))
    size = (5.4, 0.3 + 0.8 * rows) if kind == "images" else (5.4, 4.2)
    return inline_figure("data", alt, draw, size=size)


def posterior_figures(material: Material) -> list[Markup]:
    """Draw every parameter alone, and the first two together."""
    samples = {k: d.theta.double().numpy() for k, d in material.draws.items() if len(d.theta)}
    if not samples:
        return []
    dim = next(iter(samples.values())).shape[1]
    groups = [[j] for j in range(min(dim, MOST_PARAMETERS))]
    groups = [[0, 1], *groups] if dim > 1 else groups
    return [_posterior_figure(samples, j, [material.theta_names[k] for k in j]) for j in groups]


def _posterior_figure(samples: dict[str, Any], columns: list[int], names: list[str]) -> Markup:
    words = []
    for key, drawn in samples.items():
        spread = zip(names, drawn[:, columns].mean(0), drawn[:, columns].std(0), strict=True)
        said = ", ".join(f"{name} {plus_minus(mean, sd)}" for name, mean, sd in spread)
        words.append(f"at the {WHERE[key]} summary {said}")

    def draw(axes: Any) -> None:
        chosen = {key: drawn[:, columns] for key, drawn in samples.items()}
        plot_posteriors(axes, chosen.get("before"), chosen.get("after"), names=names)
        axes.set_title("")

    name = f"posterior-{'-'.join(map(str, columns))}"
    alt = f"Posterior of {' and '.join(names)}: mean ± standard deviation {'; '.join(words)}."
    return inline_figure(name, alt, draw)


def predictive_figures(material: Material) -> list[Markup]:
    """Draw replicated summaries, and a replicated dataset for each posterior."""
    summaries = {
        name: drawn.summaries.double().numpy()
        for name, drawn in material.draws.items()
        if drawn.summaries is not None and len(drawn.summaries)
    }
    if not summaries:
        return []
    result, bank = material.result, material.mds.fitted_.bank
    given = (summaries.get("before"), summaries.get("after"), result.s_obs, result.s_star)
    known = {"centre": bank.centre.cpu(), "scale": bank.scale.cpu()}
    alt = "Summaries of data simulated from the posterior, 50% and 90% intervals: " + "; ".join(
        predictive_words(material, name) for name in material.draws
    )
    first = inline_figure(
        "predictive",
        alt,
        lambda axes: plot_predictive(axes, *given, **known, names=material.summary_names),
        size=(4.9, max(2.6, 1.6 + 0.5 * len(material.summary_names))),
    )
    shown = {
        name: drawn.replicated[0]
        for name, drawn in material.draws.items()
        if drawn.replicated is not None and len(drawn.replicated)
    }
    usual = material.x[~result.outliers]
    every = torch.cat([usual, *(x.to(usual.dtype) for x in shown.values())])
    return [first, *(_replicated_figure(x, WHERE[name], every) for name, x in shown.items())]


def _replicated_figure(x: Tensor, where: str, every: Tensor) -> Markup:
    """Draw one simulated dataset, on axes that would hold the others and the usual data too."""
    kind = data_kind(x.shape[1:])

    def draw(axes: Any) -> None:
        plot_data_space(axes, x, labels=("simulated observations", ""))
        hold_all(axes, kind, every)
        axes.set_title("")

    alt = f"One dataset simulated from the posterior at the {where} summary, to compare by eye."
    size = (5.4, 1.9) if kind == "images" else (4.9, 3.5)
    return inline_figure(f"replicated-{where}", alt, draw, size=size, caption=alt)


def hold_all(axes: Any, kind: str, x: Tensor) -> None:
    """Let axes end where all of some observations would have their place."""
    if kind == "images":
        return
    values = x.double().numpy()
    shown = values.reshape(len(values), -1) if kind == "points" else values.reshape(-1, 1)
    shown = data_space.series_of(values).reshape(-1, 1) if kind == "series" else shown
    low, high = shown.min(0), shown.max(0)
    room = np.where(high > low, 0.04 * (high - low), 1.0)
    ends = zip(low - room, high + room, strict=True)
    for name, (first, last) in zip("y" if kind == "series" else "xy", ends, strict=False):
        getattr(axes, f"set_{name}lim")(first, last)


def predictive_words(material: Material, name: str) -> str:
    """Return how many summaries lie inside the 90% interval of their replications, in words."""
    drawn, where = material.draws[name], WHERE[name]
    if drawn.summaries is None or not len(drawn.summaries):
        return f"no data could be simulated at the {where} summary"
    s = material.result.s_obs if name == "before" else material.result.s_star
    low, high = np.quantile(drawn.summaries.double().numpy(), (0.05, 0.95), axis=0)
    inside = int(((s.double().numpy() >= low) & (s.double().numpy() <= high)).sum())
    return f"{inside} of {len(low)} {where} summaries lie in their 90% interval"
