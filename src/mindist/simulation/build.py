"""Build a bank: `mindist.simulate`, and `estimate`, which says what that would take.

Round r of chunk i draws the parameters of the rows that are still missing from the seed (i, r, 0)
and simulates row j of them from (i, r, 1 + j), a vectorised batch from (i, r, 0, 1). Nothing
depends on another chunk, on a clock or on the process.
"""

import math
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding
from mindist.minimum_distance import MinimumDistance
from mindist.schema import Record
from mindist.simulation import calls
from mindist.simulation.calls import Call, Caller, Data, NumPy, Problem, Sources, need, one_core
from mindist.simulation.jobs import bar, end_with_parent, on_cluster, outcomes, terminable
from mindist.simulation.schema import (
    EMBEDDING_BYTES,
    Chunk,
    Failure,
    Schema,
    Settings,
    SimulationError,
)
from mindist.simulation.store import PARTS, SimulationBank, Writer, locked, now
from mindist.storage import damaged
from mindist.summarise import Summariser

WAITING_BYTES = 512 * 2**20  # of chunks that are simulated and not yet written
Embed = Callable[[Tensor], Tensor]  # datasets (B, N, *event) to mean embeddings (B, K)
MAX_IN_A_ROW = 100  # failures: at a rate of 9 in 10 draws that happens once in 40,000 times
PROBE = 2**31  # stands first in the seeds of the first simulation; no chunk has this index
ATTEMPTS = 10  # at a rate of one failure in two, all of them fail once in 1,000 times

_alone = threading.Lock()  # of the global generators: a Dask worker may have several threads


def simulate(
    prior: Any,
    simulator: Callable[..., Any],
    summary: Callable[[Any], Any],
    num: int,
    *,
    n_obs: int,
    out: str | os.PathLike[str],
    workers: int = 1,
    seed: int = 0,
    keep: str = "embedding",
    mds: MinimumDistance | None = None,
    chunk: int | None = None,
    time_limit: float | None = None,
    failures: str = "redraw",
    vectorised: bool | None = None,
    progress: bool | None = None,
) -> SimulationBank:
    """Simulate datasets into a bank on disk, or go on with one.

    The bank's arrays depend on the arguments alone, not on workers or interruptions: the same call
    goes on where it was. Under `joblib.parallel_config("dask")` or `"ray"` the chunks are simulated
    on that cluster. See docs/simulations.md.

    Arguments:
        prior: An object with `.sample((n,))`, as of torch or sbi, or a function of n; gives
            parameters `(n, d_theta)`.
        simulator: A function of one theta `(d_theta,)` that gives a dataset `(N, *event)`, or of
            `(B, d_theta)` that gives `(B, N, *event)`. It draws from the global generators of
            torch, NumPy or Python, which are seeded for each call, or from `generator` (torch) or
            `rng` (NumPy), if it names such an argument. An argument `n_obs` gets N.
        summary: Datasets `(B, N, *event)` to summaries `(B, d_s)`.
        num: M, the number of datasets.
        n_obs: N, the number of observations of each.
        out: Folder of the bank; new, empty, or a bank that the same call began.
        workers: Processes of this machine, where no cluster is chosen.
        seed: Of everything random.
        keep: `"embedding"`: parameters, summaries and mean embeddings, and the data of the first
            1,000 datasets; `"data"`: the data of all as well.
        mds: The estimator whose settings embed the data; by default `MinimumDistance(summary)`.
        chunk: Datasets that are simulated, written and, after an interruption, lost together. By
            default a hundredth of the bank, at most 16 MB.
        time_limit: Seconds for one simulation, which then runs in a process of its own.
        failures: What becomes of draws that raise, take too long, or give NaN or another shape:
            `"redraw"` (new parameters, so that the bank follows the prior given success),
            `"report"` (the row is left out: NaN, not `valid`), or `"raise"`. All are kept in
            `bank.failures`.
        vectorised: Whether the simulator takes a batch; by default it is tried on one.
        progress: Whether to show a bar; by default on a terminal.

    Returns:
        The complete bank, to be read or given to `MinimumDistance.fit`.

    Example:
        >>> import tempfile, torch
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> simulator = lambda theta, n_obs: theta + torch.randn(n_obs, 2)
        >>> path, mean = tempfile.mkdtemp() + "/bank", lambda x: x.mean(1)
        >>> bank = simulate(prior, simulator, mean, 50, n_obs=9, out=path, chunk=25)
        >>> bank.theta.shape, bank.s.shape, bank.z_bar.shape, bank.x is None
        ((50, 2), (50, 2), (50, 512), True)
    """
    settings = Settings(num, n_obs, seed, keep, failures, chunk, time_limit, vectorised)
    mds = MinimumDistance(summary) if mds is None else mds
    build = _Build(Sources(prior, simulator, summary), settings, mds, workers)
    path = Path(out).expanduser()
    checks.positive(workers, "workers")
    need("zarr"), need("joblib")
    with locked(path), terminable(), warnings.catch_warnings():
        # loky's, when it replaces a worker: all goes on.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        build.run(path, progress)
    return SimulationBank.open(path)


