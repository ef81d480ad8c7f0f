"""`mindist check` and `mindist adapt`: could the data have come from the simulator, and if not?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option

from mindist.cli import options, output
from mindist.cli.artefacts import load_estimator
from mindist.cli.errors import FAILURE, MISSPECIFIED
from mindist.cli.output import MAX_LISTED, TABLES, bar, number, say, waiting

SUMMARIES = ("s_obs", "s_star")
FORCE = "Adapt every dataset, misspecified or not."
OUT = "Table of datasets: .csv or .parquet; a row for each."
OBSERVATIONS = "Table of observations: .csv or .parquet; weight and outlier score."


def check(
    mds: options.MdsFolder,
    data: options.DataFile,
    summary: options.Summary = None,
    columns: options.Columns = None,
    dataset_column: options.DatasetColumn = None,
    key: options.Key = None,
    missing: options.MissingValues = "error",
    alpha: options.Alpha = None,
    json: options.Json = False,
) -> None:
    """Test observed data against the simulations. Status 0: none misspecified; 3: some are."""
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
    rows = _detect_all(estimator, observed)
    found = any(row["misspecified"] for row in rows)
    if json:
        output.print_json("check", alpha=estimator.alpha, misspecified=found, datasets=rows)
    else:
        output.print_verdicts(rows, estimator.alpha)
    if found:
        raise typer.Exit(MISSPECIFIED)


def _detect_all(mds: Any, observed: Any) -> list[dict[str, Any]]:
    """Detect in batches; return the values of each dataset, in order."""
    found: dict[int, dict[str, Any]] = {}
    with bar(len(observed), "Checking") as shown:
        for batch in observed.batches():
            detection = mds.detect(batch.x)
            for row, index in enumerate(batch.index):
                name, n_obs = observed.names[index], batch.x.shape[1]
                found[index] = output.detection_values(name, n_obs, detection[row])
            shown.update(len(batch.index))
    return [found[index] for index in sorted(found)]


def adapt(
    mds: options.MdsFolder,
    data: options.DataFile,
    summary: options.Summary = None,
    columns: options.Columns = None,
    dataset_column: options.DatasetColumn = None,
    key: options.Key = None,
    missing: options.MissingValues = "error",
    alpha: options.Alpha = None,
    force: Annotated[bool, Option("--force", help=FORCE)] = False,
    out: Annotated[Path | None, Option(help=OUT)] = None,
    observations: Annotated[Path | None, Option(help=OBSERVATIONS)] = None,
    seed: Annotated[int | None, Option(help="Of the search; else as fitted.", min=0)] = None,
    json: options.Json = False,
) -> None:
    """Find the summaries with which to query a posterior, and which observations are wrong."""
    output.check_suffix(out, "--out", TABLES)
    output.check_suffix(observations, "--observations", TABLES)
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha, seed=seed)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
    found = _adapt_all(estimator, observed, force=force, details=observations is not None)
    if out is not None:
        output.write_table(out, [_flat(row) for row in found.rows])
    if observations is not None:
        output.write_table(observations, found.observations)
    if json:
        said = {"datasets": found.rows, "failures": found.failures}
        output.print_json("adapt", alpha=estimator.alpha, **said)
    else:
        _print(found, estimator.alpha, [path for path in (out, observations) if path is not None])
    if found.failures:
        raise typer.Exit(FAILURE)


class Adapted(NamedTuple):
    """The findings about datasets."""

    rows: list[dict[str, Any]]  # JSON values of each dataset
    observations: dict[str, list[Any]]  # columns of a table, where it was asked for
    failures: list[dict[str, Any]]  # name and message of datasets about which nothing was found


def _adapt_all(mds: Any, observed: Any, *, force: bool, details: bool) -> Adapted:
    """Adapt each dataset; list those that fail."""
    found, seen = Adapted([], {}, []), set()
    stream = mds.adapt_stream(observed, force=force)
    with bar(len(observed), "Adapting") as shown:
        for index, result in stream:
            name, n_obs = observed.names[index], observed.lengths[index]
            found.rows.append(output.adaptation_values(name, n_obs, result))
            seen.add(index)
            for key, column in _columns(name, result).items() if details else ():
                found.observations.setdefault(key, []).extend(column)
            shown.update()
    for failure in stream.report.failures:
        if failure.index not in seen:
            name = observed.names[failure.index]
            found.failures.append({"dataset": name, "message": failure.message})
    return found


def _columns(name: Any, result: Any) -> dict[str, Any]:
    """Return the columns of a table of the observations of one dataset."""
    weights = result.weights.tolist()
    which = {"dataset": [name] * len(weights), "observation": range(len(weights))}
    scores = {"weight": weights, "outlier_score": result.outlier_score.tolist()}
    return which | scores | {"outlier": result.outliers.tolist()}


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column for each number of a summary, and how many outliers there are."""
    flat = {key: value for key, value in row.items() if key not in SUMMARIES}
    flat["outliers"] = len(row["outliers"])
    return flat | {f"{name}_{i}": v for name in SUMMARIES for i, v in enumerate(row[name])}


def _print(found: Adapted, alpha: float, written: list[Path]) -> None:
    if found.rows:
        output.print_verdicts(found.rows, alpha)
    if len(found.rows) == 1:
        _print_one(found.rows[0])
    else:
        _print_many([row for row in found.rows if row["adapted"]])
    for failure in found.failures:
        say(f"Error: dataset {failure['dataset']}: {failure['message']}")
    for path in written:
        print(f"Written: {path}")


def _print_one(values: dict[str, Any]) -> None:
    """Say what was done about one dataset, with observations counted from 0 as in Python."""
    print(f"{values['message'][:1].upper()}{values['message'][1:]}.")
    pairs = zip(values["s_obs"], values["s_star"], strict=True)
    rows = [(f"s_{i}", number(a), number(b)) for i, (a, b) in enumerate(pairs)]
    rows.append(("distance", number(values["distance_obs"]), number(values["distance_star"])))
    output.print_table(("", "observed", "used"), rows)
    if values["adapted"]:
        epsilon, error = number(values["epsilon"]), number(values["epsilon_error"])
        print(f"Contaminated share: {epsilon} (standard error {error}).")
    outliers, n_obs = values["outliers"], values["n_obs"]
    if not outliers:
        print(f"None of the {n_obs} observations is an outlier.")
        return
    listed = ", ".join(map(str, outliers[:MAX_LISTED])) + (", ..." if outliers[MAX_LISTED:] else "")
    print(f"Outliers: {len(outliers)} of {n_obs} observations, counted from 0: {listed}.")


def _print_many(adapted: list[dict[str, Any]]) -> None:
    """Say what was done about the datasets that were adapted."""
    cells = []
    for row in adapted[:MAX_LISTED]:
        summaries = (f"[{', '.join(map(number, row[name]))}]" for name in SUMMARIES)
        counts = (number(row["epsilon"]), str(len(row["outliers"])))
        cells.append((str(row["dataset"]), *counts, *summaries))
    title = f"Adapted, the first {MAX_LISTED}:" if len(adapted) > MAX_LISTED else "Adapted:"
    columns = ("dataset", "contaminated share", "outliers", "observed summary", "used summary")
    if adapted:
        output.print_table(columns, cells, title)
