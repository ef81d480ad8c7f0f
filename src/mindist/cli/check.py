"""`mindist check` and `mindist adapt`: could the data have come from the simulator, and if not?"""

from pathlib import Path
from typing import Annotated, Any

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
    by_index: dict[int, dict[str, Any]] = {}
    with bar(len(observed), "Checking") as shown:
        for batch in observed.batches():
            detection = estimator.detect(batch.x)
            for row, index in enumerate(batch.index):
                name, n_obs = observed.names[index], batch.x.shape[1]
                by_index[index] = output.detection_values(name, n_obs, detection[row])
            shown.update(len(batch.index))
    rows = [by_index[index] for index in sorted(by_index)]
    found = any(row["misspecified"] for row in rows)
    if json:
        output.print_json("check", alpha=estimator.alpha, misspecified=found, datasets=rows)
    else:
        output.print_verdicts(rows, estimator.alpha)
    if found:
        raise typer.Exit(MISSPECIFIED)


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
    stream = estimator.adapt_stream(observed, force=force)
    rows: dict[int, dict[str, Any]] = {}
    columns_of: dict[str, list[Any]] = {}  # the table of observations, where it was asked for
    with bar(len(observed), "Adapting") as shown:
        for index, result in stream:
            name, n_obs = observed.names[index], observed.lengths[index]
            rows[index] = output.adaptation_values(name, n_obs, result)
            weights, scores = result.weights.tolist(), result.outlier_score.tolist()
            which = {"dataset": [name] * n_obs, "observation": range(n_obs), "weight": weights}
            which |= {"outlier_score": scores, "outlier": result.outliers.tolist()}
            for key, column in which.items() if observations is not None else ():
                columns_of.setdefault(key, []).extend(column)
            shown.update()
    failed = [failure for failure in stream.report.failures if failure.index not in rows]
    failures = [{"dataset": observed.names[f.index], "message": f.message} for f in failed]
    found = list(rows.values())
    if out is not None:
        output.write_table(out, [_flat(row) for row in found])
    if observations is not None:
        output.write_table(observations, columns_of)
    if json:
        said = {"datasets": found, "failures": failures}
        output.print_json("adapt", alpha=estimator.alpha, **said)
    else:
        if found:
            output.print_verdicts(found, estimator.alpha)
        if len(found) == 1:
            _print_one(found[0])
        else:
            _print_many([row for row in found if row["adapted"]])
        for failure in failures:
            say(f"Error: dataset {failure['dataset']}: {failure['message']}")
        for path in filter(None, (out, observations)):
            print(f"Written: {path}")
    if failures:
        raise typer.Exit(FAILURE)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column for each number of a summary, and how many outliers there are."""
    flat = {key: value for key, value in row.items() if key not in SUMMARIES}
    flat["outliers"] = len(row["outliers"])
    return flat | {f"{name}_{i}": v for name in SUMMARIES for i, v in enumerate(row[name])}


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
    cells = []
    for row in adapted[:MAX_LISTED]:
        summaries = (f"[{', '.join(map(number, row[name]))}]" for name in SUMMARIES)
        counts = (number(row["epsilon"]), str(len(row["outliers"])))
        cells.append((str(row["dataset"]), *counts, *summaries))
    title = f"Adapted, the first {MAX_LISTED}:" if len(adapted) > MAX_LISTED else "Adapted:"
    columns = ("dataset", "contaminated share", "outliers", "observed summary", "used summary")
    if adapted:
        output.print_table(columns, cells, title)
