"""One reader for each format; each defence answers a hostile file of tests/test_observed.py."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindist import checks, storage
from mindist.observed.source import Request, Source

MAX_HEADER = 10_000  # characters: NumPy's own limit
BLOCK_BYTES = 2**26  # of datasets that are read at once
MAX_CHUNK_BYTES = 2**30
# None of these does more than to decompress.
CODECS = {"blosc", "bz2", "bytes", "crc32", "crc32c", "delta", "gzip", "lz4", "lzma", "shuffle"}
CODECS |= {"sharding_indexed", "transpose", "zlib", "zstd"}
HDF5_PROGRAM = Path(__file__).with_name("hdf5_copy.py")
HDF5_SECONDS = 600.0  # a busy process ends itself earlier: hdf5_copy.py
LINE_BYTES, MAX_COLUMNS = 2**20, 2**16  # of a CSV file


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names[:20]) + (", ..." if names[20:] else "")


def _not_numbers(where: str, what: str) -> ValueError:
    """Return the error for text, dates, objects or complex numbers."""
    return ValueError(
        f"{where}: expected real numbers, got {what}. Objects are not read, because that would run "
        "what the file says; save plain numbers, for example with array.astype('float64')."
    )


def read_npy(request: Request) -> Source:
    """Map a `.npy` file; what is not asked for stays on the disk."""
    opened = partial(np.lib.format.open_memmap, request.path, "r", max_header_size=MAX_HEADER)
    return _arrays("npy", {"x": opened}, request, compressed=False)


def read_npz(request: Request) -> Source:
    """Read an `.npz` file, one array at a time."""
    with request.reading("npz"), zipfile.ZipFile(request.path) as archive:
        sizes = {m.filename: m.file_size for m in archive.infolist()}
    keys = _keys([name[:-4] for name in sizes if name.endswith(".npy")], request)
    request.check_size(sum(sizes[f"{key}.npy"] for key in keys))

    def opened(key: str) -> Any:
        with np.load(request.path, allow_pickle=False, max_header_size=MAX_HEADER) as archive:
            return archive[key]

    return _arrays("npz", {key: partial(opened, key) for key in keys}, request)


def read_zarr(request: Request) -> Source:
    """Read a Zarr store, version 2 or 3, slice by slice."""
    with request.reading("Zarr"):
        found = dict(_zarr_arrays(request.path))
    keys = _keys(sorted(found), request)
    return _arrays("Zarr", {key: partial(_open_zarr, found[key]) for key in keys}, request)


def _zarr_arrays(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the arrays in a folder by their paths in it; refuse links, which may lead out of it."""
    array = None
    for name, folders, files in os.walk(root):
        folder = Path(name)
        for entry in (*folders, *files):
            if (folder / entry).is_symlink():
                raise ValueError(f"it has a link, {entry[:80]!r}")
        if array is not None and folder.is_relative_to(array):
            continue  # its chunks
        if ".zarray" in files or ("zarr.json" in files and "codecs" in _zarr_json(folder)):
            array = folder
            yield folder.relative_to(root).as_posix(), folder


def _zarr_json(folder: Path) -> dict[str, Any]:
    old = folder / ".zarray"
    value = storage.read_json(old if old.exists() else folder / "zarr.json")
    return value if isinstance(value, dict) else {}


def _open_zarr(folder: Path) -> Any:
    """Open an array whose metadata name no codec that could run what the file says."""
    unknown = sorted(set(_codecs(_zarr_json(folder))) - CODECS)
    if unknown:
        raise ValueError(
            f"path: {folder} is stored with the codec {unknown[0][:80]!r}, which mindist does not "
            "run: some execute what the file says. Copy the array with zstd, gzip or blosc."
        )
    import zarr

    version: Any = 2 if (folder / ".zarray").exists() else 3
    array = zarr.open_array(store=str(folder), mode="r", zarr_format=version)
    if math.prod(array.chunks) * array.dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(f"its chunks are of more than {MAX_CHUNK_BYTES:,} bytes")
    return array


