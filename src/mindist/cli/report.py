"""`mindist report`: one page about an observed dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from mindist.cli import options, output
from mindist.cli.artefacts import load_estimator, load_posterior
from mindist.cli.errors import UsageError, extra
from mindist.cli.user_code import load_user_code

PREDICTIVE = "The simulator, for a posterior-predictive check."


def report(
    mds: options.MdsFolder,
    data: options.DataFile,
    out: Annotated[Path, Option(help="The page, a file that ends in .html.")],
    summary: options.Summary = None,
    posterior: options.Posterior = None,
    prior: options.Prior = None,
    trust: options.Trust = False,
    simulator: Annotated[str | None, Option(metavar=options.NAME, help=PREDICTIVE)] = None,
    names: options.ThetaNames = None,
    columns: options.Columns = None,
    dataset_column: options.DatasetColumn = None,
    key: options.Key = None,
    missing: options.MissingValues = "error",
    dataset: Annotated[str | None, Option(help="Which dataset, where there are several.")] = None,
    alpha: options.Alpha = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Write one self-contained HTML page about a dataset: what is wrong, and what follows."""
    output.check_suffix(out, "--out", (".html",))
    with output.waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
        name, x = _choose(observed, dataset)
        # as `adapt` calls them, and its tables
        labels = [f"s_{i}" for i in range(estimator.fitted_.bank.s.shape[1])]
        given: dict[str, Any] = {"x": x, "seed": seed, "summary_names": labels}
        if posterior is not None:
            given["posterior"] = load_posterior(posterior, prior, trust=trust)
        if simulator is not None:
            given["simulator"] = load_user_code(simulator, "--simulator")
        if names is not None:
            given["theta_names"] = options.split(names)
    with extra("report"):
        from mindist.report import write_report
    with output.waiting("Writing the report"):
        result = estimator.adapt(x)
        write_report(out, result=result, mds=estimator, **given)
    values = output.adaptation_values(name, len(x), result)
    if json:
        output.print_json("report", out=out, alpha=estimator.alpha, datasets=[values])
    else:
        output.print_verdicts([values], estimator.alpha)
        print(f"Written: {out}")


def _choose(observed: Any, dataset: str | None) -> tuple[Any, Any]:
    """Return the name of one dataset and its observations."""
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
