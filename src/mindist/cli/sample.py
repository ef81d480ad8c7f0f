"""`mindist sample`: draws from the posterior at the adapted summary, in words and in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from mindist.cli import options, output
from mindist.cli.artefacts import load_estimator, load_posterior
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
        from mindist import RobustPosterior

        estimator = load_estimator(mds, summary, alpha=alpha)
        observed = options.read_data(data, estimator, columns, dataset_column, key, missing)
        robust = RobustPosterior(load_posterior(posterior, prior, trust=trust), estimator)
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
    labels = parameter_names(names, drawn[0].shape[1])
    if out is not None and out.suffix.lower() == NETCDF:
        with extra("arviz"):
            stored = robust.to_arviz(observed[0], num_samples=num, names=labels, seed=seed)
        stored.to_netcdf(str(out))
    elif out is not None:
        _write(out, drawn, labels, observed.names)
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


def parameter_names(names: str | None, dim: int) -> list[str]:
    """Return what the parameters are called."""
    labels = [f"theta_{i}" for i in range(dim)] if names is None else options.split(names)
    if len(labels) != dim or len(set(labels)) != dim:
        raise UsageError(
            f"--names: expected {dim} different names, separated by commas, got {names!r}."
        )
    return labels


def _write(out: Path, drawn: Sequence[Any], names: list[str], datasets: Any) -> None:
    """Write samples as a table, or those of one dataset as an array."""
    import numpy as np

    if out.suffix.lower() == NUMPY:
        np.save(out, drawn[0].numpy())
        return
    columns = dict(zip(names, np.concatenate(drawn).astype(float).T, strict=True))
    which = np.repeat(datasets, [len(samples) for samples in drawn])
    output.write_table(out, {"dataset": which} | columns if len(drawn) > 1 else columns)


def _statistics(samples: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return mean, standard deviation and quantiles of each parameter; none of no samples."""
    import torch

    if len(samples) < 2:
        return []
    values = samples.double()
    levels = torch.tensor(QUANTILES, dtype=values.dtype)
    rows = torch.cat([values.mean(0)[None], values.std(0)[None], values.quantile(levels, 0)])
    return [
        {"name": name} | dict(zip(STATISTICS, column, strict=True))
        for name, column in zip(names, rows.T.tolist(), strict=True)
    ]


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