def _codecs(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of codecs of version 2 or 3, and of those within them."""
    lists = [values.get(name) or [] for name in ("codecs", "index_codecs", "filters")]
    for step in filter(None, [values.get("compressor"), *chain(*lists)]):
        own: Any = {"name": step} if isinstance(step, str) else step
        yield from (str(own[name]) for name in ("name", "id") if name in own)
        yield from _codecs(own.get("configuration") or {})


def read_hdf5(request: Request) -> Source:
    """Let another process copy arrays of an HDF5 file to `.npy` files, and map these.

    The HDF5 library runs for ever on some damaged files (tests/fixtures/endless.h5), and crashes on
    others: in a process that can be ended, with a limit of time and memory, that harms nobody.
    """
    folder, command = tempfile.mkdtemp(prefix="mindist-hdf5-"), [sys.executable, str(HDF5_PROGRAM)]

    def opened(key: str) -> Any:
        dtype, shape, refused = found[key]
        if refused:
            raise ValueError(f"path: {request.path}, {key[:80]!r} {refused}")
        copy = Path(folder, f"{list(found).index(key)}.npy")
        if copy.exists():
            return np.load(copy, mmap_mode="r")
        return np.broadcast_to(np.zeros((), dtype), shape)  # to be refused for its type or size

    weakref.finalize(opened, shutil.rmtree, folder, ignore_errors=True)
    wanted = [request.key] if isinstance(request.key, str) else request.key
    where = {"path": str(request.path.resolve()), "folder": folder}
    task = json.dumps({**where, "keys": wanted, "max_bytes": request.max_bytes})
    with request.reading("HDF5"):
        if find_spec("h5py") is None:
            raise ModuleNotFoundError(name="h5py")
        answer = subprocess.run(
            command, input=task, capture_output=True, text=True, timeout=HDF5_SECONDS, check=False
        )
        if answer.returncode:
            said = answer.stderr.strip().rpartition("\n")[2]
            raise ValueError(said or "the HDF5 library crashed on it, or did not come to an end")
        found = json.loads(answer.stdout)
    keys = _keys(list(found), request)
    return _arrays("HDF5", {key: partial(opened, key) for key in keys}, request)


def _keys(available: Sequence[str], request: Request) -> list[str]:
    """Return the arrays that the user means."""
    key, listed = request.key, _listed(available)
    if not available:
        raise ValueError(f"path: {request.path} holds no arrays.")
    if key is None and len(available) > 1:
        raise ValueError(
            f"key: {request.path} holds {len(available)} arrays: {listed}. Choose one, such as "
            f"key={available[0][:80]!r}, or several, each of them one dataset, as a list; '*' "
            "means all."
        )
    wanted = list(available) if key in (None, "*") else [key] if isinstance(key, str) else list(key)
    for name in wanted:
        if name not in available:
            raise ValueError(f"key: {request.path} has no array {name!r}. It holds {listed}.")
    if not wanted:
        raise ValueError(f"key: expected at least one of the arrays {listed}, got none.")
    return wanted


def _arrays(
    kind: str, arrays: Mapping[str, Callable[[], Any]], request: Request, *, compressed: bool = True
) -> Source:
    """Plan the datasets in arrays, each of which a function opens; files may be `compressed`."""
    total, many, names, event = 0, {}, [], request.event_shape
    for key, opened in arrays.items():
        where = f"path: {request.path}" + (f", {key!r}" if len(arrays) > 1 else "")
        with request.reading(kind):
            array = opened()
            shape = tuple(map(int, array.shape))
            if array.dtype.kind not in "fiub":
                raise _not_numbers(where, f"an array of type {str(array.dtype)[:80]}")
            if not shape or 0 in shape:
                got = f"an empty array {shape}" if shape else "a single number"
                raise ValueError(f"{where}: expected an array of observations, got {got}.")
            total += math.prod(shape) * int(array.dtype.itemsize)
        if compressed:
            request.check_size(total)  # before there is a name for each dataset
        if event is None and len(arrays) > 1:
            event = shape[1:]  # of several arrays each is one dataset
        many[key] = _is_batch(shape, event, where)
        event = shape[2:] if many[key] else shape[1:]
        numbers: list[Any] = list(range(shape[0])) if many[key] else [0]
        several: list[Any] = [(key, i) for i in numbers] if many[key] else [key]
        names += numbers if len(arrays) == 1 else several

    def read() -> Iterator[NDArray[Any]]:
        with request.reading(kind):
            for key, opened in arrays.items():
                yield from _split(opened(), many[key])

    return Source(names, event or (), read)


def _is_batch(shape: tuple[int, ...], event: tuple[int, ...] | None, where: str) -> bool:
    """Return whether an array of this shape holds many datasets."""
    if event is None:
        if len(shape) == 1:
            return False
        raise ValueError(
            f"{where}: an array of shape {shape} may be one dataset (N, *event) or many, "
            "(B, N, *event). Say what one observation is: event_shape=mds.event_shape of a fitted "
            f"estimator, or for one dataset event_shape={shape[1:]}, for many {shape[2:]}."
        )
    extra = len(shape) - len(event)
    if extra not in (1, 2) or shape[extra:] != event:
        one, batch = (", ".join([*first, *map(str, event)]) for first in ("N", ("B", "N")))
        raise ValueError(
            f"{where}: expected one dataset of shape ({one}) or many, ({batch}), got an array of "
            f"shape {shape}. Give the event_shape of the observations in the file, or reshape them "
            "to the one that was simulated."
        )
    return extra == 2


def _split(array: Any, many: bool) -> Iterator[NDArray[Any]]:
    """Yield the datasets of an array, as few at a time as its chunks allow."""
    if not many:
        yield np.asarray(array[...])
        return
    chunks = getattr(array, "chunks", None)  # each of which is decompressed once, if not too large
    size = math.prod(array.shape[1:]) * array.dtype.itemsize
    step = max(1, min(chunks[0] if chunks else 1, BLOCK_BYTES // size))
    for begin in range(0, array.shape[0], step):
        yield from np.asarray(array[begin : begin + step])


def read_csv(request: Request) -> Source:
    """Read a CSV file. Empty fields, NA, NaN, null and the like are missing values."""
    with request.reading("CSV"):
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
        options.autogenerate_column_names = all(map(_is_number, first))
        kinds = {} if request.dataset is None else {request.dataset: string()}
        convert = csv.ConvertOptions(strings_can_be_null=True, column_types=kinds)
        parse = csv.ParseOptions(delimiter=delimiter)
        table = csv.read_csv(request.path, options, parse, convert)
        return _table(table.schema, table.select, request)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def read_parquet(request: Request) -> Source:
    """Read the columns that are asked for, once the footer's claims are within `max_bytes`."""
    with request.reading("Parquet"):
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
    x = x.reshape(-1, *event)
    if request.dataset is None:
        return Source([0], event, lambda: iter([x]))
    column = table.column(request.dataset).combine_chunks()
    codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = codes.dictionary.to_pylist() + [None] * bool(column.null_count)
    wrong = [name for name in names if not isinstance(name, str | int | float) or name != name]
    if wrong:
        said = f"a text or a number in each row of {request.dataset!r}"
        then = "Drop the rows that belong to no dataset."
        raise checks.wrong("columns", said, str(wrong[0])[:80], then)
    index = codes.indices.to_numpy()
    found, first, counts = np.unique(index, return_index=True, return_counts=True)
    parts = np.split(x[np.argsort(index, kind="stable")], np.cumsum(counts)[:-1])
    order = np.argsort(first)  # names in the order in which they first occur
    return Source([names[found[i]] for i in order], event, lambda: iter([parts[i] for i in order]))


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
        raise ValueError(
            f"columns: {path} has no column of numbers. {known} One word in a column makes it one "
            "of text; what is missing should be left empty, or be NA or NaN."
        )
    wanted = len(chosen) if request.event_shape is None else math.prod(request.event_shape)
    if len(chosen) != wanted:
        index = " One without a name is often an index." if "" in chosen else ""
        raise ValueError(
            f"columns: expected {wanted} column{'s' * (wanted > 1)} for an observation of shape "
            f"{request.event_shape}, got {len(chosen)}: {_listed(chosen)}.{index} Choose "
            f"{'them' if wanted > 1 else 'it'} with columns=[...]."
        )
    return chosen


TABLES = dict.fromkeys((".csv", ".tsv", ".txt"), read_csv)
TABLES |= dict.fromkeys((".parquet", ".pq"), read_parquet)
READERS: dict[str, Callable[[Request], Source]] = {".npy": read_npy, ".npz": read_npz, **TABLES}
READERS |= {".h5": read_hdf5, ".hdf5": read_hdf5, ".zarr": read_zarr}
