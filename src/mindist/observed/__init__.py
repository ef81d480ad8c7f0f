"""Observed data as people have it: npy, npz, CSV, Parquet, HDF5 and Zarr, one file for each format.

`read_observed` gives an `Observed`, datasets `(N_i, *event)` that are read when they are asked for.
Reading executes nothing that a file says and opens no other file. A format's library is imported in
its one file, once such a file is read.
May import: torch, NumPy, `mindist.parquet` and the layers below it.
"""

from mindist.observed.datasets import Observed, ObservedBatch
from mindist.observed.reading import read_observed

__all__ = ["Observed", "ObservedBatch", "read_observed"]