@dataclass(frozen=True)
class Work:  # how every chunk of a bank is simulated: what a worker gets, once
    sources: Sources
    settings: Settings
    schema: Schema
    embed: Embed | None  # None before it is chosen
    with_data: bool  # give data back as well
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def summarise(self) -> Summariser:
        schema = self.schema
        return Summariser(self.sources.summary, schema.summary_numpy, schema.shapes["s"][0])

    def embed_rows(self, x: NumPy, valid: NumPy) -> NumPy:
        """Return mean embeddings `(b, K)` in float32 of the valid rows; NaN elsewhere."""
        assert self.embed is not None
        z_bar = self.embed(torch.from_numpy(x[valid])).float().cpu().numpy()
        result = np.full((len(x), z_bar.shape[1]), np.nan, np.float32)
        result[valid] = z_bar
        return result


def simulate_chunk(work: Work, index: int) -> Chunk:
    start, settings = time.perf_counter(), work.settings
    call = Call(work.sources.simulator, settings.n_obs, work.schema.shapes["x"][1:])
    with _alone, calls.one_core(), calls.borrowed_globals(), torch.no_grad():
        rows = _Rows(work, index)
        with calls.calling(call, settings.time_limit, work.run) as caller:
            rows.fill(caller)
        arrays = {**rows.arrays, "valid": rows.valid}
        if work.embed is not None:
            arrays["z_bar"] = work.embed_rows(rows.arrays["x"], rows.valid)
        if not work.with_data:
            del arrays["x"]
    return Chunk(index, arrays, tuple(rows.failures), time.perf_counter() - start)


def packed(function: Callable[[Any, Any], Any], content: bytes, job: Any) -> Any:
    """Call a function with what was packed for another process, here, and a job."""
    end_with_parent()
    return function(calls.unpack_once(content), job)


