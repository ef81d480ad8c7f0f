"""A bank of simulations, to be read: arrays on disk, a chunk at a time in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist.simulation import zarr_arrays
from mindist.simulation.bank_layout import (
    ArrayLayout,
    check_header,
    check_record,
    file_of,
    flags,
    layouts,
)
from mindist.simulation.failure import Failure, describe
from mindist.simulation.folder import tensor_of, tensors_digest
from mindist.simulation.records import chunk_folders, damage, read_group, read_header
from mindist.simulation.work import NumPy


@dataclass(frozen=True)
class BankChunk:
    """Datasets of a bank in memory; of failed draws that were not redrawn there are none.

    Arguments:
        theta: Parameters `(b, d_theta)`.
        s: Summaries `(b, d_s)`.
        z_bar: Mean embeddings `(b, K)` in float32; None where the embedding is not chosen yet.
        x: Data `(b, N, *event)`, or None where they are not kept.
    """

    theta: NumPy
    s: NumPy
    z_bar: NumPy | None
    x: NumPy | None


class SimulationBank:
    """Simulations on disk, as `mindist.simulate` wrote them; read-only.

    A bank is a Zarr store, which `zarr.open(path)` reads as well. Parameters are independent draws
    from the prior, so that it comes in random order: any part of it is a sample.

    Example:
        >>> import tempfile, mindist
        >>> prior = lambda n, rng: rng.normal(size=(n, 1))
        >>> simulator = lambda theta, n_obs, rng: rng.normal(theta, size=(n_obs, 1))
        >>> path = tempfile.mkdtemp() + "/bank"
        >>> bank = mindist.simulate(
        ...     prior, simulator, lambda x: x.mean(1), 100, n_obs=5, out=path, chunk=50
        ... )
        >>> len(bank), bank.theta.shape, bank.s[:2].shape, bank.complete
        (100, (100, 1), (2, 1), True)
        >>> bank.report()
        '100 of 100 datasets are there. No draw failed.'
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path, self._header = path, header
        self._schema = check_header(path, header)
        self._keep: str = header["config"]["keep"]

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> SimulationBank:
        """Open a bank, complete or not.

        Arguments:
            path: What was given to `mindist.simulate` as `out`.
            verify: Whether to compare the checksums of all files now. Sizes are compared in any
                case, and `chunks()` verifies what it reads.
        """
        folder = Path(path)
        bank = cls(folder, read_header(folder))
        for name, layout in bank._layouts.items():
            zarr_arrays.check_array(folder / name, layout)
        for index, record in bank._records.items():
            bank._whole(index, record, verify=verify)
        return bank

    def __len__(self) -> int:
        """M, the number of datasets of the complete bank."""
        return self._schema.num

    def __repr__(self) -> str:
        return f"<SimulationBank {str(self.path)!r}: {self.report()}>"

    @property
    def complete(self) -> bool:
        """Whether all chunks are there, with their mean embeddings."""
        found = self._records
        embedded = all(self._embedded(index) for index in found)
        return embedded and len(found) == self._schema.num_chunks

    @property
    def config(self) -> dict[str, Any]:
        """What was asked for: size, seed, what is kept, names of functions, embedding."""
        return dict(self._header["config"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything the bank says of itself: versions, dates, configuration, shapes."""
        return dict(self._header)

    @property
    def num_obs(self) -> int:
        """N, the number of observations of a dataset."""
        return int(self._header["config"]["n_obs"])

    @cached_property
    def theta(self) -> Any:
        """Parameters `(M, d_theta)`: a Zarr array, NumPy when sliced; NaN where none are yet."""
        return self._array("theta")

    @cached_property
    def s(self) -> Any:
        """Summaries `(M, d_s)`, as `theta`; NaN also where `valid` is False."""
        return self._array("s")

    @cached_property
    def valid(self) -> Any:
        """Which rows hold a dataset `(M,)`: all of a complete bank, unless failures="report"."""
        return self._array("valid")

    @cached_property
    def z_bar(self) -> Any:
        """Mean embeddings `(M, K)` in float32, as `s`; None before the embedding is chosen."""
        return self._array("z_bar") if "embedding" in self._header else None

    @cached_property
    def x(self) -> Any:
        """Data `(M, N, *event)`, as `s`; None where only embeddings are kept."""
        return self._array("x") if self._keep == "data" else None

    @property
    def pilot(self) -> tuple[Tensor, Tensor]:
        """The first datasets `(P, N, *event)` with their summaries `(P, d_s)`, always kept.

        1,000 of them, or what 64 MB hold; of these the valid ones.
        """
        rows = slice(0, self._schema.pilot)
        x = self._read("pilot" if self._keep != "data" else "x", rows)
        valid = self._read("valid", rows)
        return torch.from_numpy(x[valid]), torch.from_numpy(self._read("s", rows)[valid])

    @property
    def embedding_state(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Plain values and tensors of the embedding that made `z_bar`; None before it is chosen."""
        facts = self._header.get("embedding")
        if facts is None:
            return None
        folder = self.path / "embedding"
        names = facts["names"]
        tensors = {name: tensor_of(zarr_arrays.read_tensor(folder / name)) for name in names}
        if tensors_digest(tensors) != facts["sha256"]:
            raise ValueError(
                f"path: the tensors in {folder} are damaged: their checksum does not match. "
                "Restore them from a copy, or simulate to another folder."
            )
        return facts["config"], tensors

    def chunks(self, *, verify: bool = True) -> Iterator[BankChunk]:
        """What is there, chunk by chunk in order; one of them in memory at a time.

        Arguments:
            verify: Whether to compare checksums before a chunk is read.
        """
        for index, record in sorted(self._records.items()):
            self._whole(index, record, verify=verify)
            rows = slice(*self._schema.span(index))
            valid = self._read("valid", rows)
            yield BankChunk(
                self._read("theta", rows)[valid],
                self._read("s", rows)[valid],
                self._read("z_bar", rows)[valid] if self._embedded(index) else None,
                self._read("x", rows)[valid] if self._keep == "data" else None,
            )

    @property
    def failures(self) -> list[Failure]:
        """Every draw that failed, with parameters, seed, kind and error."""
        records = (record for _, record in sorted(self._records.items()))
        return [Failure.of_record(each) for record in records for each in record["failures"]]

    def report(self) -> str:
        """What is there and what failed, in words."""
        done = [self._schema.span(index) for index in self._records]
        rows = sum(last - first for first, last in done)
        failures = self.failures
        if self._header["config"]["failures"] == "report":
            rows -= len({failure.row for failure in failures})
        end = " Each was drawn again." if failures and self.config["failures"] == "redraw" else ""
        return f"{rows:,} of {len(self):,} datasets are there. {describe(failures)}{end}"

    @cached_property
    def _records(self) -> dict[int, dict[str, Any]]:
        """The records of complete chunks."""
        found = {}
        for index, folder in chunk_folders(self.path):
            record = read_group(folder)
            if record is not None:
                check_record(folder, index, record, self._schema, self._keep)
                found[index] = record
        return found

    def _embedded(self, index: int) -> bool:
        """Whether the mean embeddings of a chunk are there."""
        named = file_of("z_bar", index, 2) in self._records[index]["files"]
        return named and "embedding" in self._header

    @property
    def _layouts(self) -> dict[str, ArrayLayout]:
        return layouts(self._schema, self._keep, embedded="embedding" in self._header)

    def _array(self, name: str) -> Any:
        return zarr_arrays.open_array(self.path / name, self._layouts[name])

    @cached_property
    def _pilot(self) -> Any:
        return self._array("pilot")

    def _read(self, name: str, rows: slice) -> NumPy:
        """Some rows of an array, after they were checked."""
        array = self._pilot if name == "pilot" else getattr(self, name)
        values = zarr_arrays.read(self.path / name, array, rows)
        return flags(values, self.path / name) if name == "valid" else values

    def _whole(self, index: int, record: dict[str, Any], *, verify: bool) -> None:
        why = damage(self.path, record["files"], verify=verify)
        if why is not None:
            raise ValueError(
                f"path: chunk {index} of {self.path} is damaged: {why}. The call of "
                "mindist.simulate that wrote it simulates it again."
            )


__all__ = ["BankChunk", "SimulationBank"]
