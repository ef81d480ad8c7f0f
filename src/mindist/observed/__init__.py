"""Observed data from npy, npz, CSV, Parquet, HDF5 and Zarr files: `read_observed`.

A format's library is imported once such a file is read; each defence answers a hostile file of
tests/test_observed.py. May import: `storage`, `checks`.
"""

import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindist import checks, storage

MAX_BYTES = 2**32
BUFFER_BYTES = 2**28  # of datasets that wait for others of their length
ARGUMENTS = ("path", "key", "columns", "dataset")


@dataclass(frozen=True)
class Request:  # the arguments of `read_observed`, and the errors that all formats share
    path: Path
    kind: str  # of the file, for messages
    event_shape: tuple[int, ...] | None = None
    key: str | Sequence[str] | None = None
    columns: Sequence[str] | None = None
    dataset: str | None = None
    max_bytes: int = MAX_BYTES
    vectors: bool = False  # for `Entrywise`: every row is one

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn whatever a library raises on a broken file into a ValueError that names the file."""
        try:
            yield
        except ImportError as error:
            then = "Install it: pip install 'mindist[files]'"
            raise ImportError(f"{self.kind} files need {error.name}. {then}") from error
        except Exception as error:
            if isinstance(error, ValueError) and str(error).split(":")[0] in ARGUMENTS:
                raise  # one of ours
            kind_of_error = "" if type(error) is ValueError else f"{type(error).__name__}: "
            why = (f"{kind_of_error}{error}".splitlines() or [""])[0][:200]
            then = "It may be damaged, or of another format than its name says."
            said = f"path: {self.path} cannot be read as {self.kind} ({why})."
            raise ValueError(f"{said} {then}") from error

    def check_size(self, size: int) -> None:
        if size > self.max_bytes:
            said = f"says that it holds {size:,} bytes of data, more than {self.max_bytes:,}"
            then = "It may be meant to fill your memory. If you trust it, pass a larger max_bytes."
            raise ValueError(f"path: {self.path} {said}. {then}")


# Datasets in a file: their names, the shape of an observation, and a way to read them.
class Source(NamedTuple):
    names: Sequence[Any]
    event_shape: tuple[int, ...]
    read: Callable[[], Iterator[NDArray[Any]]]

    def rows(self) -> "Source":
        """Return every observation as a vector of its own, with its name or its number."""
        sizes = [len(x) for x in self.read()]
        pairs = zip(self.names, sizes, strict=True)
        names: list[Any] = [(name, i) for name, size in pairs for i in range(size)]
        if len(sizes) == 1 or max(sizes) == 1:
            names = [name[len(sizes) == 1] for name in names]
        return Source(names, self.event_shape, lambda: chain.from_iterable(self.read()))


@dataclass(frozen=True)
class ObservedBatch:
    """Datasets `(B, N, *event)` of one length, and which of all datasets they are.

    Example:
        >>> ObservedBatch((0, 2), torch.zeros(2, 9, 1)).index
        (0, 2)
    """

    index: tuple[int, ...]
    x: Tensor


@dataclass(frozen=True)
class Observed:
    r"""Observed datasets `(N_i, *event)` in a file; iterates over them as tensors, keeps none.

    Example:
        >>> import tempfile, mindist
        >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        ...     _ = file.write("run,x,y\na,1,2\na,3,4\nb,5,6\n")
        ...     file.flush()
        ...     observed = mindist.read_observed(file.name, dataset="run")
        >>> observed["a"].tolist(), [batch.index for batch in observed.batches()]
        ([[1.0, 2.0], [3.0, 4.0]], [(0,), (1,)])
    """

    names: tuple[Any, ...]  # numbers, keys, or values in a column of a table
    event_shape: tuple[int, ...]  # of one observation
    lengths: tuple[int, ...]  # N_i, the observations in each dataset, without those dropped
    dropped: tuple[int, ...]  # how many observations of each lack a value
    _source: Source = field(repr=False, compare=False)
    vectors: bool = False  # `missing="keep"`: each is one vector `(*event)`, N_i its entries

    @classmethod
    def read(cls, source: Source, missing: str) -> "Observed":
        """Read through a source; what is missing is an `"error"`, or to `"drop"` or to `"keep"`."""
        event = tuple(source.event_shape)
        if missing == "keep":
            source = source.rows()
            num = len(source.names)
            sizes, none = (math.prod(event),) * num, (0,) * num
            return cls(tuple(source.names), event, sizes, none, source, vectors=True)
        names, lengths, dropped, first = tuple(source.names), [], [], ""
        for name, x in zip(names, source.read(), strict=True):
            wrong = ~_complete(x)
            if wrong.any() and not first:
                first = f"observation {wrong.argmax()} of dataset {str(name)[:80]!r}"
            dropped.append(int(wrong.sum()))
            lengths.append(len(x) - dropped[-1])
        if first and missing == "error":
            some, total = sum(map(bool, dropped)), sum(dropped) + sum(lengths)
            said = f"{sum(dropped)} of {total} observations, in {some} of {len(names)} datasets"
            what = f"have a missing, NaN or infinite value; the first is {first}"
            then = "Pass missing='drop' to leave such observations out, or impute them as the "
            raise ValueError(f"missing: {said}, {what}. {then}simulator would produce them.")
        return cls(names, event, tuple(lengths), tuple(dropped), source)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Tensor]:
        for x in self._source.read():
            complete = np.array(True) if self.vectors else _complete(x)
            small = x.dtype.kind == "f" and x.dtype.itemsize <= 4  # all else goes into float64
            kept, kind = x if complete.all() else x[complete], np.float32 if small else np.float64
            yield torch.from_numpy(np.array(kept, dtype=kind, order="C"))

    def __getitem__(self, which: Any) -> Tensor:
        """Return one dataset by name, else by number; reads those before it too."""
        if which in self.names:
            which = self.names.index(which)
        elif not isinstance(which, int) or not -len(self) <= which < len(self):
            raise KeyError(f"There is no dataset {which!r} among {len(self)}: see names.")
        return next(islice(self, which % len(self), None))

    @property
    def what(self) -> str:
        """Return what each of them is: a dataset, or a vector."""
        return "vector" if self.vectors else "dataset"

    def stack(self) -> Tensor:
        """Return all datasets as one batch `(B, N, *event)`; they must have equal lengths."""
        if len(set(self.lengths)) > 1:
            then = "Iterate over batches(), or over the datasets themselves."
            sizes = f"{min(self.lengths)} to {max(self.lengths)} observations"
            raise ValueError(f"Datasets of {sizes} are no batch. {then}")
        return torch.stack(list(self))

    def batches(self, size: int = 1_000) -> Iterator[ObservedBatch]:
        """Yield batches of datasets of equal length, at most `size` in each, each dataset once."""
        checks.positive(size, "size")
        waiting, used = dict[int, list[tuple[int, Tensor]]](), 0
        for i, x in enumerate(self):
            waiting.setdefault(len(x), []).append((i, x))
            used += x.nbytes
            if len(waiting[len(x)]) == size:
                used -= size * x.nbytes
                yield _batch(waiting.pop(len(x)))
            elif used > BUFFER_BYTES:
                yield from map(_batch, waiting.values())
                waiting, used = {}, 0
        yield from map(_batch, waiting.values())

    def __repr__(self) -> str:
        sizes = " to ".join(map(str, sorted({min(self.lengths), max(self.lengths)})))
        many = "" if self.vectors else f" of {sizes} observations"
        text = f"{len(self)} {self.what}s{many} of shape {self.event_shape}"
        if some := sum(map(bool, self.dropped)):
            text += f"; {sum(self.dropped)} observations with missing values dropped from {some}"
        return f"Observed({text})"


def _batch(group: Sequence[tuple[int, Tensor]]) -> ObservedBatch:
    return ObservedBatch(tuple(i for i, _ in group), torch.stack([x for _, x in group]))


def _complete(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which observations `(N,)` of a dataset have finite values only."""
    if x.dtype.kind != "f":
        return np.ones(len(x), dtype=bool)
    return np.asarray(np.isfinite(x).reshape(len(x), -1).all(1))