class _Rows:
    def __init__(self, work: Work, index: int) -> None:
        self.work, self.index, schema = work, index, work.schema
        self.first, last = schema.span(index)
        size, types = last - self.first, schema.dtypes
        self.arrays = {k: np.full((size, *v), np.nan, types[k]) for k, v in schema.shapes.items()}
        self.valid = np.zeros(size, bool)
        self.failures: list[Failure] = []
        self.in_a_row = 0

    def _seed(self, *key: int) -> int:
        return calls.draw_seed(self.work.settings.seed, self.index, *key)

    def fill(self, caller: Caller) -> None:
        """Draw until every row is there, or once, if failures are only reported."""
        attempt, missing = 0, np.arange(len(self.valid))
        while len(missing) and (attempt == 0 or self.work.settings.failures != "report"):
            theta = calls.draw_prior(self.work.sources.prior, len(missing), self._seed(attempt, 0))
            self.arrays["theta"][missing] = checks.as_tensor(theta, "prior").numpy()
            seed, count = self._seed(attempt, 0, 1), len(missing)
            batch = caller(theta, seed, count) if self.work.schema.vectorised else None
            if isinstance(batch, Data):
                self._take(batch.x, missing, attempt, [seed] * count, alone=False)
            else:
                self._one_by_one(caller, theta, missing, attempt)
            missing = np.flatnonzero(~self.valid)
            attempt += 1

    def _one_by_one(self, caller: Caller, theta: Any, rows: NumPy, attempt: int) -> None:
        batch = 1 if self.work.schema.vectorised else None
        good: list[tuple[int, int, NumPy]] = []
        for j, row in enumerate(rows):
            seed = self._seed(attempt, 1 + j)
            result = caller(theta[j : j + 1] if batch else theta[j], seed, batch)
            if isinstance(result, Data) and not np.isfinite(result.x).all():
                result = calls.NAN
            if isinstance(result, Problem):
                self._fail(row, attempt, result, seed, alone=True)
            else:
                self.in_a_row = 0
                good.append((row, seed, result.x.reshape(self.arrays["x"].shape[1:])))
        if good:
            done, seeds, x = zip(*good, strict=True)
            self._take(np.stack(x), np.array(done), attempt, seeds, alone=True)

    def _take(self, data: NumPy, rows: NumPy, attempt: int, seeds: Any, *, alone: bool) -> None:
        x = torch.from_numpy(data.astype(self.arrays["x"].dtype, copy=False))
        s, problems = _summaries(self.work.summarise, x)
        good = []
        for j, row in enumerate(rows):
            if j in problems:
                self._fail(row, attempt, problems[j], seeds[j], alone=alone)
            else:
                self.in_a_row = 0
                good.append(j)
        kept = rows[good]
        self.arrays["x"][kept], self.arrays["s"][kept] = x[good].numpy(), s[good].numpy()
        self.valid[kept] = True

    def _fail(self, row: int, attempt: int, problem: Problem, seed: int, *, alone: bool) -> None:
        theta = tuple(self.arrays["theta"][row].tolist())
        where = (self.index, int(self.first + row), attempt)
        self.failures.append(Failure(*where, problem.kind, problem.error, theta, seed, alone))
        self.in_a_row += 1
        what, then = "", "Mend the simulator, or choose failures='redraw' or 'report'."
        if self.work.settings.failures == "raise":
            what = "a draw failed"
        elif self.in_a_row >= MAX_IN_A_ROW:
            what = f"{self.in_a_row} draws in a row failed, the last one"
            then = "Check the simulator, or restrict the prior to where it works."
        if what:
            kept = "Chunks that were complete are kept."
            raise SimulationError(f"simulator: {what}: {self.failures[-1]}. {kept} {then}")


def _summaries(summarise: Summariser, x: Tensor) -> tuple[Tensor, dict[int, Problem]]:
    """Return summaries `(b, d_s)` of datasets, and what is wrong with which of them."""
    finite = torch.isfinite(x.flatten(1)).all(1)
    problems = dict.fromkeys((~finite).nonzero()[:, 0].tolist(), calls.NAN)
    s = torch.full((len(x), summarise.dim or 0), torch.nan, dtype=torch.float64)
    good = finite.nonzero()[:, 0]
    if not len(good):
        return s, problems
    try:
        s = s.index_put((good,), summarise(x[good]).double().cpu())
    except Exception as error:
        if len(x) == 1:
            return s, {0: Problem.of(error, "summary: ")}
        for j in good.tolist():
            one, more = _summaries(summarise, x[j : j + 1])
            s[j] = one[0]
            problems |= {j: more[0]} if more else {}
    for j in good.tolist():
        if j not in problems and not torch.isfinite(s[j]).all():
            problems[j] = Problem(calls.NOT_FINITE, "the summary holds NaN or infinite values")
    return s, problems


