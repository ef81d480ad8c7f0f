"""`write_report`: from an adaptation to the page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mindist import checks
from mindist.minimum_distance import MinimumDistance
from mindist.posteriors import RobustPosterior
from mindist.protocols import Array
from mindist.report import figures
from mindist.report.material import Material, gather, one_dataset
from mindist.report.page import duration, number, plus_minus, render, versions
from mindist.result import Adaptation
from mindist.storage import write_whole

MOST_ROWS = 1_000  # of the table of observations; a larger page is slow on a phone
MOST_VALUES = 3  # numbers of an observation that have a place in the table
PACKAGES = ("mindist", "torch", "numpy", "sbi", "bayesflow", "matplotlib")
STATISTICS = {  # what the statistics of the test measure
    "distance": "distance of the data from the decoder",
    "observations odd": "distance of all observations from the model at the observed summary",
    "single numbers odd": "the same of each number of an observation, and of their size, alone",
    "summary unlike simulated ones": "summary farther from simulated ones than any clean one",
}


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
        path: Path of the file; its folder is made.
        result: The adaptation of one dataset, `mds.adapt(x)`.
        x: That dataset, `(N, *event)`.
        mds: The fitted estimator; by default that of `posterior`.
        posterior: A `RobustPosterior`, or any posterior that it wraps.
        simulator: Parameters to datasets, as for `mindist.simulate`; for a check of what the
            posterior predicts.
        theta_names: Names of the d_theta parameters.
        summary_names: Names of the d_s summaries.
        title: Title of the page.
        num_samples: Samples drawn from each posterior.
        seed: Seed of samples and of replicated data.

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
    start, path = time.monotonic(), Path(path)
    mds, robust = _estimator(mds, posterior)
    one, x_obs = one_dataset(result, x, mds)
    num, seed = checks.positive(num_samples, "num_samples"), checks.seed(seed)
    names = {"summary_names": summary_names, "theta_names": theta_names}
    material = gather(one, x_obs, mds, robust, simulator, num=num, seed=seed, names=names)
    page = render(
        "dataset.html",
        script="dataset.js",
        title=title or "Report on an observed dataset",
        material=material,
        num_samples=num,
        figures=figures.every_figure(material),
        **_tables(material),
        warnings=list(dict.fromkeys(w for d in material.draws.values() for w in d.said)),
        predicted=[figures.predictive_words(material, name) for name in material.draws],
        settings=_settings(material) | {"Time taken": duration(time.monotonic() - start)},
        config=_configuration(mds) | {"report_seed": seed},
        versions=versions(PACKAGES),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.encode())
    return path


def _estimator(
    mds: MinimumDistance | None, posterior: Any
) -> tuple[MinimumDistance, RobustPosterior | None]:
    """Return the estimator, and the posterior made robust by it, if there is one."""
    if mds is None and isinstance(posterior, RobustPosterior):
        mds = posterior.mds
    if not isinstance(mds, MinimumDistance):
        raise TypeError(
            "mds: expected the fitted MinimumDistance that gave the result, got "
            f"{type(mds).__name__}; only a RobustPosterior brings its own, and posterior is a "
            f"{type(posterior).__name__}."
        )
    if posterior is None or isinstance(posterior, RobustPosterior):
        return mds, posterior
    return mds, RobustPosterior(posterior, mds)


def _tables(material: Material) -> dict[str, Any]:
    """Return the rows of all tables, the first cell of a row its heading."""
    result, bank = material.result, material.mds.fitted_.bank
    around = [plus_minus(*map(float, pair)) for pair in zip(bank.centre, bank.scale, strict=True)]
    moved = zip(result.s_obs, result.s_star, material.shift, strict=True)
    cells = zip(material.summary_names, moved, around, strict=True)
    tests = sorted(material.tests.items(), key=lambda item: item[1])
    asked = {"before": "observed summary", "after": "adapted summary"}
    header, observations = _observations(material)
    return {
        "summary_rows": [[name, *map(number, numbers), usual] for name, numbers, usual in cells],
        "test_rows": [[STATISTICS.get(name, name), number(p)] for name, p in tests],
        "observation_header": header,
        "observation_rows": observations,
        "moment_header": ["Parameter", *(f"At the {asked[name]}" for name in material.draws)],
        "moment_rows": [
            [name, *(_moments(drawn.theta[:, j]) for drawn in material.draws.values())]
            for j, name in enumerate(material.theta_names)
        ],
        "fit_rows": [
            [asked[name].capitalize(), number(drawn.fit), number(drawn.fit_weighted)]
            for name, drawn in material.draws.items()
            if drawn.fit is not None
        ],
    }


def _moments(values: Any) -> str:
    """Return the mean and the standard deviation of samples `(n,)`."""
    if len(values) < 2:
        return "no samples"
    return plus_minus(float(values.double().mean()), float(values.double().std()))


def _observations(material: Material) -> tuple[list[str], list[tuple[bool, list[Any]]]]:
    """Return the header, and rows by score: whether suspicious, and cells with text and value."""
    result = material.result
    order = result.outlier_score.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    pull = (result.influence.double() / material.scale).norm(dim=1) / len(material.x)
    small = material.x[0].numel() <= MOST_VALUES
    header = ["Index", *(["Value"] if small else []), "Score", "Weight", "Pull", "Suspicious"]
    rows = []
    for i in order:
        strange = bool(result.outliers[i])
        cells: list[tuple[str, float]] = [(f"{i}", i)]
        if small:
            values = material.x[i].flatten().tolist()
            cells.append((", ".join(map(number, values)), values[0]))
        score, weight, one = (float(v[i]) for v in (result.outlier_score, result.weights, pull))
        cells += [(f"{score:.3f}", score), (f"{weight:.2f}", weight), (f"{one:.2g}", one)]
        cells.append(("yes" if strange else "no", int(strange)))
        rows.append((strange, cells))
    return header, rows


def _settings(material: Material) -> dict[str, str]:
    mds = material.mds
    return {
        "Observed data": f"{len(material.x):,} observations of shape {tuple(mds.event_shape)}",
        "Simulated data": f"datasets of {mds.fitted_.num_obs:,} observations",
        "Test": f"{' and '.join(material.tests)}, level {mds.alpha:g}",
        "Written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _configuration(mds: MinimumDistance) -> dict[str, Any]:
    plain = ("sorting", "bandwidth", "num_features", "frequencies", "seed")
    function = not isinstance(mds.representation, str)
    return {name: getattr(mds, name) for name in plain} | {
        "decoder": type(mds.decoder).__name__,
        "representation": "a function" if function else mds.representation,
        "search": asdict(mds.search),
    }
