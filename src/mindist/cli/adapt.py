"""`mindist adapt`: detect, adapt the summary where the data are misspecified, name outliers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mindist.cli.artefacts import load_estimator
from mindist.cli.options import (
    Alpha,
    Columns,
    DataFile,
    DataOptions,
    DatasetColumn,
    Json,
    Key,
    MdsFolder,
    Missing,
    MissingValues,
    Summary,
)
from mindist.cli.output import bar, print_json, say, waiting
from mindist.cli.status import FAILURE
from mindist.cli.tables import TABLES, check_suffix, write_table
from mindist.cli.verdicts import (
    adaptation_values,
    print_adaptation,
    print_adaptations,
    print_verdicts,
)

SUMMARIES = ("s_obs", "s_star")


def adapt(
    mds: MdsFolder,
    data: DataFile,
    summary: Summary = None,
    columns: Columns = None,
    dataset_column: DatasetColumn = None,
    key: Key = None,
    missing: MissingValues = Missing.ERROR,
    alpha: Alpha = None,
    force: Annotated[
        bool, typer.Option("--force", help="Adapt every dataset, misspecified or not.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Table of datasets: .csv or .parquet; a row for each.")
    ] = None,
    observations: Annotated[
        Path | None,
        typer.Option(help="Table of observations: .csv or .parquet; weight and outlier score."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the search; else as fitted.", min=0)] = None,
    json: Json = False,
) -> None:
    """Find the summaries with which to query a posterior, and which observations are wrong."""
    check_suffix(out, "--out", TABLES)
    check_suffix(observations, "--observations", TABLES)
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha, seed=seed)
        options = DataOptions(data, columns, dataset_column, key, missing)
        observed = options.read(estimator.event_shape)
    found = adapt_all(estimator, observed, force=force, details=observations is not None)
    if out is not None:
        write_table(out, found.table())
    if observations is not None:
        write_table(observations, found.observations)
    if json:
        print_json("adapt", alpha=estimator.alpha, datasets=found.rows, failures=found.failures)
    else:
        _print(found, estimator.alpha, [path for path in (out, observations) if path is not None])
    if found.failures:
        raise typer.Exit(FAILURE)


@dataclass(frozen=True)
class Adapted:
    """What was found about datasets.

    Arguments:
        rows: JSON values of each dataset.
        observations: Columns of a table of observations, where it was asked for.
        failures: Of datasets about which nothing was found.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    observations: dict[str, list[Any]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def table(self) -> dict[str, list[Any]]:
        """Columns with a row for each dataset; a column for each number of a summary."""
        plain = [key for key in self.rows[0] if key not in SUMMARIES] if self.rows else []
        columns = {key: [row[key] for row in self.rows] for key in plain}
        if columns:
            columns["outliers"] = [len(row["outliers"]) for row in self.rows]
        for name in SUMMARIES if self.rows else ():
            for i in range(len(self.rows[0][name])):
                columns[f"{name}_{i}"] = [row[name][i] for row in self.rows]
        return columns

    def add_observations(self, name: Any, result: Any) -> None:
        """Add the observations of a dataset to their table."""
        weights = result.weights.tolist()
        values = {
            "dataset": [name] * len(weights),
            "observation": list(range(len(weights))),
            "weight": weights,
            "outlier_score": result.outlier_score.tolist(),
            "outlier": result.outliers.tolist(),
        }
        for key, column in values.items():
            self.observations.setdefault(key, []).extend(column)


def adapt_all(mds: Any, observed: Any, *, force: bool, details: bool) -> Adapted:
    """Adapt each dataset; those that fail are listed."""
    found, seen = Adapted(), set()
    stream = mds.adapt_stream(observed, force=force)
    with bar(len(observed), "Adapting") as shown:
        for index, result in stream:
            name, n_obs = observed.names[index], observed.lengths[index]
            found.rows.append(adaptation_values(name, n_obs, result))
            seen.add(index)
            if details:
                found.add_observations(name, result)
            shown.update()
    for failure in stream.report.failures:
        if failure.index not in seen:
            name = observed.names[failure.index]
            found.failures.append({"dataset": name, "message": failure.message})
    return found


def _print(found: Adapted, alpha: float, written: list[Path]) -> None:
    if found.rows:
        print_verdicts(found.rows, alpha)
    if len(found.rows) == 1:
        print_adaptation(found.rows[0])
    else:
        print_adaptations(found.rows)
    for failure in found.failures:
        say(f"Error: dataset {failure['dataset']}: {failure['message']}")
    for path in written:
        print(f"Written: {path}")


__all__ = ["adapt", "adapt_all"]
