"""`mindist sample` and `mindist report`: what follows from data, in words, files and on a page."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import mindist
from mindist.cli import options, output
from mindist.cli.artefacts import load_estimator, load_posterior, load_user_code
from mindist.cli.errors import UsageError, extra
from mindist.cli.output import MAX_LISTED, TABLES, bar, number, waiting

NETCDF, NUMPY = ".nc", ".npy"
FORMATS = (NETCDF, *TABLES, NUMPY)
QUANTILES = (0.05, 0.5, 0.95)
STATISTICS = ("mean", "sd", "q05", "q50", "q95")
OUT = "File of samples: .nc (ArviZ), .csv, .parquet or .npy."


def sample(
    mds: options.MdsFolder,
    data: options.DataFile,
    posterior: options.Posterior = None,
    summary: options.Summary = None,
    prior: options.Prior = None,
    trust: options.Trust = False,
    num: Annotated[int, Option(help="Samples for each dataset.", min=1)] = 1_000,
    names: options.ThetaNames = None,
    columns: options.Columns = None,
    dataset_column: options.DatasetColumn = None,
    key: options.Key = None,
    missing: options.MissingValues = "error",
    alpha: options.Alpha = None,
    out: Annotated[Path | None, Option(help=OUT)] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Draw from the robust posterior: at the observed summary, or the adapted one if need be."""
    output.check_suffix(out, "--out", FORMATS)
    with waiting("Loading"):
        import numpy as np

        estimator = load_estimator(mds, summary, alpha=alpha)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
        robust = mindist.RobustPosterior(load_posterior(posterior, prior, trust=trust), estimator)
    if out is not None and out.suffix.lower() in (NETCDF, NUMPY) and len(observed) > 1:
        raise UsageError(
            f"--out: a {out.suffix} file holds the samples of one dataset, and {data} has "
            f"{len(observed)}. Write a .csv or .parquet, which has a column `dataset`."
        )
    drawn = []
    with bar(len(observed), "Sampling") as shown:
        for index, x in enumerate(observed):  # each from a seed of its own
            drawn.append(robust.sample((num,), x=x, seed=seed + index).cpu())
            shown.update()
    dim = drawn[0].shape[1]
    labels = [f"theta_{i}" for i in range(dim)] if names is None else options.split(names)
    if len(labels) != dim or len(set(labels)) != dim:
        said = f"{dim} different names, separated by commas"
        raise UsageError(f"--names: expected {said}, got {names!r}.")
    if out is not None and out.suffix.lower() == NETCDF:
        with extra("arviz"):
            stored = robust.to_arviz(observed[0], num_samples=num, names=labels, seed=seed)
        stored.to_netcdf(str(out))
    elif out is not None and out.suffix.lower() == NUMPY:
        np.save(out, drawn[0].numpy())
    elif out is not None:
        table = dict(zip(labels, np.concatenate(drawn).astype(float).T, strict=True))
        which = np.repeat(observed.names, [len(samples) for samples in drawn])
        output.write_table(out, {"dataset": which} | table if len(drawn) > 1 else table)
    rows = [
        output.adaptation_values(name, len(x), robust.adapt(x))  # which it has remembered
        | {"num_samples": len(samples), "posterior": _statistics(samples, labels)}
        for name, x, samples in zip(observed.names, observed, drawn, strict=True)
    ]
    if json:
        values = {"parameters": labels, "out": out, "datasets": rows}
        output.print_json("sample", alpha=estimator.alpha, **values)
    else:
        _print(rows, estimator.alpha, out)


def _statistics(samples: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return mean, standard deviation and quantiles of each parameter; none of no samples."""
    if len(samples) < 2:
        return []
    values = samples.double()
    rows = [values.mean(0), values.std(0), *(values.quantile(level, 0) for level in QUANTILES)]
    columns = zip(*(row.tolist() for row in rows), strict=True)
    each = (dict(zip(STATISTICS, column, strict=True)) for column in columns)
    return [{"name": name} | own for name, own in zip(names, each, strict=True)]


def _print(rows: list[dict[str, Any]], alpha: float, out: Path | None) -> None:
    output.print_verdicts(rows, alpha)
    shown = [row for row in rows if row["posterior"]][:MAX_LISTED]
    if len(rows) == 1:
        moved = "adapted" if rows[0]["adapted"] else "observed"
        cells = [[p["name"], *(number(p[key]) for key in STATISTICS)] for p in rows[0]["posterior"]]
        title = f"Posterior at the {moved} summary, {rows[0]['num_samples']:,} samples:"
        output.print_table(("", "mean", "sd", "5%", "50%", "95%"), cells, title)
    elif shown:
        cells = []
        for row in shown:
            means = (f"{number(p['mean'])} ({number(p['sd'])})" for p in row["posterior"])
            cells.append([str(row["dataset"]), *means])
        few = f" of the first {MAX_LISTED}" if len(rows) > MAX_LISTED else ""
        adapted = f"for {sum(row['adapted'] for row in rows)} of {len(rows)} at an adapted summary"
        title = f"Posterior means and standard deviations{few}, {adapted}:"
        output.print_table(("dataset", *(p["name"] for p in shown[0]["posterior"])), cells, title)
    if out is not None:
        print(f"Written: {out}")


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
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
        known = [str(name) for name in observed.names]
        shown = ", ".join(known[:20]) + (", ..." if known[20:] else "")
        if dataset is None and len(known) > 1:
            raise UsageError(f"A report is about one dataset. Name it with --dataset: {shown}.")
        if dataset not in (None, *known):
            raise UsageError(f"--dataset: there is no {dataset!r}. There are {shown}.")
        name = observed.names[0 if dataset is None else known.index(dataset)]
        x = observed[name]
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
    with waiting("Writing the report"):
        result = estimator.adapt(x)
        write_report(out, result=result, mds=estimator, **given)
    values = output.adaptation_values(name, len(x), result)
    if json:
        output.print_json("report", out=out, alpha=estimator.alpha, datasets=[values])
    else:
        output.print_verdicts([values], estimator.alpha)
        print(f"Written: {out}")
