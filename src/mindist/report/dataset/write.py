"""From an adaptation to the page: `write_report`."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

from mindist import checks
from mindist.adaptation import Adaptation
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors.robust import RobustPosterior
from mindist.protocols import Array
from mindist.report.dataset import figures, words
from mindist.report.dataset.material import Material, gather, names_of, one_dataset
from mindist.report.dataset.observations import observation_table
from mindist.report.dataset.script import SCRIPT, STYLE
from mindist.report.html import (
    Document,
    Part,
    duration,
    join,
    paragraph,
    render_configuration,
    render_facts,
    render_versions,
)
from mindist.report.inline import INLINE_STYLE
from mindist.report.style import capital
from mindist.report.table import Entry, Table

MOST_BESIDE = 3
"""Summaries whose pair plot leaves room for a table beside it."""

PACKAGES = ("mindist", "torch", "numpy", "sbi", "bayesflow", "matplotlib")


def write_report(
    path: str | os.PathLike[str],
    *,
    result: Adaptation,
    x: Array,
    mds: MinimumDistance | None = None,
    posterior: Any = None,
    simulator: Callable[..., Any] | None = None,
    theta_names: Sequence[str] | None = None,
    summary_names: Sequence[str] | None = None,
    title: str = "",
    num_samples: int = 1_000,
    seed: int = 0,
) -> Path:
    """Write one self-contained HTML page on an observed dataset.

    The verdict in words, the summaries among simulated ones, the distance against its null, the
    observations ranked by outlier score, and, with a posterior, what the adaptation changes: the
    posterior and, with a simulator, what it predicts. The page loads nothing from anywhere.

    Arguments:
        path: Of the file; its folder is made.
        result: The adaptation of one dataset, `mds.adapt(x)`.
        x: That dataset, `(N, *event)`.
        mds: The fitted estimator; by default that of `posterior`.
        posterior: A `RobustPosterior`, or any posterior that it wraps.
        simulator: Parameters to datasets, as for `mindist.simulate`; for a check of what the
            posterior predicts.
        theta_names: Of the d_theta parameters.
        summary_names: Of the d_s summaries.
        title: Of the page.
        num_samples: Drawn from each posterior.
        seed: Of samples and of replicated data.

    Returns:
        The path.

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
    start = time.monotonic()
    mds, robust = _estimator(mds, posterior)
    one, x_obs = one_dataset(result, x, mds)
    num_samples = checks.positive(num_samples, "num_samples")
    material = Material(
        one,
        x_obs,
        mds,
        names_of(summary_names, len(one.s_obs), "s", "summary_names"),
        _theta_names(theta_names, robust),
        **gather(
            one,
            x_obs,
            mds,
            posterior=robust,
            simulator=simulator,
            num_samples=num_samples,
            seed=checks.seed(seed),
        ),
    )
    parts = [
        Part("summaries", "Summaries", _summaries(material)),
        Part("distance", "Distance from the simulations", _distance(material)),
        Part("observations", "Observations", _observations(material)),
        Part("posterior", "Posterior before and after", _posterior(material, num_samples)),
        Part("predictive", "What the posterior predicts", _predictive(material)),
    ]
    parts.append(Part("settings", "Settings", _settings(material, seed, time.monotonic() - start)))
    document = Document(
        title or "Report on an observed dataset",
        _verdict(material),
        parts,
        render_versions(_versions()),
        "Skip to the details",
        INLINE_STYLE + STYLE,
        SCRIPT,
    )
    return document.write(path)


def _estimator(
    mds: MinimumDistance | None, posterior: Any
) -> tuple[MinimumDistance, RobustPosterior | None]:
    """The estimator, and the posterior made robust by it, if there is one."""
    if posterior is None or isinstance(posterior, RobustPosterior):
        own = getattr(posterior, "mds", None) if mds is None else mds
        if not isinstance(own, MinimumDistance):
            got = "None, and no RobustPosterior" if own is None else type(own).__name__
            raise TypeError(
                f"mds: expected the fitted MinimumDistance that gave the result, got {got}."
            )
        return own, posterior
    if mds is None:
        raise TypeError(
            "mds: expected the fitted MinimumDistance that gave the result, got None; only a "
            f"RobustPosterior brings its own, and posterior is a {type(posterior).__name__}."
        )
    return mds, RobustPosterior(posterior, mds)


def _theta_names(given: Sequence[str] | None, robust: RobustPosterior | None) -> list[str]:
    if robust is None:
        return []
    return names_of(given, robust.queries.backend.num_parameters, "θ", "theta_names")


def _verdict(material: Material) -> str:
    kind = "verdict strange" if material.result.misspecified else "verdict"
    return join(
        f'<p class="{kind}"><strong>{escape(words.headline(material))}</strong> '
        f"{escape(words.p_value_sentences(material))}</p>",
        paragraph(words.done_sentences(material)),
        paragraph(words.epsilon_sentence(material)),
    )


def _summaries(material: Material) -> str:
    result, bank = material.result, material.mds.fitted_.bank
    header = ["Summary", "Observed", "Adapted", "Moved", "Simulated"]
    body = []
    for j, name in enumerate(material.summary_names):
        values = (result.s_obs[j], result.s_star[j], material.shift[j])
        observed, adapted, moved = (words.number(float(v)) for v in values)
        simulated = words.mean_and_spread(float(bank.centre[j]), float(bank.scale[j]))
        texts = (name, observed, adapted, moved, simulated)
        body.append([Entry(text) for text in texts])
    note = (
        "Simulated: mean ± standard deviation over simulated datasets. Moved: in those standard "
        "deviations."
    )
    table, figure = (
        Table("Summaries", header, body, [note]).html(),
        figures.summary_figure(material),
    )
    if len(body) > MOST_BESIDE:
        return join(figure, table)
    return f'<div class="panels">{figure}<div>{table}</div></div>'