def probe(sources: Sources, settings: Settings) -> Schema:
    """Simulate a little, thrown away, and return what the bank will hold."""
    with calls.one_core(), calls.borrowed_globals(), torch.no_grad():
        try:
            call = Call(sources.simulator, settings.n_obs)
            with calls.calling(call, settings.time_limit, "probe") as caller:
                theta, data, batch = _first(sources, settings, caller)
        finally:
            calls.close_idle()
        x = torch.from_numpy(data.x if batch else data.x[None])
        summarise = Summariser(sources.summary)
        s = summarise(x, prefer_numpy=data.numpy)
    parameters = checks.as_tensor(theta, "prior")[0].numpy()
    rows = {"theta": parameters, "s": s[0].cpu().numpy(), "x": x[0].numpy()}
    return Schema.of_rows(settings, rows, vectorised=batch, summary_numpy=bool(summarise.numpy))


def _first(sources: Sources, settings: Settings, caller: Caller) -> tuple[Any, Data, bool]:
    ways = [True, False] if settings.vectorised is None else [settings.vectorised]
    seeded = partial(calls.draw_seed, settings.seed, PROBE)
    dim = calls.draw_prior(sources.prior, 1, seeded()).shape[1]
    # Neither N nor d_theta: a function that takes one theta apart must not succeed by chance.
    batch = next(size for size in (3, 2, 4) if size not in (settings.n_obs, dim))
    said: dict[bool, str] = {}
    for attempt in range(ATTEMPTS):
        theta = calls.draw_prior(sources.prior, batch, seeded(attempt, 0))
        for way in ways:
            given, size = (theta, batch) if way else (theta[0], None)
            result = caller(given, seeded(attempt, 1), size)
            if isinstance(result, Data) and np.isfinite(result.x).all():
                return theta, result, way
            said[way] = (result if isinstance(result, Problem) else calls.NAN).error
    words = ("with one theta", "with a batch")
    listed = "; ".join(f"{words[way]}: {error}" for way, error in said.items())
    raise SimulationError(
        f"simulator: expected datasets (N, *event) for one theta (d_theta,) or (B, N, *event) for "
        f"a batch (B, d_theta), got none in {ATTEMPTS} draws ({listed}). Try it by hand on a draw "
        "of the prior; say which of the two it takes by vectorised=True or False."
    )


