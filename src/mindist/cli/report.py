"""`mindist report`: one page about an observed dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mindist.cli.artefacts import load_estimator
from mindist.cli.errors import extra
from mindist.cli.options import (
    NAME,
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
    Posterior,
    Prior,
    Seed,
    Summary,
    ThetaNames,
    Trust,
    split,
)
from mindist.cli.output import print_json, waiting
from mindist.cli.posterior import load_posterior
from mindist.cli.status import UsageError
from mindist.cli.tables import check_suffix
from mindist.cli.user_code import load_user_code
from mindist.cli.verdicts import adaptation_values, print_verdicts


def report(
    mds: MdsFolder,
    data: DataFile,
    out: Annotated[Path, typer.Option(help="The page, a file that ends in .html.")],
    summary: Summary = None,
    posterior: Posterior = None,
    prior: Prior = None,
    trust: Trust = False,
    simulator: Annotated[
        str | None,
        typer.Option(metavar=NAME, help="The simulator, for a posterior-predictive check."),
    ] = None,
    names: ThetaNames = None,
    columns: Columns = None,
    dataset_column: DatasetColumn = None,
    key: Key = None,
    missing: MissingValues = Missing.ERROR,
    dataset: Annotated[
        str | None, typer.Option(help="Which dataset, where there are several.")
    ] = None,
    alpha: Alpha = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about a dataset: what is wrong, and what follows."""
    check_suffix(out, "--out", (".html",))
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        options = DataOptions(data, columns, dataset_column, key, missing)
        name, x = choose(options.read(estimator.event_shape), dataset)
        # as `adapt` calls them, and its tables
        labels = [f"s_{i}" for i in range(estimator.fitted_.bank.s.shape[1])]
        material: dict[str, Any] = {"mds": estimator, "x": x, "seed": seed}
        material["summary_names"] = labels
        if posterior is not None:
            material["posterior"] = load_posterior(posterior, prior, trust=trust)
        if simulator is not None:
            material["simulator"] = load_user_code(simulator, "--simulator")
        if names is not None:
            material["theta_names"] = split(names)
    with extra("report"):
        from mindist.report import write_report
    with waiting("Writing the report"):
        result = estimator.adapt(x)
        write_report(out, result=result, **material)
    values = adaptation_values(name, len(x), result)
    if json:
        print_json("report", out=out, alpha=estimator.alpha, datasets=[values])
    else:
        print_verdicts([values], estimator.alpha)
        print(f"Written: {out}")


def choose(observed: Any, dataset: str | None) -> tuple[Any, Any]:
    """The name of one dataset and its observations."""
    known = [str(name) for name in observed.names]
    if dataset is None and len(known) == 1:
        return observed.names[0], observed[0]
    shown = ", ".join(known[:20]) + (", ..." if known[20:] else "")
    if dataset is None:
        raise UsageError(f"A report is about one dataset. Name it with --dataset: {shown}.")
    if dataset not in known:
        raise UsageError(f"--dataset: there is no {dataset!r}. There are {shown}.")
    name = observed.names[known.index(dataset)]
    return name, observed[name]


__all__ = ["report"]