MAX_HEADER = 10_000  # characters: NumPy's own limit
BLOCK_BYTES = 2**26  # of datasets that are read at once
MAX_CHUNK_BYTES = 2**30
# None of these does more than to decompress.
CODECS = {"blosc", "bz2", "bytes", "crc32", "crc32c", "delta", "gzip", "lz4", "lzma", "shuffle"}
CODECS |= {"sharding_indexed", "transpose", "zlib", "zstd"}
# Built in: deflate, shuffle, fletcher32, szip, nbit, scaleoffset; and lzf, which h5py brings.
HDF5_FILTERS = {1, 2, 3, 4, 5, 6, 32000}
LINE_BYTES, MAX_COLUMNS = 2**20, 2**16  # of a CSV file


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names[:20]) + (", ..." if names[20:] else "")


def _not_numbers(where: str, what: str) -> Exception:
    then = "Objects are not read: that would run what the file says. Save it as type 'float64'."
    return checks.wrong(where, "real numbers", what, then)


def read_npy(request: Request) -> Source:
    """Map a `.npy` file; what is not asked for stays on the disk."""
    opened = partial(np.lib.format.open_memmap, request.path, "r", max_header_size=MAX_HEADER)
    return _arrays({"x": opened}, request, compressed=False)


def read_npz(request: Request) -> Source:
    with zipfile.ZipFile(request.path) as archive:
        sizes = {m.filename: m.file_size for m in archive.infolist()}
    keys = _keys([name[:-4] for name in sizes if name.endswith(".npy")], request)
    request.check_size(sum(sizes[f"{key}.npy"] for key in keys))

    def opened(key: str) -> Any:
        with np.load(request.path, allow_pickle=False, max_header_size=MAX_HEADER) as archive:
            return archive[key]

    return _arrays({key: partial(opened, key) for key in keys}, request)


