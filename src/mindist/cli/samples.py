"""Posterior samples in files: NetCDF for ArviZ, NumPy, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindist.cli.errors import extra
from mindist.cli.status import UsageError
from mindist.cli.tables import TABLES, write_table

NETCDF, NUMPY = ".nc", ".npy"
FORMATS = (NETCDF, *TABLES, NUMPY)


def check_room(out: Path | None, observed: Any, data: Path) -> None:
    """Refuse several datasets where the format holds one."""
    if out is not None and out.suffix.lower() in (NETCDF, NUMPY) and len(observed) > 1:
        raise UsageError(
            f"--out: a {out.suffix} file holds the samples of one dataset, and {data} has "
            f"{len(observed)}. Write a .csv or .parquet, which has a column `dataset`."
        )


def write_samples(out: Path, drawn: Sequence[Any], names: list[str], datasets: Any) -> None:
    """Write samples as a table, or those of one dataset as an array.

    Arguments:
        out: The file.
        drawn: Samples `(S, d_theta)` of each dataset.
        names: Of the parameters.
        datasets: What the datasets are called.
    """
    if out.suffix.lower() == NUMPY:
        import numpy as np

        np.save(out, drawn[0].numpy())
        return
    rows = [row for samples in drawn for row in samples.tolist()]
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    if len(drawn) > 1:
        sizes = zip(datasets, drawn, strict=True)
        which = [name for name, samples in sizes for _ in range(len(samples))]
        columns = {"dataset": which, **columns}
    write_table(out, columns)


def write_netcdf(out: Path, robust: Any, x: Any, **options: Any) -> None:
    """Write samples, data, summaries and weights as ArviZ data.

    Arguments:
        out: The file.
        robust: A `RobustPosterior`.
        x: One dataset.
        options: Of `RobustPosterior.to_arviz`; equal seeds give equal samples.
    """
    with extra("arviz"):
        data = robust.to_arviz(x, **options)
    data.to_netcdf(str(out))


__all__ = ["FORMATS", "NETCDF", "check_room", "write_netcdf", "write_samples"]
