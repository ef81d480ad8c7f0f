"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from mindist.cli.errors import UsageError

NAME = "FILE.py:NAME"

MdsFolder = Annotated[Path, Argument(metavar="MDS", help="The folder that `mindist fit` wrote.")]
BankFolder = Annotated[
    Path, Argument(metavar="BANK", help="The folder that `mindist simulate` wrote.")
]
DataFile = Annotated[
    Path,
    Argument(metavar="DATA", help="Observed data: .csv, .npy, .npz, .parquet, .h5 or .zarr."),
]
Summary = Annotated[
    str | None,
    Option(
        "--summary",
        metavar=NAME,
        help="The summary function, as file.py:name or module:name; datasets (B, N, ...) to "
        "summaries (B, d). The file is executed.",
    ),
]
Prior = Annotated[
    str | None,
    Option(
        "--prior",
        metavar=NAME,
        help="The prior: an object with .sample((n,)) (and .log_prob), or a function of n.",
    ),
]
Posterior = Annotated[
    str | None,
    Option(
        "--posterior",
        metavar="POSTERIOR",
        help="The posterior over summaries: a folder of `mindist train` (with --prior), "
        "file.py:name, or with --trust a pickle of sbi's.",
    ),
]
Trust = Annotated[
    bool,
    Option("--trust", help="Unpickle the posterior. A pickle is a program, which this executes."),
]
ThetaNames = Annotated[
    str | None,
    Option("--names", metavar="A,B,...", help="Names of the parameters, for the output."),
]
Columns = Annotated[
    str | None,
    Option(
        metavar="A,B,...", help="Columns of a table that are the observation; else all numbers."
    ),
]
DatasetColumn = Annotated[
    str | None,
    Option(metavar="COLUMN", help="Column of a table that names the dataset of each row."),
]
Key = Annotated[
    str | None, Option(metavar="NAME", help="Array in a file that holds several; '*' for all.")
]
MissingValues = Annotated[
    Literal["error", "drop"],
    Option("--missing", help="What becomes of observations with missing values."),
]
Alpha = Annotated[
    float | None,
    Option(
        min=0,
        max=1,
        help="Share of well-specified datasets that may be called misspecified; else as fitted.",
    ),
]
Seed = Annotated[int, Option("--seed", help="Of everything random.", min=0)]
Json = Annotated[
    bool, Option("--json", help="Print one JSON document to stdout, and all else to stderr.")
]


@dataclass(frozen=True)
class DataOptions:
    """What the user said about a file of observed data."""

    path: Path
    columns: str | None
    dataset_column: str | None
    key: str | None
    missing: str

    def read(self, event_shape: Any) -> Any:
        """Read the `Observed` datasets, of observations of this shape."""
        from mindist.observed import read_observed

        if not self.path.exists():
            raise UsageError(f"DATA: there is no file {self.path}.")
        return read_observed(
            self.path,
            event_shape=event_shape,
            key=self.key,
            columns=None if self.columns is None else split(self.columns),
            dataset=self.dataset_column,
            missing=self.missing,
        )


def split(names: str) -> list[str]:
    """Split names that are separated by commas.

    Example:
        >>> split("mean, sd")
        ['mean', 'sd']
    """
    return [name.strip() for name in names.split(",")]