def read_zarr(request: Request) -> Source:
    found, array = dict[str, Path](), None
    for name, folders, files in os.walk(request.path):
        folder = Path(name)
        for entry in (*folders, *files):  # a link may lead out of it
            if (folder / entry).is_symlink():
                raise ValueError(f"it has a link, {entry[:80]!r}")
        if array is not None and folder.is_relative_to(array):
            continue  # its chunks
        if ".zarray" in files or ("zarr.json" in files and "codecs" in _zarr_json(folder)):
            array = folder
            found[folder.relative_to(request.path).as_posix()] = folder
    keys = _keys(sorted(found), request)
    return _arrays({key: partial(_open_zarr, found[key]) for key in keys}, request)


def _zarr_json(folder: Path) -> dict[str, Any]:
    old = folder / ".zarray"
    value = storage.read_json(old if old.exists() else folder / "zarr.json")
    return value if isinstance(value, dict) else {}


def _open_zarr(folder: Path) -> Any:
    """Open an array whose metadata name no codec that could run what the file says."""
    if unknown := sorted(set(_codecs(_zarr_json(folder))) - CODECS):
        said = f"is stored with the codec {unknown[0][:80]!r}, which mindist does not run"
        then = "Some execute what the file says. Copy the array with zstd, gzip or blosc."
        raise ValueError(f"path: {folder} {said}. {then}")
    import zarr

    version: Any = 2 if (folder / ".zarray").exists() else 3
    return zarr.open_array(store=str(folder), mode="r", zarr_format=version)


def _codecs(values: Mapping[str, Any]) -> Iterator[str]:  # also of those within them
    lists = [values.get(name) or [] for name in ("codecs", "index_codecs", "filters")]
    for step in filter(None, [values.get("compressor"), *chain(*lists)]):
        own: Any = {"name": step} if isinstance(step, str) else step
        yield from (str(own[name]) for name in ("name", "id") if name in own)
        yield from _codecs(own.get("configuration") or {})