def _distance(material: Material) -> str:
    text = (
        "How far the data are from what the model has at their own summary, among simulated "
        "datasets of as many observations."
    )
    if len(material.tests) > 1:
        text += (
            " The distance is one of the statistics of the test: the p-value above is that of the "
            "smallest of those in the table, calibrated jointly, so the test may reject where the "
            "distance alone would not."
        )
    body = [
        [Entry(words.STATISTICS.get(name, name)), Entry(words.number(p))]
        for name, p in sorted(material.tests.items(), key=lambda item: item[1])
    ]
    table = Table("p-value of each statistic alone", ["Statistic", "p-value"], body)
    panels = (
        f'<div class="panels">{figures.distance_figure(material)}<div>{table.html()}</div></div>'
    )
    return join(paragraph(text), panels)


def _observations(material: Material) -> str:
    panels = f"{figures.data_figure(material)}{figures.score_figure(material)}"
    return join(
        paragraph(words.outlier_sentences(material)),
        f'<div class="panels">{panels}</div>',
        observation_table(material),
    )


def _posterior(material: Material, asked: int) -> str:
    if not material.draws:
        return paragraph(
            "Left out: it needs a posterior. With result.report(path, x=x, mds=mds, "
            "posterior=posterior) this section shows it before and after the adaptation."
        )
    where = {"before": "observed", "after": "adapted"}
    notes = [words.draws_note(d, where[name], asked) for name, d in material.draws.items()]
    text = (
        "The same posterior, asked at the observed summary and, made robust, at the adapted one."
        if material.adapted
        else "Nothing was adapted: the posterior is asked at the observed summary."
    )
    panels = "".join(figures.posterior_figures(material))
    return join(
        paragraph(text),
        *(paragraph(note) for note in notes),
        _warnings(material),
        f'<div class="panels">{panels}</div>',
        _moments(material).html(),
    )


def _warnings(material: Material) -> str:
    """What the posterior said while it was sampled, closed at first."""
    said = dict.fromkeys(text for drawn in material.draws.values() for text in drawn.said)
    text = "".join(paragraph(one, "note") for one in said)
    return f"<details><summary>Warnings while sampling</summary>{text}</details>" if said else ""


def _moments(material: Material) -> Table:
    where = {"before": "At the observed summary", "after": "At the adapted summary"}
    header = ["Parameter", *(where[name] for name in material.draws)]
    body = []
    for j, name in enumerate(material.theta_names):
        cells = [Entry(name)]
        for drawn in material.draws.values():
            cells.append(Entry(words.moments(drawn.theta[:, j])))
        body.append(cells)
    return Table("Posterior mean ± standard deviation", header, body)


def _predictive(material: Material) -> str:
    if not material.draws or all(d.replicated is None for d in material.draws.values()):
        return paragraph(
            "Left out: it needs a posterior and a simulator. With result.report(path, x=x, "
            "mds=mds, posterior=posterior, simulator=simulator) new data are simulated from both "
            "posteriors and compared with these."
        )
    where = {"before": "observed", "after": "adapted"}
    text = (
        "Data were simulated from the posterior and compared with the observed data, in the kernel "
        "in which the summary was sought, and with the summary that the posterior was asked at."
    )
    told = (figures.predictive_words(material, name) for name in material.draws)
    told = (f"{capital(sentence)}." for sentence in told)
    notes = [
        f"At the {where[name]} summary {len(d.replicated.x):,} of {d.replicated.asked:,} datasets "
        f"could be simulated: {d.replicated.error}."
        for name, d in material.draws.items()
        if d.replicated is not None and d.replicated.error
    ]
    panels = "".join(figures.predictive_figures(material))
    return join(
        paragraph(text),
        _fit(material),
        paragraph(" ".join(told)),
        *(paragraph(note, "note") for note in notes),
        f'<div class="panels">{panels}</div>' if panels else "",
    )


def _fit(material: Material) -> str:
    """How well replicated data agree with the observed ones."""
    where = {"before": "Observed summary", "after": "Adapted summary"}
    body = [
        [Entry(where[name]), *(Entry(words.number(p)) for p in (drawn.fit, drawn.fit_weighted))]
        for name, drawn in material.draws.items()
        if drawn.fit is not None and drawn.fit_weighted is not None
    ]
    if not body:
        return ""
    header = ["Posterior at the", "All observations", "Observations as weighted"]
    note = (
        "The share of replicated datasets that differ from another one by at least as much as the "
        "observed data do: small where the posterior does not explain the data. As weighted: "
        "suspicious observations count little, so it says whether the others are explained."
    )
    return Table("Posterior-predictive p-value", header, body, [note]).html()


def _settings(material: Material, seed: int, seconds: float) -> str:
    mds, fitted = material.mds, material.mds.fitted_
    representation = mds.representation if isinstance(mds.representation, str) else "a function"
    facts = {
        "Observed data": f"{len(material.x):,} observations of shape {tuple(mds.event_shape)}",
        "Simulated data": f"datasets of {fitted.num_obs:,} observations",
        "Test": f"{mds.detector}, level {mds.alpha:g}",
        "Written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "Time taken": duration(seconds),
    }
    configuration = {
        "decoder": type(mds.decoder).__name__,
        "bandwidth": mds.bandwidth,
        "representation": representation,
        "num_features": mds.num_features,
        "frequencies": mds.frequencies,
        "local": mds.local,
        "search": asdict(mds.search),
        "seed": mds.seed,
        "report_seed": seed,
    }
    return join(
        render_facts({key: escape(value) for key, value in facts.items()}),
        render_configuration(configuration),
    )


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


__all__ = ["write_report"]
