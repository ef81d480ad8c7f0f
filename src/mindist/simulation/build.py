"""Build a bank: the pilot with its data, then the embedding, then everything else.

Chunks are simulated wherever joblib runs them and written here, in one process, each as it comes.
What is complete is never simulated again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.simulation.bank import SimulationBank
from mindist.simulation.bank_layout import PARTS
from mindist.simulation.chunk import embed_rows, simulate_chunk, simulate_packed
from mindist.simulation.extras import need
from mindist.simulation.failure import SimulationError
from mindist.simulation.folder import BankFolder, now
from mindist.simulation.jobs import bar, on_cluster, outcomes, terminable
from mindist.simulation.limited import close_idle
from mindist.simulation.lock import locked
from mindist.simulation.payload import Payload
from mindist.simulation.plan import EMBEDDING_BYTES, Schema, Settings
from mindist.simulation.probe import probe, probe_packed
from mindist.simulation.seeds import borrowed_globals, draw_seed
from mindist.simulation.sources import Sources, draw_prior
from mindist.simulation.threads import one_core
from mindist.simulation.work import Chunk, Embed, Work
from mindist.storage import damaged

WAITING_BYTES = 512 * 2**20  # of chunks that are simulated and not yet written


class Embedder(Protocol):
    """Chooses an embedding on the pilot, and makes it again from what was stored."""

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the choice, as JSON values."""
        ...

    def choose(self, x: Tensor, s: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of the embedding, given datasets and summaries."""
        ...

    def make(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Embed:
        """The embedding of these values and tensors."""
        ...


@dataclass(frozen=True)
class Request:
    """A bank to build.

    Arguments:
        sources: Prior, simulator, summary.
        settings: What the bank shall hold.
        embedder: Chooses the embedding.
        workers: Processes, where no cluster was chosen.
        progress: Whether to show a bar; None for on a terminal only.
    """

    sources: Sources
    settings: Settings
    embedder: Embedder
    workers: int = 1
    progress: bool | None = None

    @property
    def config(self) -> dict[str, Any]:
        """What two calls have to agree in to mean the same bank."""
        own = {"functions": self.sources.names, "embedding": self.embedder.settings}
        return {**asdict(self.settings), **own}


def build(request: Request, out: Path) -> SimulationBank:
    """Simulate what is missing of a bank."""
    checks.positive(request.workers, "workers")
    need("zarr"), need("joblib")
    with locked(out), terminable(), warnings.catch_warnings():
        # loky's, when it replaces a worker: all goes on.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        folder = _open(request, out)
        folder.recover()
        _same_functions(request, folder)
        total, done = request.settings.num, _rows(folder.schema, list(folder.records))
        with bar(total, done, "dataset", request.progress) as shown:
            _simulate(request, folder, shown)
        if "finished" not in folder.header:
            folder.set_header(finished=now())
    return SimulationBank.open(out)


def _simulate(request: Request, folder: BankFolder, shown: Any) -> None:
    """The pilot, the embedding, the rest."""
    work = Work(request.sources, request.settings, folder.schema, None, with_data=True)
    missing, pilot = folder.missing(), range(folder.schema.pilot_chunks)
    try:
        _run(request, folder, work, [i for i in missing if i in pilot], shown)
        work = replace(work, embed=_embedding(request, folder))
        for index in pilot:
            if not folder.embedded(index):
                x, _, valid = folder.data(index)
                with one_core():
                    folder.embed(index, embed_rows(work, x, valid))
        work = replace(work, with_data=request.settings.keep == "data")
        _run(request, folder, work, [i for i in missing if i not in pilot], shown)
    finally:
        close_idle(work.run)


def _run(
    request: Request, folder: BankFolder, work: Work, indices: Sequence[int], shown: Any
) -> None:
    """Simulate chunks, wherever, and write each as it comes."""
    if not indices:
        return
    alone = not on_cluster() and min(request.workers, len(indices)) <= 1
    function: Callable[[int], Chunk] = (
        partial(simulate_chunk, work) if alone else partial(simulate_packed, Payload.of(work))
    )
    each = folder.schema.chunk * max(EMBEDDING_BYTES, folder.schema.bytes_of("x"))
    wave = max(4 * request.workers, WAITING_BYTES // each)
    try:
        for chunk in outcomes(function, indices, request.workers, wave):
            folder.write(chunk)
            shown.update(_rows(folder.schema, [chunk.index]))
            _show_failures(shown, chunk)
    except Exception as error:
        if type(error).__name__ not in ("TerminatedWorkerError", "KilledWorker"):
            raise
        raise SimulationError(
            f"simulator: a worker process died ({type(error).__name__}). Complete chunks are kept, "
            "and the same call goes on. If it was not the system, which ends processes when memory "
            "is short, the simulator crashes: with time_limit each simulation runs in a process of "
            "its own, whose end counts as a failed draw."
        ) from error


def _show_failures(shown: Any, chunk: Chunk) -> None:
    shown.failed = getattr(shown, "failed", 0) + len(chunk.failures)
    if shown.failed:
        shown.set_postfix(failed=shown.failed, refresh=False)


def _embedding(request: Request, folder: BankFolder) -> Embed:
    """The embedding of the bank, chosen on its pilot if it has none yet."""
    if "embedding" not in folder.header:
        x, s = SimulationBank.open(folder.path).pilot
        with one_core(), borrowed_globals():
            config, tensors = request.embedder.choose(x, s)
            dim = request.embedder.make(config, tensors)(x[:1]).shape[1]
        folder.set_embedding(config, tensors, dim)
    bank = SimulationBank.open(folder.path)
    state = bank.embedding_state
    if state is None:
        raise ValueError(f"path: {folder.path} has lost its embedding.")
    embed = request.embedder.make(*state)
    try:
        fits = embed(bank.pilot[0][:1]).shape[1:] == bank.z_bar.shape[1:]
    except (RuntimeError, IndexError):
        fits = False
    if not fits:
        raise damaged(folder.path / "embedding", "it does not fit the data of the bank")
    return embed


def _open(request: Request, out: Path) -> BankFolder:
    """The bank as it is, if it is the one that is asked for; or a new one."""
    if (out / "zarr.json").exists():
        folder = BankFolder(out)
        _same_config(folder.header["config"], request.config, out)
        return folder
    if out.exists() and (not out.is_dir() or {p.name for p in out.iterdir()} - set(PARTS)):
        raise FileExistsError(
            f"out: {out} exists and is not a simulation bank. Choose a new or an empty folder."
        )
    given = (request.sources, request.settings)
    schema = (
        next(iter(outcomes(probe_packed, [Payload.of(given)], 2)))
        if on_cluster()
        else probe(*given)
    )
    header = {"mindist_version": metadata.version("mindist"), "config": request.config}
    return BankFolder.create(out, header, schema)


def _same_config(stored: dict[str, Any], asked: dict[str, Any], out: Path) -> None:
    """Refuse to go on with another bank, and say in what it differs."""
    flat, wanted = _flat(stored), _flat(asked)
    differ = [
        f"{name} is {flat.get(name)!r} there and {wanted.get(name)!r} here"
        for name in sorted({*flat, *wanted})
        if flat.get(name) != wanted.get(name)
    ]
    if differ:
        raise ValueError(
            f"out: {out} holds a bank of another configuration: {'; '.join(differ)}. Give the same "
            "arguments to go on with it, or choose another folder."
        )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    nested = {k: v for k, v in config.items() if isinstance(v, dict)}
    own = {f"{k}.{name}": v for k, inner in nested.items() for name, v in inner.items()}
    return {k: v for k, v in config.items() if k not in nested} | own


def _same_functions(request: Request, folder: BankFolder) -> None:
    """The prior and the summary must give what they gave; to ask the simulator would take time."""
    if 0 not in folder.records:
        return
    first, last = folder.schema.span(0)
    x, s, valid = folder.data(0)
    theta = torch.from_numpy(SimulationBank.open(folder.path).theta[first:last])
    redrawn = {failure["row"] - first for failure in folder.records[0]["failures"]}
    with borrowed_globals(), one_core():
        seed = draw_seed(request.settings.seed, 0, 0, 0)
        again = checks.as_tensor(draw_prior(request.sources.prior, last - first, seed), "prior")
        rows = [row for row in range(last - first) if row not in redrawn]
        if not checks.agree(again[rows], theta[rows]):
            raise _changed("prior", folder)
        work = Work(request.sources, request.settings, folder.schema, None, with_data=True)
        few = np.flatnonzero(valid)[:3]
        if len(few):
            now_s = work.summarise(torch.from_numpy(x[few]))
            if not checks.agree(now_s.cpu(), torch.from_numpy(s[few])):
                raise _changed("summary", folder)


def _changed(name: str, folder: BankFolder) -> ValueError:
    return ValueError(
        f"{name}: expected the one that {folder.path} was begun with, got one that gives other "
        "values on its first chunk. Pass the same, or choose another folder."
    )


def _rows(schema: Schema, indices: Sequence[int]) -> int:
    """Datasets in these chunks."""
    spans = [schema.span(index) for index in indices]
    return sum(last - first for first, last in spans)


__all__ = ["Embedder", "Request", "build"]