def read_hdf5(request: Request) -> Source:
    """Read an HDF5 file, which stays open. Only hard links are followed."""
    import h5py

    found = dict[str, Any]()
    h5py.File(request.path, "r", locking=False).visititems(found.__setitem__)
    arrays = [name for name, item in found.items() if isinstance(item, h5py.Dataset)]
    keys = _keys(arrays, request)
    return _arrays({key: partial(_open_hdf5, request.path, found[key]) for key in keys}, request)


def _open_hdf5(path: Path, array: Any) -> Any:
    """Return an array, if it takes nothing from other files, and no filter but HDF5's own."""
    where, plist = f"path: {path}, {array.name[1:80]!r}", array.id.get_create_plist()
    if array.is_virtual or array.external:
        then = "Copy them into one file, for example with h5repack or h5py."
        raise ValueError(f"{where} takes its numbers from other files, which are not read. {then}")
    filters = {int(plist.get_filter(i)[0]) for i in range(plist.get_nfilters())} - HDF5_FILTERS
    if filters:
        said = f"is compressed by filter {min(filters)}, a plug-in, which is not loaded"
        raise ValueError(f"{where} {said}. Copy it with another compression, for example gzip.")
    return array


def _keys(available: Sequence[str], request: Request) -> list[str]:
    key, listed = request.key, _listed(available)
    if not available:
        raise ValueError(f"path: {request.path} holds no arrays.")
    if key is None and len(available) > 1:
        then = f"Choose one, such as key={available[0][:80]!r}, or several, each one dataset"
        said = f"holds {len(available)} arrays: {listed}. {then}, as a list; '*' means all."
        raise ValueError(f"key: {request.path} {said}")
    wanted = list(available) if key in (None, "*") else [key] if isinstance(key, str) else list(key)
    for name in wanted:
        if name not in available:
            raise ValueError(f"key: {request.path} has no array {name!r}. It holds {listed}.")
    if not wanted:
        raise ValueError(f"key: expected at least one of the arrays {listed}, got none.")
    return wanted


