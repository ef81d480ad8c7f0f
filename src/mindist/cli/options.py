"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from mindist.cli.status import UsageError

NAME = "FILE.py:NAME"


class Missing(str, Enum):
    """What to do about observations with missing values."""

    ERROR = "error"
    DROP = "drop"


MdsFolder = Annotated[
    Path, typer.Argument(metavar="MDS", help="The folder that `mindist fit` wrote.")
]
BankFolder = Annotated[
    Path, typer.Argument(metavar="BANK", help="The folder that `mindist simulate` wrote.")
]
DataFile = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Observed data: .csv, .npy, .npz, .parquet, .h5 or .zarr."),
]
Summary = Annotated[
    str | None,
    typer.Option(
        "--summary",
        metavar=NAME,
        help="The summary function, as file.py:name or module:name; datasets (B, N, ...) to "
        "summaries (B, d). The file is executed.",
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        "--prior",
        metavar=NAME,
        help="The prior: an object with .sample((n,)) (and .log_prob), or a function of n.",
    ),
]
Posterior = Annotated[
    str | None,
    typer.Option(
        "--posterior",
        metavar="POSTERIOR",
        help="The posterior over summaries: a folder of `mindist train` (with --prior), "
        "file.py:name, or with --trust a pickle of sbi's.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Unpickle the posterior. A pickle is a program, which this executes."
    ),
]
ThetaNames = Annotated[
    str | None,
    typer.Option("--names", metavar="A,B,...", help="Names of the parameters, for the output."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...", help="Columns of a table that are the observation; else all numbers."
    ),
]
DatasetColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of a table that names the dataset of each row."),
]
Key = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Array in a file that holds several; '*' for all."),
]
MissingValues = Annotated[
    Missing, typer.Option("--missing", help="What becomes of observations with missing values.")
]
Alpha = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Share of well-specified datasets that may be called misspecified; else as fitted.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.", min=0)]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document to stdout, and all else to stderr."),
]


@dataclass(frozen=True)
class DataOptions:
    """What the user said about a file of observed data.

    Arguments:
        path: The file.
        columns: Names, separated by commas.
        dataset_column: Of a table.
        key: Of an array.
        missing: What to do about missing values.
    """

    path: Path
    columns: str | None
    dataset_column: str | None
    key: str | None
    missing: Missing

    def read(self, event_shape: Any) -> Any:
        """The `Observed` datasets, of observations of this shape."""
        from mindist.observed import read_observed

        if not self.path.exists():
            raise UsageError(f"DATA: there is no file {self.path}.")
        columns = None if self.columns is None else split(self.columns)
        return read_observed(
            self.path,
            event_shape=event_shape,
            key=self.key,
            columns=columns,
            dataset=self.dataset_column,
            missing=self.missing.value,
        )


def split(names: str) -> list[str]:
    """Names that are separated by commas.

    Example:
        >>> split("mean, sd")
        ['mean', 'sd']
    """
    return [name.strip() for name in names.split(",")]


__all__ = [
    "Alpha",
    "BankFolder",
    "Columns",
    "DataFile",
    "DataOptions",
    "DatasetColumn",
    "Json",
    "Key",
    "MdsFolder",
    "Missing",
    "MissingValues",
    "Posterior",
    "Prior",
    "Seed",
    "Summary",
    "ThetaNames",
    "Trust",
    "split",
]
