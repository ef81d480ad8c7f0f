"""`mindist check`: could these data have come from the simulator? For scripts, by exit status."""

from __future__ import annotations

from typing import Any

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
from mindist.cli.output import bar, print_json, waiting
from mindist.cli.status import MISSPECIFIED
from mindist.cli.verdicts import detection_values, print_verdicts


def check(
    mds: MdsFolder,
    data: DataFile,
    summary: Summary = None,
    columns: Columns = None,
    dataset_column: DatasetColumn = None,
    key: Key = None,
    missing: MissingValues = Missing.ERROR,
    alpha: Alpha = None,
    json: Json = False,
) -> None:
    """Test observed data against the simulations. Status 0: none misspecified; 3: some are."""
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        options = DataOptions(data, columns, dataset_column, key, missing)
        observed = options.read(estimator.event_shape)
    rows = detect_all(estimator, observed)
    found = any(row["misspecified"] for row in rows)
    if json:
        print_json("check", alpha=estimator.alpha, misspecified=found, datasets=rows)
    else:
        print_verdicts(rows, estimator.alpha)
    if found:
        raise typer.Exit(MISSPECIFIED)


def detect_all(mds: Any, observed: Any) -> list[dict[str, Any]]:
    """What detection says of each dataset, in order."""
    found: dict[int, dict[str, Any]] = {}
    with bar(len(observed), "Checking") as shown:
        for batch in observed.batches():
            detection = mds.detect(batch.x)
            for row, index in enumerate(batch.index):
                name, n_obs = observed.names[index], batch.x.shape[1]
                found[index] = detection_values(name, n_obs, detection[row])
            shown.update(len(batch.index))
    return [found[index] for index in sorted(found)]


__all__ = ["check"]