@dataclass
class _Build:
    sources: Sources
    settings: Settings
    mds: MinimumDistance
    workers: int

    @property
    def config(self) -> dict[str, Any]:
        """Everything that two calls have to agree in to mean the same bank."""
        rule = dict(self.mds.embedding_settings)
        if not isinstance(own := rule["representation"], str):
            rule["representation"] = getattr(own, "__qualname__", type(own).__name__)
        return {**asdict(self.settings), "functions": self.sources.names, "embedding": rule}

    def run(self, path: Path, progress: bool | None) -> None:
        """Simulate what is missing: the pilot, with its data, then the embedding, then the rest."""
        store = self._open(path)
        store.recover()
        work = Work(self.sources, self.settings, store.schema, None, with_data=True)
        self._same_functions(store, work)
        missing = sorted(set(range(store.schema.num_chunks)) - set(store.records))
        pilot, done = range(store.schema.pilot_chunks), store.schema.rows(store.records)
        with bar(self.settings.num, done, "dataset", progress) as shown:
            try:
                self._run(store, work, [i for i in missing if i in pilot], shown)
                work = replace(work, embed=self._embedding(store))
                for index in pilot:
                    if not store.embedded(index):
                        x, _, valid = store.data(*store.schema.span(index))
                        with one_core():
                            store.embed(index, work.embed_rows(x, valid))
                work = replace(work, with_data=self.settings.keep == "data")
                self._run(store, work, [i for i in missing if i not in pilot], shown)
            finally:
                calls.close_idle()
        if "finished" not in store.header:
            store.set_header(finished=now())

    def _open(self, path: Path) -> Writer:
        if (path / "zarr.json").exists():
            store = Writer(path)
            there, here = _flat(store.header["config"]), _flat(self.config)
            names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
            differ = [f"{n} is {there.get(n)!r} there and {here.get(n)!r} here" for n in names]
            if differ:
                then = "Give the same arguments to go on with it, or choose another folder."
                said = f"holds a bank of another configuration: {'; '.join(differ)}."
                raise ValueError(f"out: {path} {said} {then}")
            return store
        if path.exists() and (not path.is_dir() or {p.name for p in path.iterdir()} - set(PARTS)):
            said = f"out: {path} exists and is not a simulation bank."
            raise FileExistsError(f"{said} Choose a new or an empty folder.")
        probing = partial(probe, self.sources)
        if on_cluster():
            probing = partial(packed, probe, calls.pack(self.sources))
        schema = next(outcomes(probing, [self.settings], 2))
        header = {"mindist_version": metadata.version("mindist"), "config": self.config}
        return Writer.create(path, header, asdict(schema))

    def _same_functions(self, store: Writer, work: Work) -> None:
        """Raise a ValueError unless prior and summary give what they gave on the first chunk."""
        if 0 not in store.records:
            return
        x, s, valid = store.data(*store.schema.span(0))
        redrawn = {failure["row"] for failure in store.records[0]["failures"]}
        rows, few = sorted(set(range(len(x))) - redrawn), np.flatnonzero(valid)[:3]
        theta = torch.from_numpy(store.rows(0, len(x), "theta"))
        with calls.borrowed_globals(), one_core():
            seed = calls.draw_seed(self.settings.seed, 0, 0, 0)
            drawn = calls.draw_prior(self.sources.prior, len(x), seed)
            same = {"prior": checks.agree(checks.as_tensor(drawn, "prior")[rows], theta[rows])}
            if same["prior"] and len(few):
                again = work.summarise(torch.from_numpy(x[few])).cpu()
                same["summary"] = checks.agree(again, torch.from_numpy(s[few]))
        for name in [name for name, agrees in same.items() if not agrees]:
            said = f"the one that {store.path} was begun with"
            got = "one that gives other values on its first chunk"
            raise checks.wrong(name, said, got, "Pass the same, or choose another folder.")

    def _run(self, store: Writer, work: Work, indices: Sequence[int], shown: Any) -> None:
        alone = not on_cluster() and min(self.workers, len(indices)) <= 1
        function: Callable[[int], Chunk] = partial(simulate_chunk, work)
        if indices and not alone:
            function = partial(packed, simulate_chunk, calls.pack(work))
        each = store.schema.chunk * max(EMBEDDING_BYTES, store.schema.bytes_of("x"))
        wave = max(4 * self.workers, WAITING_BYTES // each)
        failed = 0
        try:
            for chunk in outcomes(function, indices, self.workers, wave):
                store.write(chunk)
                failed += len(chunk.failures)
                if failed:
                    shown.set_postfix(failed=failed, refresh=False)
                shown.update(store.schema.rows([chunk.index]))
        except Exception as error:
            if type(error).__name__ not in ("TerminatedWorkerError", "KilledWorker"):
                raise
            raise SimulationError(
                f"simulator: a worker process died ({type(error).__name__}). Complete chunks are "
                "kept, and the same call goes on. If it was not the system, which ends processes "
                "when memory is short, the simulator crashes: with time_limit each simulation runs "
                "in a process of its own, whose end counts as a failed draw."
            ) from error

    def _embedding(self, store: Writer) -> Embed:
        """Return the embedding of the bank, chosen on its pilot if it has none yet."""
        pilot = SimulationBank.open(store.path).pilot
        if "embedding" not in store.header:
            with one_core(), calls.borrowed_globals():
                config, tensors = self.mds.choose_embedding(*pilot).state()
                tensors = {name: value.detach().cpu() for name, value in tensors.items()}
                dim = self._make(store.path, config, tensors)(pilot[0][:1]).shape[1]
            store.set_embedding(config, tensors, dim)
        embed = self._make(store.path, *store.embedding())
        with suppress(RuntimeError, IndexError):
            if embed(pilot[0][:1]).shape[1:] == store.handle("z_bar").shape[1:]:
                return embed
        raise damaged(store.path / "embedding", "it does not fit the data of the bank")

    def _make(self, path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Embed:
        own = self.mds.representation if callable(self.mds.representation) else None
        return Embedding.read(Record(path / "embedding", config, tensors=tensors), own).mean


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    tables = {k: v if isinstance(v, dict) else {"": v} for k, v in config.items()}
    return {f"{k}.{n}".rstrip("."): v for k, own in tables.items() for n, v in own.items()}


SECONDS = 3.0  # to spend on timing, unless one simulation takes longer
MAX_TIMED = 1_000  # datasets
WRITING = 0.05  # seconds for a chunk, on a disk of our own (docs/simulations.md)
PROCESS = 400e6  # bytes of a process that has imported torch and mindist, measured


class Estimate(NamedTuple):  # Time, memory and disk that a bank is expected to take
    schema: Schema
    workers: int
    each: float  # seconds for one dataset in one process, measured
    timed: int  # on so many datasets,
    failed: int  # for which so many draws failed
    seconds: float  # until the bank is complete
    disk: float  # bytes, before compression
    memory: float  # bytes at most, of all processes: each holds a chunk or two, this one a few

    def __str__(self) -> str:
        def size(number: float) -> str:
            return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{math.ceil(number / 1e6)} MB"

        schema, failed = self.schema, f"; {self.failed} draws failed" if self.failed else ""
        how = "in batches" if schema.vectorised else "one by one"
        return (
            f"{schema.num:,} datasets of {schema.shapes['x'][0]} observations, simulated {how}, "
            f"{schema.num_chunks:,} chunks of {schema.chunk:,}, {self.workers} "
            f"worker{'s' * (self.workers > 1)}:\n"
            f"time    {timedelta(seconds=math.ceil(self.seconds))} "
            f"({1e3 * self.each:.3g} ms for a dataset, timed on {self.timed}{failed})\n"
            f"memory  {size(self.memory)}\ndisk    {size(self.disk)} at most"
        )


def estimate(
    prior: Any, simulator: Any, summary: Any, num: int, *, n_obs: int, workers: int = 1, **rest: Any
) -> Estimate:
    """Say what `simulate` would take with these arguments, from simulations of a few seconds."""
    mds = rest.pop("mds", None) or MinimumDistance(summary)
    sources, settings = Sources(prior, simulator, summary), Settings(num, n_obs, **rest)
    schema, count = probe(sources, settings), 1
    # As fast as the embedding to choose, but for its representation.
    event, source = schema.shapes["x"][1:], torch.Generator().manual_seed(0)
    features = FourierFeatures.draw(event, mds.num_features, bandwidth=1.0, generator=source)
    embed = Embedding(features, None).mean
    while True:
        few = replace(schema, num=count, chunk=count)
        work = Work(sources, settings, few, embed, with_data=True)
        try:
            chunk = simulate_chunk(work, 0)
        finally:
            calls.close_idle()
        if chunk.seconds > SECONDS / 4 or count >= min(MAX_TIMED, num):
            break
        count = min(MAX_TIMED, num, max(4 * count, int(count * SECONDS / 2 / chunk.seconds)))
    dim, each, x = chunk.arrays["z_bar"].shape[1], chunk.seconds / count, schema.bytes_of("x")
    seconds = num * each / min(workers, schema.num_chunks) + WRITING * schema.num_chunks
    kept = num if settings.keep == "data" else schema.span(schema.pilot_chunks - 1)[1]
    disk = num * (schema.bytes_of("theta") + schema.bytes_of("s") + 4 * dim + 1) + kept * x
    memory = (workers + (workers > 1)) * (PROCESS + schema.chunk * (2 * x + 8 * dim))
    how = (schema, workers, each, count, len(chunk.failures))
    return Estimate(*how, seconds, float(disk), memory)
