"""`write_report`: from an adaptation to the page, what it needs, its tables and its figures."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from mindist import checks
from mindist.entrywise import Entrywise
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.queries import Conditions
from mindist.posteriors.robust import RobustPosterior
from mindist.posteriors.truncation import Budget
from mindist.protocols import Array
from mindist.report import before_after, evidence
from mindist.report.before_after import AFTER, BEFORE
from mindist.report.entries import vector_page
from mindist.report.evidence import data_kind, plot_data_space, plot_density_contours
from mindist.report.page import cells, inline_figure, number, plus_minus, ranked, render, versions
from mindist.report.style import ADAPTED, OBSERVED, numbered
from mindist.result import Adaptation, Completion
from mindist.schema import moved
from mindist.simulation.calls import NAN, predict_data
from mindist.storage import write_whole

PATIENCE = 60.0  # seconds for the samples of one posterior
REPLICATIONS = 200
MAX_BYTES = 2**28  # of replicated data
NOTHING = torch.empty(0)


@dataclass(frozen=True)
class Draws:  # samples of one posterior, and data simulated from them if there is a simulator
    theta: Tensor  # `(n, d_theta)`; n may be less than was asked for, or 0
    said: tuple[str, ...] = ()  # warnings meanwhile
    replicated: Tensor = NOTHING  # `(n, N, *event)`
    asked: int = 0  # for so many datasets
    error: str = ""  # what the first failure said
    summaries: Tensor = NOTHING  # of the replicated data, `(n, d_s)`
    fit: float | None = None  # share that differ from another one by as much as the data do
    fit_weighted: float | None = None  # the same of the data as weighted by the adaptation


class Material(NamedTuple):
    result: Any  # the Adaptation of one dataset or the Completion of one vector, on the CPU
    x: Tensor  # `(N, *event)`, or the vector
    observed: Tensor  # as a posterior is asked at it, with predictions for missing entries
    mds: Any  # None for a vector if nobody gave any
    summary_names: Sequence[str]  # or of the entries of a vector: none if nobody gave any
    tests: Mapping[str, float] = {}  # p-value of each statistic of the test of a dataset
    theta_names: Sequence[str] = ()  # none without a posterior
    draws: Mapping[str, Draws] = {}  # "before" at the observed summary, "after" at the adapted one

    @property
    def scale(self) -> Tensor:
        """Return the standard deviations of simulated summaries `(d_s,)`; 1 where all are equal."""
        scale: Tensor = self.mds.fitted_.wide.bank.scale.cpu()
        return torch.where(scale > 0, scale, 1.0)

    @property
    def shift(self) -> Tensor:
        """Return how far the summary moved, in standard deviations of simulated ones, `(d_s,)`."""
        moved: Tensor = self.result.s_star - self.result.s_obs
        return moved.double() / self.scale


def predict(drawn: Draws, simulator: Any, x: Tensor, weights: Tensor, mds: Any, seed: int) -> Draws:
    theta = drawn.theta[: min(REPLICATIONS, max(1, MAX_BYTES // (4 * x.numel())))]
    made, error = predict_data(simulator, theta, tuple(x.shape), seed)
    finite = made.flatten(1).isfinite().all(1)
    error = error or ("" if finite.all() else NAN.error)
    drawn = replace(drawn, replicated=made[finite], asked=len(theta), error=error)
    if len(made[finite]) < 2:
        return drawn
    fitted = mds.fitted_
    seen = made[finite].to(mds.device, fitted.probe.dtype)
    s = fitted.summarise(seen).cpu()
    replicated = fitted.embedding.mean(seen).double()
    z, weights = fitted.embedding(x.to(mds.device)).double(), weights.to(mds.device)
    means = ((w[:, None] * z).sum(0) / w.sum() for w in (torch.ones_like(weights), weights))
    fit, fit_weighted = (predictive_p_value(replicated, mean) for mean in means)
    return replace(drawn, summaries=s[s.isfinite().all(1)], fit=fit, fit_weighted=fit_weighted)


def predictive_p_value(replicated: Tensor, observed: Tensor) -> float:
    r"""Return a posterior-predictive p-value; discrepancy: squared distance of two embeddings.

    .. math:: p = \frac{1 + \#\{i : \|z_i - z_{i+1}\|^2 \ge \|z_i - z_{obs}\|^2\}}{n + 1}
    """
    apart = (replicated - replicated.roll(-1, 0)).square().sum(1)
    reached = (apart >= (replicated - observed).square().sum(1)).sum()
    return (1 + int(reached)) / (1 + len(replicated))


def names_of(given: Sequence[str] | None, num: int, letter: str, argument: str) -> list[str]:
    if given is None:
        return numbered(letter, num)
    names = [str(name) for name in ([given] if isinstance(given, str) else given)]
    if len(names) != num:
        raise ValueError(f"{argument}: expected {num} names, one for each, got {len(names)}.")
    return names


MOST_ROWS = 1_000  # of the table of observations; a larger page is slow on a phone
MOST_VALUES = 3  # numbers of an observation that have a place in the table
PACKAGES = ("mindist", "torch", "numpy", "sbi", "bayesflow", "matplotlib")
WHERE = {"before": "observed", "after": "adapted"}
AT = {"before": BEFORE, "after": AFTER}
AT_VECTORS = {"before": "at the observed vector", "after": "over completed vectors"}
# What a page on a dataset and one on a vector say.
NOUNS = ("dataset", "vector")
CALLS = ("result.report(path, x=x, mds=mds, ", "result.report(path, mds=entries, ")
LAST, POSTERIOR = {"settings": "Settings"}, {"posterior": "Posterior before and after"}
FIRST = {"summaries": "Summaries", "distance": "Distance from the simulations"}
FIRST |= {"observations": "Observations", **POSTERIOR, "predictive": "What the posterior predicts"}
FIRST |= {"selftest": "What can be mended at all"}
SECTIONS = (FIRST | LAST, {"entries": "Entries"} | POSTERIOR | LAST)
STATISTICS = {  # what the statistics of the test measure
    "distance": "distance of the data from the decoder",
    "observations odd": "distance of all observations from the model at the observed summary",
    "single numbers odd": "the same of each number of an observation, and of their size, alone",
    "summary unlike simulated ones": "summary farther from simulated ones than any clean one",
}


def write_report(
    path: str | os.PathLike[str],
    *,
    result: Adaptation | Completion,
    x: Array | None = None,
    mds: MinimumDistance | Entrywise | None = None,
    posterior: Any = None,
    simulator: Callable[..., Any] | None = None,
    theta_names: Sequence[str] | None = None,
    summary_names: Sequence[str] | None = None,
    title: str = "",
    num_samples: int = 1_000,
    seed: int = 0,
) -> Path:
    """Write one self-contained HTML page on an observed dataset or vector; return its path.

    The verdict in words, the summaries among simulated ones, the distance against its null, the
    observations ranked by outlier score, and, with a posterior, what the adaptation changes: the
    posterior and, with a simulator, what it predicts. Of one vector, its entries against what the
    others predict, in place of summaries and observations. The page loads nothing from anywhere.

    Arguments:
        path: Path of the file; its folder is made.
        result: The adaptation of one dataset, `mds.adapt(x)`, or the completion of one vector.
        x: That dataset, `(N, *event)`; a completion has its vector itself.
        mds: The fitted estimator; by default that of `posterior`. A completion needs none.
        posterior: A `RobustPosterior`, or any posterior that it wraps.
        simulator: Parameters to datasets, as for `mindist.simulate`; for a check of what the
            posterior predicts.
        theta_names: Names of the d_theta parameters.
        summary_names: Names of the d_s summaries, or of the entries of a vector.
        title: Title of the page.
        num_samples: Samples drawn from each posterior.
        seed: Seed of samples and of replicated data.

    Example:
        >>> import tempfile, torch, mindist
        >>> x = torch.randn(500, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> mds = mindist.MinimumDistance(lambda x: x.mean(1), num_features=16).fit(x)
        >>> x_obs = torch.where(torch.arange(20)[:, None] < 5, 6.0, x[0])
        >>> path = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_report(path, result=mds.adapt(x_obs), x=x_obs, mds=mds).name
        'report.html'
        >>> "do not look like data from the simulator" in path.read_text()
        True
    """
    path, vector = Path(path), isinstance(result, Completion)
    if not isinstance(given := cast(Any, result), Adaptation | Completion):
        then, got = "Make one with mds.adapt(x_obs).", type(given).__name__
        raise checks.wrong("result", "an Adaptation or a Completion", got, then, TypeError)
    known: Any = posterior.mds if mds is None and isinstance(posterior, RobustPosterior) else mds
    need: Any = Entrywise if vector else MinimumDistance
    if not isinstance(known, need) and not (vector and known is posterior is None):
        want, kind = f"the fitted {need.__name__} that gave the result", type(posterior).__name__
        own = f"only a RobustPosterior brings its own, and posterior is a {kind}"
        raise checks.wrong("mds", want, f"{type(known).__name__}; {own}", kind=TypeError)
    if posterior is not None and not isinstance(posterior, RobustPosterior):
        posterior = RobustPosterior(posterior, known)
    if vector and simulator is not None:
        raise checks.wrong("simulator", "None for one vector", type(simulator).__name__)
    num, seed = checks.positive(num_samples, "num_samples"), checks.seed(seed)
    of: Any = one_vector if vector else one_dataset
    material: Any = of(result, x, known, summary_names)
    where = AT_VECTORS if vector else AT
    if posterior is not None:
        backend, one = posterior.queries.backend, material.result
        names = names_of(theta_names, backend.num_parameters, "θ", "theta_names")
        before = material.observed[None].to(backend.device, torch.float32)
        asked = {"before": Conditions.certain(before)}
        if one.adapted:
            asked["after"] = posterior.conditions_of(one if vector else moved(one, known.device))
        draws = {name: draw(posterior, at, num, seed) for name, at in asked.items()}
        if simulator is not None:
            how = (simulator, material.x, one.weights, known, seed)
            draws = {k: predict(d, *how) if len(d.theta) else d for k, d in draws.items()}
        material = material._replace(theta_names=names, draws=draws)
    values: dict[str, Any] = {"material": material, "where": where, "versions": versions(PACKAGES)}
    values |= {"num_samples": num, "title": title or f"Report on an observed {NOUNS[vector]}"}
    values |= {"call": CALLS[vector], "what": f"{NOUNS[vector]}s", "sections": SECTIONS[vector]}
    shown = (material.result, material.summary_names)
    page = vector_page(*shown) if vector else _page(material)
    values |= _moments(material, where) | page
    values["figures"]["posterior"] = posterior_figures(material, where)
    said = (words for drawn in material.draws.values() for words in drawn.said)
    values["warnings"] = list(dict.fromkeys(said))
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    values["settings"] |= {"Estimator": known or "–", "Seed of this page": seed, "Written": now}
    template = "entries.html" if vector else "dataset.html"
    write_whole(path, render(template, script="dataset.js", **values).encode())
    return path


def one_dataset(result: Any, x: Any, mds: Any, summary_names: Sequence[str] | None) -> Material:
    """Check that a result is that of one dataset; return both with what was tested."""
    batch, _ = checks.observed(x, mds.event_shape)
    if (result.batched and len(result) != 1) or len(batch) != 1:
        then = "For the first of a batch pass result[0] and x[0]."
        got = f"results of {len(result) if result.batched else 1} and data of {len(batch)}"
        raise checks.wrong("result, x", "one dataset", got, then)
    one = result[0] if result.batched else result
    x_obs = batch[0].to(mds.fitted_.probe.dtype)
    s = mds.fitted_.summarise(x_obs[None].to(mds.device))[0].cpu()
    if len(one.weights) != len(x_obs) or not checks.agree(s, one.s_obs.cpu()):
        got = f"one of {len(one.weights)} observations whose summary is not that of x"
        then = f"x has {len(x_obs)} observations. Pass mds.adapt(x)."
        raise checks.wrong("result, x", "the adaptation of this dataset", got, then)
    names = names_of(summary_names, len(one.s_obs), "s", "summary_names")
    p_values = mds.fitted_.p_values(x_obs[None].to(mds.device))
    tests = {name: float(p[0]) for name, p in p_values.items()}
    one = moved(one, torch.device("cpu"))
    return Material(one, x_obs.cpu(), one.s_obs, mds, names, tests)


def one_vector(result: Completion, x: Any, mds: Any, names: Sequence[str] | None) -> Material:
    if result.batched and len(result) != 1:
        then = "For the first of a batch pass result[0]."
        raise checks.wrong("result", "one vector", f"{len(result)} of them", then)
    one = result[0] if result.batched else result
    given = one.x_obs if x is None else checks.as_tensor(x, "x").cpu().to(one.x_obs).squeeze()
    same = given.shape == one.x_obs.squeeze().shape
    if not same or not torch.allclose(given, one.x_obs.squeeze(), 0, 0, equal_nan=True):
        raise checks.wrong("x", "the vector that the result is about", "another")
    own = names if names is None else names_of(names, one.x_obs.numel(), "", "summary_names")
    filled = torch.where(one.x_obs.isfinite(), one.x_obs, one.predicted).flatten()
    return Material(one, one.x_obs, filled, mds, own or [])


def draw(posterior: RobustPosterior, at: Conditions, num: int, seed: int) -> Draws:
    budget = Budget(posterior.queries.max_draws, max_seconds=PATIENCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        theta = posterior.queries.sample((num,), at, budget, seed=seed)
    theta = theta.squeeze(-2).detach().cpu()
    said = tuple(str(warning.message) for warning in caught)
    return Draws(theta[theta.isfinite().all(1)], said)


def _page(material: Material) -> dict[str, Any]:
    """Return the figures, and the rows of all tables, the first cell of a row its heading."""
    result, mds, bank = material.result, material.mds, material.mds.fitted_.wide.bank
    around = [plus_minus(*map(float, pair)) for pair in zip(bank.centre, bank.scale, strict=True)]
    shifted = zip(result.s_obs, result.s_star, material.shift, strict=True)
    each = zip(material.summary_names, shifted, around, strict=True)
    tests = sorted(material.tests.items(), key=lambda item: item[1])
    return {
        "figures": {name: draw(material) for name, draw in FIGURES.items()},
        "summary_rows": [[name, *map(number, numbers), usual] for name, numbers, usual in each],
        "test_rows": [[STATISTICS.get(name, name), number(p)] for name, p in tests],
        **_observations(material),
        "fit_rows": [
            [AT[name].capitalize(), number(drawn.fit), number(drawn.fit_weighted)]
            for name, drawn in material.draws.items()
            if drawn.fit is not None
        ],
        "settings": {
            "Observed data": f"{len(material.x):,} observations of shape {tuple(mds.event_shape)}",
            "Test": f"{' and '.join(material.tests)}, level {mds.alpha:g}",
            "Kernel": f"bandwidth {mds.bandwidth}, {mds.num_features} features, seed {mds.seed}",
        },
    }


def _moments(material: Any, where: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of posterior means and standard deviations."""

    def moments(values: Tensor) -> str:
        few = len(values) < 2
        return "no samples" if few else plus_minus(float(values.mean()), float(values.std()))

    every = [drawn.theta.double() for drawn in material.draws.values()]
    each = enumerate(material.theta_names)
    rows = [[name, *(moments(theta[:, j]) for theta in every)] for j, name in each]
    header = ["Parameter", *(where[name].capitalize() for name in material.draws)]
    return {"moment_header": header, "moment_rows": rows}


def _observations(material: Material) -> dict[str, Any]:
    """Return the table of observations by score."""
    result = material.result
    order = result.outlier_score.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    pull = (result.influence.double() / material.scale).norm(dim=1) / len(material.x)
    columns: dict[str, Any] = {"Index": cells(range(len(material.x)), str)}
    if material.x[0].numel() <= MOST_VALUES:
        values = material.x.reshape(len(material.x), -1).tolist()
        columns["Value"] = [(", ".join(map(number, value)), value[0]) for value in values]
    columns["Score"] = cells(result.outlier_score.tolist(), "{:.3f}".format)
    columns["Weight"] = cells(result.weights.tolist(), "{:.2f}".format)
    columns["Pull"] = cells(pull.tolist(), "{:.2g}".format)
    columns["Suspicious"] = cells(result.outliers.int().tolist(), ("no", "yes").__getitem__)
    return ranked(columns, result.outliers, order)


MOST_SUMMARIES = 6  # in the pair plot: those that moved most
MOST_PARAMETERS = 8


def summary_figure(material: Material) -> Markup:
    every = material.mds.fitted_.wide.bank.s.cpu()
    chosen = material.shift.abs().argsort(descending=True, stable=True)[:MOST_SUMMARIES].sort()[0]
    names = [material.summary_names[j] for j in chosen.tolist()]
    s_obs = material.result.s_obs[chosen].numpy()
    s_star = material.result.s_star[chosen].numpy() if material.result.adapted else None
    dim, left_out, cloud = len(chosen), every.shape[1] - len(chosen), every[:, chosen].numpy()
    alt = f"Simulated summaries ({', '.join(names)}) in grey, the observed one in orange"
    alt += "." if s_star is None else ", and an arrow to the adapted one in blue."
    caption = "Grey: simulated. Orange cross or line: observed. "
    caption += "" if s_star is None else "Blue circle or dashed line: adapted. "
    caption += "A summary far outside is drawn at the edge. "
    caption += f"The {left_out} summaries that moved least are left out." if left_out else ""
    size = {1: (4.9, 2.6), 2: (2.6, 2.2), 3: (2.2, 1.9)}.get(dim, (1.8, 1.6))
    given: Any = {"cloud": cloud, "s_obs": s_obs, "s_star": s_star, "names": names}
    given |= {"size": size, "grid": dim, "caption": caption}
    return inline_figure("summaries", alt, evidence.plot_summary_pairs, **given)


def distance_figure(material: Material) -> Markup:
    result, threshold = material.result, material.result.threshold
    null = material.mds.fitted_.null.distances(len(material.x)).cpu().numpy()
    observed = float(result.distance_obs)
    star = float(result.distance_star) if result.adapted else None
    adapted = "" if star is None else f", {number(star)} at the adapted summary"
    alt = f"Squared distances of {len(null):,} simulated datasets; that of the observed data is "
    alt += f"{number(observed)}{adapted}, the threshold {number(threshold)}."
    given = (null, observed, star)
    return inline_figure("distance", alt, evidence.plot_null_distance, *given, threshold=threshold)


def score_figure(material: Material) -> Markup:
    score, outliers = material.result.outlier_score, material.result.outliers
    low, high = (number(end) for end in score.aminmax())
    alt = f"Outlier scores of {len(score):,} observations from {high} down to {low}; "
    alt += f"{int(outliers.sum()):,} are marked as suspicious."
    given = (score.numpy(), outliers.numpy())
    return inline_figure("scores", alt, evidence.plot_outlier_scores, *given)


def data_figure(material: Material) -> Markup:
    """Draw the observations, suspicious ones in colour; the script lights them up by their ids."""
    result, kind = material.result, data_kind(material.x.shape[1:])
    found = int(result.outliers.sum())
    alt = f"The {len(material.x):,} observations as {kind}, {found:,} suspicious ones in orange."

    def draw(axes: Any) -> None:
        score = result.outlier_score.numpy()
        plot_data_space(axes, material.x, result.outliers.numpy(), score=score, mark="obs-")
        if kind == "points":
            device = material.mds.device
            at = {"model at the observed summary": (result.s_obs.to(device), OBSERVED)}
            if result.adapted:
                at["model at the adapted summary"] = (result.s_star.to(device), ADAPTED)
            plot_density_contours(axes, material.mds.fitted_, at)

    rows = 1 + min(2, -(-found // evidence.IMAGES_IN_A_ROW))
    size = (5.4, 0.3 + 0.8 * rows) if kind == "images" else (5.4, 4.2)
    return inline_figure("data", alt, draw, size=size)


def posterior_figures(material: Any, where: Mapping[str, str]) -> list[Markup]:
    samples = {k: d.theta.double().numpy() for k, d in material.draws.items() if len(d.theta)}
    dim = next((drawn.shape[1] for drawn in samples.values()), 0)
    figures = []
    for columns in [[0, 1]] * (dim > 1) + [[j] for j in range(min(dim, MOST_PARAMETERS))]:
        names = [material.theta_names[j] for j in columns]
        chosen = {key: drawn[:, columns] for key, drawn in samples.items()}
        alt = f"Posterior of {' and '.join(names)} {' and '.join(where[key] for key in samples)}."
        name, both = f"posterior-{'-'.join(map(str, columns))}", map(chosen.get, where)
        how: Any = {"names": names, "title": "", "labels": tuple(where.values())}
        figures.append(inline_figure(name, alt, before_after.plot_posteriors, *both, **how))
    return figures


def predictive_figures(material: Material) -> list[Markup]:
    draws = material.draws.items()
    summaries = {name: d.summaries.double().numpy() for name, d in draws if len(d.summaries)}
    if not summaries:
        return []
    result, bank, names = material.result, material.mds.fitted_.wide.bank, material.summary_names
    given: dict[str, Any] = {"centre": bank.centre.cpu(), "scale": bank.scale.cpu(), "names": names}
    given |= {"s_obs": result.s_obs, "s_star": result.s_star}
    given |= {name: summaries.get(name) for name in WHERE}
    alt = "Summaries of data simulated from the posterior, as 50% and 90% intervals."
    given["size"] = (4.9, max(2.6, 1.6 + 0.5 * len(names)))
    figures = [inline_figure("predictive", alt, before_after.plot_predictive, **given)]
    shown = {WHERE[name]: d.replicated[0] for name, d in draws if len(d.replicated)}
    usual, kind = material.x[~result.outliers], data_kind(material.x.shape[1:])
    # on axes that would hold the others and the usual data too
    every = torch.cat([usual, *(x.to(usual.dtype) for x in shown.values())])

    def draw(axes: Any, x: Tensor) -> None:
        plot_data_space(axes, x, labels=("simulated observations", ""))
        hold_all(axes, kind, every)

    for where, x in shown.items():
        alt = f"One dataset simulated from the posterior at the {where} summary, to compare by eye."
        how: Any = {"size": (5.4, 1.9) if kind == "images" else (4.9, 3.5), "caption": alt}
        figures.append(inline_figure(f"replicated-{where}", alt, draw, x, title="", **how))
    return figures


def selftest_figure(material: Material) -> Markup | None:
    if (found := material.mds.selftest_) is None:
        return None
    alt, size = f"As a table of errors. {found.verdict}", (6.5, 0.4 * len(found.kinds) + 1.5)
    return inline_figure("selftest", alt, evidence.plot_selftest, found, size=size)


def hold_all(axes: Any, kind: str, x: Tensor) -> None:
    """Let axes reach as far as all of some observations would."""
    values = x.double().numpy()
    y = evidence.series_of(values).ravel() if kind == "series" else np.zeros(len(values))
    first = values.ravel() if kind == "values" else np.zeros(len(y))
    places = values.reshape(len(values), -1) if kind == "points" else np.stack([first, y], 1)
    if kind != "images":
        axes.update_datalim(places)
        axes.autoscale_view()


FIGURES: dict[str, Callable[[Material], Any]] = {"summaries": summary_figure, "data": data_figure}
FIGURES |= {"distance": distance_figure, "scores": score_figure, "selftest": selftest_figure}
FIGURES["predictive"] = predictive_figures