def _arrays(
    arrays: Mapping[str, Callable[[], Any]], request: Request, *, compressed: bool = True
) -> Source:
    """Plan the datasets in arrays, each of which a function opens; files may be `compressed`."""
    total, many, names, event = 0, {}, [], request.event_shape
    for key, opened in arrays.items():
        where = f"path: {request.path}" + (f", {key!r}" if len(arrays) > 1 else "")
        array = opened()
        shape = tuple(map(int, array.shape or ()))
        if array.dtype.kind not in "fiub":
            raise _not_numbers(where, f"an array of type {str(array.dtype)[:80]}")
        if not shape or 0 in shape:
            got = f"an empty array {shape}" if shape else "a single number"
            raise checks.wrong(where, "an array of observations", got)
        total += math.prod(shape) * int(array.dtype.itemsize)
        if math.prod(getattr(array, "chunks", None) or ()) * array.dtype.itemsize > MAX_CHUNK_BYTES:
            said = f"has chunks of more than {MAX_CHUNK_BYTES:,} bytes. Copy it with smaller ones."
            raise ValueError(f"{where} {said}")
        if compressed:
            request.check_size(total)  # before there is a name for each dataset
        if event is None and (len(arrays) > 1 or request.vectors):
            event = shape[1:]  # each array is one dataset
        if event is None and len(shape) > 1:
            said = f"an array of shape {shape} may be one dataset (N, *event) or many"
            then = "Say what one observation is: event_shape=mds.event_shape of a fitted estimator"
            known = f"or for one dataset event_shape={shape[1:]}, for many {shape[2:]}"
            raise ValueError(f"{where}: {said}, (B, N, *event). {then}, {known}.")
        event = event or ()
        extra = len(shape) - len(event)
        if extra not in ((0, 1) if request.vectors else (1, 2)) or shape[extra:] != event:
            axes = ((), "B") if request.vectors else ("N", ("B", "N"))
            one, batch = (", ".join([*first, *map(str, event)]) for first in axes)
            what = "vector" if request.vectors else "dataset"
            said = f"one {what} of shape ({one}) or many, ({batch})"
            then = "Give the event_shape of observations in the file, or reshape them as simulated."
            raise checks.wrong(where, said, f"an array of shape {shape}", then)
        many[key] = extra == 2
        numbers: list[Any] = list(range(shape[0])) if many[key] else [0]
        several: list[Any] = [(key, i) for i in numbers] if many[key] else [key]
        names += numbers if len(arrays) == 1 else several

    def read() -> Iterator[NDArray[Any]]:
        with request.reading():
            for key, opened in arrays.items():
                array = opened()
                if not many[key]:
                    yield np.asarray(array[...]).reshape(-1, *(event or ()))
                    continue
                # Chunks are decompressed once, if they are not too large.
                size = math.prod(array.shape[1:]) * array.dtype.itemsize
                step = max(1, min((getattr(array, "chunks", None) or (1,))[0], BLOCK_BYTES // size))
                for begin in range(0, array.shape[0], step):
                    yield from np.asarray(array[begin : begin + step])

    return Source(names, event or (), read)


def read_csv(request: Request) -> Source:
    """Read a CSV file. Empty fields, NA, NaN, null and the like are missing values."""
    from pyarrow import csv, string

    with request.path.open("rb") as file:
        line = file.readline(LINE_BYTES).decode("utf-8-sig")
    if not line:
        raise ValueError(f"path: {request.path} is empty.")
    delimiter = max(",;\t", key=line.count)
    if line.count(delimiter) >= MAX_COLUMNS:
        raise ValueError(f"it has more than {MAX_COLUMNS} columns")
    first = [field.strip(' \t\r\n"') for field in line.split(delimiter)]
    request.check_size(request.path.stat().st_size)
    options = csv.ReadOptions(use_threads=False, block_size=LINE_BYTES)
    with suppress(ValueError):
        options.autogenerate_column_names = bool([float(field) for field in first])
    kinds = {} if request.dataset is None else {request.dataset: string()}
    convert = csv.ConvertOptions(strings_can_be_null=True, column_types=kinds)
    parse = csv.ParseOptions(delimiter=delimiter)
    parse.ignore_empty_lines = not request.vectors or delimiter in line
    table = csv.read_csv(request.path, options, parse, convert)
    return _table(table.schema, table.select, request)


def read_parquet(request: Request) -> Source:
    """Read the columns that are asked for, once the footer's claims are within `max_bytes`."""
    import pyarrow.parquet as pq

    limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
    with pq.ParquetFile(request.path, page_checksum_verification=True, **limits) as file:
        claims = file.metadata
        groups = [claims.row_group(i) for i in range(claims.num_row_groups)]
        rows = [claims.num_rows, *(group.num_rows for group in groups)]
        stored = [group.total_byte_size for group in groups]
        if min(rows + stored) < 0:
            raise ValueError("it says that it has fewer than no rows")
        values = max(rows[0], sum(rows[1:])) * claims.num_columns
        request.check_size(max(4 * values, sum(stored)))

        def read(names: list[str]) -> Any:
            table = file.read(names, use_threads=False)
            table.validate(full=True)
            return table

        return _table(file.schema_arrow, read, request)


def _table(schema: Any, read: Callable[[list[str]], Any], request: Request) -> Source:
    """Read some columns of a table, and sort its rows into datasets."""
    import pyarrow as pa

    columns = _columns(schema, request)
    table = read([*columns, *([] if request.dataset is None else [request.dataset])])
    # As Python would: 2**53 + 1 is rounded, where Arrow makes it an error; null becomes NaN.
    x = np.empty((table.num_rows, len(columns)))
    for i, name in enumerate(columns):
        x[:, i] = table.column(name).cast(pa.float64(), safe=False).to_numpy()
    event = (len(columns),) if request.event_shape is None else request.event_shape
    if x.shape[1] != math.prod(event) != len(x):  # one column is one vector
        said = f"one column of {math.prod(event)} rows, or a row for each vector"
        raise checks.wrong("columns", said, f"one column of {len(x)} rows")
    x = x.reshape(-1, *event)
    if request.dataset is None:
        return Source([0], event, lambda: iter([x]))
    import pandas as pd

    codes, found = pd.factorize(table.column(request.dataset).to_pandas())  # -1 for a missing one
    names = found.tolist() + [None] * bool((codes < 0).any())
    wrong = [name for name in names if not isinstance(name, str | int | float)]
    if wrong:
        said = f"a text or a number in each row of {request.dataset!r}"
        then = "Drop the rows that belong to no dataset."
        raise checks.wrong("columns", said, str(wrong[0])[:80], then)
    parts = np.split(x[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    return Source(names, event, lambda: iter(parts))


def _columns(schema: Any, request: Request) -> list[str]:
    """Return the columns of the observation: those asked for, or all numeric but the dataset's."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    numeric = [field.name for field in schema if any(fits(field.type) for fits in kinds)]
    every, path = schema.names, request.path
    twice = {name for name in every if every.count(name) > 1} if len(every) < 1_000 else ()
    known = f"It has {_listed(every)}."
    if request.dataset is not None and request.dataset not in every:
        raise ValueError(f"dataset: {path} has no column {request.dataset!r}. {known}")
    chosen = [name for name in numeric if name != request.dataset]
    if request.columns is not None:
        chosen = list(request.columns)
    for name in chosen:
        if name not in every or name in twice:
            what = "two columns" if name in twice else "no column"
            raise ValueError(f"columns: {path} has {what} {name!r}. {known}")
        if name not in numeric:
            raise _not_numbers(f"columns: {path}, {name!r}", "a column of something else")
    if not chosen:
        then = "One word makes a column one of text; what is missing should be empty, NA or NaN."
        raise ValueError(f"columns: {path} has no column of numbers. {known} {then}")
    wanted = len(chosen) if request.event_shape is None else math.prod(request.event_shape)
    if len(chosen) != wanted and not (request.vectors and len(chosen) == 1):
        index = "One without a name is often an index. " if "" in chosen else ""
        shape = f"an observation of shape {request.event_shape}"
        got = f"{len(chosen)}: {_listed(chosen)}"
        then = f"{index}Choose {'them' if wanted > 1 else 'it'} with columns=[...]."
        raise checks.wrong("columns", f"{wanted} column{'s' * (wanted > 1)} for {shape}", got, then)
    return chosen


# The name of a format, and what reads it.
TABLES = dict.fromkeys((".csv", ".tsv", ".txt"), ("CSV", read_csv))
TABLES |= dict.fromkeys((".parquet", ".pq"), ("Parquet", read_parquet))
READERS = {".npy": ("npy", read_npy), ".npz": ("npz", read_npz), **TABLES}
READERS |= dict.fromkeys((".h5", ".hdf5"), ("HDF5", read_hdf5)) | {".zarr": ("Zarr", read_zarr)}


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
            `"drop"` to leave them out; the result says how many there were. `"keep"` is for
            `Entrywise`: every row, or the only column of a table, is a vector with NaN in it.
        max_bytes: How much data a file may say that it holds, which can be far more than its size.

    Returns:
        The datasets, which are read when they are asked for. A damaged, hostile or unclear file is
        a ValueError, a missing one a FileNotFoundError. HDF5's library may hang on a hostile file.

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
    checks.choice(missing, ("error", "drop", "keep"), "missing")
    event = None if event_shape is None else tuple(int(size) for size in event_shape)
    if suffix in TABLES and key is not None:
        raise ValueError("key: expected None for a table. Choose its columns with columns=[...].")
    if suffix not in TABLES and (columns is not None or dataset is not None):
        raise ValueError(f"columns, dataset: expected None for {suffix}, which is no table.")
    kind, read = READERS[suffix]
    request = Request(file, kind, event, key, columns, dataset, max_bytes, missing == "keep")
    with request.reading():
        source = read(request)
    observed = Observed.read(source, missing)
    if not sum(observed.lengths):
        raise ValueError(f"path: {file} holds no complete observation.")
    return observed


__all__ = ["Observed", "ObservedBatch", "read_observed"]
