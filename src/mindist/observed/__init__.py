"""Observed data from npy, npz, CSV, Parquet, HDF5 and Zarr files: `read_observed`.

A format's library is imported once such a file is read. May import: `storage`, `checks`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from mindist import checks
from mindist.observed.formats import MAX_BYTES, READERS, TABLES, Observed, ObservedBatch, Request


def read_observed(
    path: str | os.PathLike[str],
    *,
    event_shape: Sequence[int] | None = None,
    key: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    dataset: str | None = None,
    missing: str = "error",
    max_bytes: int = MAX_BYTES,
) -> Observed:
    """Read observed data from a file: one dataset, or many of equal or different lengths.

    The name tells the format: .npy, .npz, .csv, .tsv, .txt, .parquet, .h5, .hdf5, or .zarr, a
    folder. Nothing in a file is executed, and no other file that it names is opened.

    Arguments:
        path: The file.
        event_shape: The shape of one observation, `mds.event_shape` of a fitted estimator. An array
            is one dataset `(N, *event)` or many, `(B, N, *event)`, and without it only an array
            `(N,)` is clear. The columns of a table are reshaped to it.
        key: Which array of a file that holds several; or a list of them, or `"*"` for all.
        columns: Which columns of a table are the observation, by default all of numbers.
        dataset: Which column of a table names the dataset of a row; by default there is only one.
        missing: What to do about observations with a missing, NaN or infinite value: `"error"`, or
            `"drop"` to leave them out; the result says how many there were.
        max_bytes: How much data a file may say that it holds, which can be far more than its size.

    Returns:
        The datasets, which are read when they are asked for. A damaged, hostile or unclear file is
        a ValueError, a missing one a FileNotFoundError.

    Example:
        >>> import tempfile, numpy as np
        >>> path = tempfile.mkdtemp() + "/x.npy"
        >>> np.save(path, np.zeros((5, 100, 2)))
        >>> read_observed(path, event_shape=(2,))
        Observed(5 datasets of 100 observations of shape (2,))
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in READERS:
        said = f"a file whose name ends in {', '.join(READERS)}"
        raise checks.wrong("path", said, repr(file.name), "Rename or convert it.")
    if not file.exists():
        raise FileNotFoundError(f"path: there is no file {file}.")
    if not (file.is_dir() if suffix == ".zarr" else file.is_file()):
        kind = "folder" if suffix == ".zarr" else "regular file"
        raise checks.wrong("path", f"a {kind} for {suffix}", f"something else at {file}")
    checks.choice(missing, ("error", "drop"), "missing")
    event = None if event_shape is None else tuple(int(size) for size in event_shape)
    if suffix in TABLES and key is not None:
        raise ValueError("key: expected None for a table. Choose its columns with columns=[...].")
    if suffix not in TABLES and (columns is not None or dataset is not None):
        raise ValueError(f"columns, dataset: expected None for {suffix}, which is no table.")
    source = READERS[suffix](Request(file, event, key, columns, dataset, max_bytes))
    observed = Observed.read(source, missing)
    if not sum(observed.lengths):
        raise ValueError(f"path: {file} holds no complete observation.")
    return observed


__all__ = ["Observed", "ObservedBatch", "read_observed"]
