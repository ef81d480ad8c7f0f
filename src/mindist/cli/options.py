"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from mindist.cli.errors import UsageError

NAME = "FILE.py:NAME"

LEVEL = "Share of well-specified datasets that may be called misspecified; "
RANDOM = "Of everything random"

MdsFolder = Annotated[Path, Argument(metavar="MDS", help="The folder that `mindist fit` wrote.")]
BANK = "The folder that `mindist simulate` wrote."
BankFolder = Annotated[Path, Argument(metavar="BANK", help=BANK)]
FILES = "Observed data: .csv, .npy, .npz, .parquet, .h5 or .zarr."
DataFile = Annotated[Path, Argument(metavar="DATA", help=FILES)]
A_SUMMARY = (
    "The summary function, as file.py:name or module:name; datasets (B, N, ...) to summaries "
    "(B, d). The file is executed."
)
Summary = Annotated[str | None, Option("--summary", metavar=NAME, help=A_SUMMARY)]
A_PRIOR = "An object with .sample((n,)) (and .log_prob), or a function of n."
Prior = Annotated[str | None, Option("--prior", metavar=NAME, help=f"The prior. {A_PRIOR}")]
A_POSTERIOR = (
    "The posterior over summaries: a folder of `mindist train` (with --prior), file.py:name, or "
    "with --trust a pickle of sbi's."
)
Posterior = Annotated[str | None, Option("--posterior", metavar="POSTERIOR", help=A_POSTERIOR)]
PICKLE = "Unpickle the posterior. A pickle is a program, which this executes."
Trust = Annotated[bool, Option("--trust", help=PICKLE)]
THETA = "Names of the parameters, for the output."
ThetaNames = Annotated[str | None, Option("--names", metavar="A,B,...", help=THETA)]
OBSERVATION = "Columns of a table that are the observation; else all numbers."
Columns = Annotated[str | None, Option(metavar="A,B,...", help=OBSERVATION)]
DATASET = "Column of a table that names the dataset of each row."
DatasetColumn = Annotated[str | None, Option(metavar="COLUMN", help=DATASET)]
ARRAY = "Array in a file that holds several; '*' for all."
Key = Annotated[str | None, Option(metavar="NAME", help=ARRAY)]
MISSING = "What becomes of observations with missing values."
MissingValues = Annotated[Literal["error", "drop"], Option("--missing", help=MISSING)]
Alpha = Annotated[float | None, Option(min=0, max=1, help=f"{LEVEL}else as fitted.")]
Seed = Annotated[int, Option("--seed", help=f"{RANDOM}.", min=0)]
DOCUMENT = "Print one JSON document to stdout, and all else to stderr."
Json = Annotated[bool, Option("--json", help=DOCUMENT)]


def read_data(
    path: Path, mds: Any, columns: str | None, dataset: str | None, key: str | None, missing: str
) -> Any:
    from mindist.observed import read_observed

    if not path.exists():
        raise UsageError(f"DATA: there is no file {path}.")
    names = None if columns is None else split(columns)
    told: dict[str, Any] = {"columns": names, "dataset": dataset, "key": key, "missing": missing}
    return read_observed(path, event_shape=mds.event_shape, **told)


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]
