"""`mindist sample`: draws from the posterior at the adapted summary."""

from __future__ import annotations

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
    Posterior,
    Prior,
    Seed,
    Summary,
    ThetaNames,
    Trust,
    split,
)
from mindist.cli.output import bar, number, print_json, print_table, waiting
from mindist.cli.posterior import load_posterior
from mindist.cli.samples import FORMATS, NETCDF, check_room, write_netcdf, write_samples
from mindist.cli.status import UsageError
from mindist.cli.tables import check_suffix
from mindist.cli.verdicts import MAX_LISTED, detection_values, print_verdicts

QUANTILES = (0.05, 0.5, 0.95)
STATISTICS = ("mean", "sd", "q05", "q50", "q95")


def sample(
    mds: MdsFolder,
    data: DataFile,
    posterior: Posterior = None,
    summary: Summary = None,
    prior: Prior = None,
    trust: Trust = False,
    num: Annotated[int, typer.Option(help="Samples for each dataset.", min=1)] = 1_000,
    names: ThetaNames = None,
    columns: Columns = None,
    dataset_column: DatasetColumn = None,
    key: Key = None,
    missing: MissingValues = Missing.ERROR,
    alpha: Alpha = None,
    out: Annotated[
        Path | None, typer.Option(help="File of samples: .nc (ArviZ), .csv, .parquet or .npy.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Draw from the robust posterior: at the observed summary, or the adapted one if need be."""
    check_suffix(out, "--out", FORMATS)
    with waiting("Loading"):
        estimator = load_estimator(mds, summary, alpha=alpha)
        options = DataOptions(data, columns, dataset_column, key, missing)
        observed = options.read(estimator.event_shape)
        robust = robust_posterior(load_posterior(posterior, prior, trust=trust), estimator)
    check_room(out, observed, data)
    drawn = draw_all(robust, observed, num, seed)
    labels = parameter_names(names, drawn[0].shape[1])
    if out is not None and out.suffix.lower() == NETCDF:
        write_netcdf(out, robust, observed[0], num_samples=num, names=labels, seed=seed)
    elif out is not None:
        write_samples(out, drawn, labels, observed.names)
    rows = [
        row | {"num_samples": len(samples), "posterior": statistics(samples, labels)}
        for row, samples in zip(_detections(robust, observed), drawn, strict=True)
    ]
    if json:
        print_json("sample", alpha=estimator.alpha, parameters=labels, out=out, datasets=rows)
    else:
        _print(rows, estimator.alpha, out)


def robust_posterior(posterior: Any, mds: Any) -> Any:
    """The posterior behind the estimator."""
    from mindist.posteriors import RobustPosterior

    return RobustPosterior(posterior, mds)


def draw_all(robust: Any, observed: Any, num: int, seed: int) -> list[Any]:
    """Samples `(num, d_theta)` for each dataset, each from a seed of its own."""
    drawn = []
    with bar(len(observed), "Sampling") as shown:
        for index, x in enumerate(observed):
            drawn.append(robust.sample((num,), x=x, seed=seed + index).cpu())
            shown.update()
    return drawn


def parameter_names(names: str | None, dim: int) -> list[str]:
    """What the parameters are called.

    Example:
        >>> parameter_names(None, 2), parameter_names("mean, sd", 2)
        (['theta_0', 'theta_1'], ['mean', 'sd'])
    """
    labels = [f"theta_{i}" for i in range(dim)] if names is None else split(names)
    if len(labels) != dim or len(set(labels)) != dim:
        raise UsageError(
            f"--names: expected {dim} different names, separated by commas, got {names!r}."
        )
    return labels


def statistics(samples: Any, names: list[str]) -> list[dict[str, Any]]:
    """Mean, standard deviation and quantiles of each parameter; none of no samples."""
    import torch

    if len(samples) < 2:
        return []
    values = samples.double()
    levels = torch.tensor(QUANTILES, dtype=values.dtype)
    rows = torch.cat([values.mean(0)[None], values.std(0)[None], values.quantile(levels, 0)])
    columns = rows.T.tolist()
    return [
        {"name": name} | dict(zip(STATISTICS, column, strict=True))
        for name, column in zip(names, columns, strict=True)
    ]


def _detections(robust: Any, observed: Any) -> list[dict[str, Any]]:
    """What the adaptations said, which the posterior has remembered or finds again."""
    rows = []
    for name, x in zip(observed.names, observed, strict=True):
        result = robust.adapt(x)
        values = detection_values(name, len(x), result)
        rows.append(values | {"adapted": bool(result.adapted), "s_star": result.s_star.tolist()})
    return rows


def _print(rows: list[dict[str, Any]], alpha: float, out: Path | None) -> None:
    print_verdicts(rows, alpha)
    if len(rows) == 1:
        moved = "adapted" if rows[0]["adapted"] else "observed"
        cells = [[p["name"], *(number(p[key]) for key in STATISTICS)] for p in rows[0]["posterior"]]
        title = f"Posterior at the {moved} summary, {rows[0]['num_samples']:,} samples:"
        print_table(("", "mean", "sd", "5%", "50%", "95%"), cells, title=title)
    else:
        _print_several(rows)
    if out is not None:
        print(f"Written: {out}")


def _print_several(rows: list[dict[str, Any]]) -> None:
    adapted = sum(row["adapted"] for row in rows)
    title = "Posterior means and standard deviations"
    shown = [row for row in rows if row["posterior"]][:MAX_LISTED]
    if not shown:
        return
    cells = [
        [
            str(row["dataset"]),
            *(f"{number(p['mean'])} ({number(p['sd'])})" for p in row["posterior"]),
        ]
        for row in shown
    ]
    few = f" of the first {MAX_LISTED}" if len(rows) > MAX_LISTED else ""
    names = [p["name"] for p in shown[0]["posterior"]]
    print_table(
        ("dataset", *names),
        cells,
        title=f"{title}{few}, for {adapted} of {len(rows)} at an adapted summary:",
    )


__all__ = ["parameter_names", "robust_posterior", "sample"]
