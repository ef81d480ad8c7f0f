"""A bank of simulations, to be read: arrays on disk, a chunk at a time in memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist.simulation.calls import NumPy
from mindist.simulation.schema import KINDS, Failure
from mindist.simulation.store import Store


@dataclass(frozen=True)
class BankChunk:
    """Datasets of a bank in memory; of failed draws that were not redrawn there are none."""

    theta: NumPy  # (b, d_theta)
    s: NumPy  # (b, d_s)
    z_bar: NumPy | None  # (b, K) in float32; None where the embedding is not chosen yet
    x: NumPy | None  # (b, N, *event); None where data are not kept


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

    def __init__(self, store: Store) -> None:
        self.path, self._store = store.path, store

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> SimulationBank:
        """Open a bank, complete or not; compare sizes and, with `verify`, all checksums."""
        store = Store(Path(path))
        bank = cls(store)
        for index, folder in store.chunk_folders():
            record = store.read_record(index, folder)
            if record is not None:
                store.records[index] = record
                bank._check(index, verify=verify)
        return bank

    def _check(self, index: int, *, verify: bool) -> None:
        why = self._store.damage(self._store.records[index], verify=verify)
        if why:
            raise ValueError(
                f"path: chunk {index} of {self.path} is damaged: {why}. The call of "
                "mindist.simulate that wrote it simulates it again."
            )

    def __len__(self) -> int:
        """M, the number of datasets of the complete bank."""
        return self._store.schema.num

    def __repr__(self) -> str:
        return f"<SimulationBank {str(self.path)!r}: {self.report()}>"

    @property
    def complete(self) -> bool:
        """Return whether all chunks are there, with their mean embeddings."""
        store = self._store
        embedded = all(map(store.embedded, store.records))
        return embedded and len(store.records) == store.schema.num_chunks

    @property
    def config(self) -> dict[str, Any]:
        """The settings asked for: size, seed, what is kept, names of functions, embedding."""
        return dict(self._store.header["config"])

    @property
    def attributes(self) -> dict[str, Any]:
        """Everything the bank says of itself: versions, dates, configuration, shapes."""
        return dict(self._store.header)

    @property
    def num_obs(self) -> int:
        """N, the number of observations of a dataset."""
        return int(self.config["n_obs"])

    @property
    def theta(self) -> Any:
        """Parameters `(M, d_theta)`: a Zarr array, NumPy when sliced; NaN where none are yet."""
        return self._store.array("theta")

    @property
    def s(self) -> Any:
        """Summaries `(M, d_s)`, as `theta`; NaN also where `valid` is False."""
        return self._store.array("s")

    @property
    def valid(self) -> Any:
        """Flags `(M,)` of rows with a dataset: all of a complete bank, unless failures="report"."""
        return self._store.array("valid")

    @property
    def z_bar(self) -> Any:
        """Mean embeddings `(M, K)` in float32, as `s`; None before the embedding is chosen."""
        return self._store.array("z_bar") if "embedding" in self._store.header else None

    @property
    def x(self) -> Any:
        """Data `(M, N, *event)`, as `s`; None where only embeddings are kept."""
        return self._store.array("x") if self._store.keep == "data" else None

    @property
    def pilot(self) -> tuple[Tensor, Tensor]:
        """The first valid datasets `(P, N, *event)`, always kept, with summaries `(P, d_s)`."""
        x, s, valid = self._store.data(0, self._store.schema.pilot)
        return torch.from_numpy(x[valid]), torch.from_numpy(s[valid])

    @property
    def embedding_state(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Plain values and tensors of the embedding that made `z_bar`; None before it is chosen."""
        return self._store.embedding() if "embedding" in self._store.header else None

    def chunks(self, *, verify: bool = True) -> Iterator[BankChunk]:
        """Yield what is there, one chunk in memory at a time; `verify` compares checksums first."""
        for index in sorted(self._store.records):
            self._check(index, verify=verify)
            read = partial(self._store.rows, *self._store.schema.span(index))
            valid = read("valid")
            theta, s = read("theta")[valid], read("s")[valid]
            z_bar = read("z_bar")[valid] if self._store.embedded(index) else None
            x = read("x")[valid] if self._store.keep == "data" else None
            yield BankChunk(theta, s, z_bar, x)

    @property
    def failures(self) -> list[Failure]:
        """Every draw that failed, with parameters, seed, kind and error."""
        records = (record for _, record in sorted(self._store.records.items()))
        every = (draw for record in records for draw in record["failures"])
        return [Failure(**{**draw, "theta": tuple(draw["theta"])}) for draw in every]

    def report(self) -> str:
        """Say what is there and what failed."""
        rows, failures = self._store.schema.rows(self._store.records), self.failures
        what = self.config["failures"]
        if what == "report":
            rows -= len({failure.row for failure in failures})
        there = f"{rows:,} of {len(self):,} datasets are there."
        if not failures:
            return f"{there} No draw failed."
        counts = Counter(failure.kind for failure in failures)
        kinds = ", ".join(f"{counts[k]:,} {said}" for k, said in KINDS.items() if counts[k])
        end = " Each was drawn again." if what == "redraw" else ""
        draws = f"{len(failures):,} draw{'s' * (len(failures) > 1)}"
        return f"{there} {draws} failed: {kinds}.{end}"
