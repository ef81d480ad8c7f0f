r"""Simulated datasets, embedded in one pass: summaries and mean embeddings, the data dropped.

A source is an array, an iterator of chunks, or a simulation bank. It gives a sample of datasets, on
which the embedding is chosen, and then all datasets, embedded chunk by chunk, those with NaN left
out. The sample of an array is random, and a large array is read in random order; an iterator has to
come in random order, and its leading datasets are the sample. The mean embeddings of a bank serve
if they were made with what an estimator chooses on the bank's pilot, its first datasets.

Whoever learns from the stream sees the leading m = 20,000 together and the others chunk by chunk. A
uniform sample of m is kept, or, for a decoder that needs several passes, all: row i (from 0)
replaces a random one with probability :math:`m / (i + 1)` (Vitter's algorithm R). One random number
belongs to each row: the sample does not depend on how the rows were cut into chunks.

References:
    Vitter, Random Sampling with a Reservoir, ACM Transactions on Mathematical Software 11 (1985).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import getattr_static
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from mindist import checks
from mindist.features.embedding import Embedding, first_difference
from mindist.features.representation import Encoded
from mindist.protocols import StoredSimulations
from mindist.schema import Record, moved
from mindist.storage import damaged
from mindist.summarise import Summariser

CHUNK_BYTES = 2**24  # of data summarised and embedded at once from an array
CHOICE_DATASETS = 1_000  # on which representation and bandwidth are chosen
SAMPLE_DATASETS = 5_000  # on which sorting is learned, and detection calibrated (two fifths)
SAMPLE_BYTES = 2**27
PROBES = 3  # datasets on which stored summaries and embeddings are checked
# 80 MB of embeddings in two kernels of 512 features. The level of a test that is calibrated on as
# many has a standard deviation of .0015 at .05.
MAX_KEPT = 20_000


# Summaries (m, d_s), mean embeddings (m, K) in float32 and, if they were asked for, the first
# observations (m, n, *event) of datasets; how many more there were, with NaN or infinite values.
Embedded = tuple[tuple[Tensor, ...], int]
Chunk = tuple[Tensor, Tensor, int]  # finite datasets, their summaries, how many were not finite


@dataclass(frozen=True)
class Source:
    """Simulated datasets that are read once, from memory or from an iterator."""

    sample: tuple[Tensor, Tensor]  # datasets (m, N, *event) and their summaries (m, d_s)
    chunks: Iterator[Any]  # all datasets
    total: int | None
    shuffled: bool  # read in a random order, so that the leading ones are a uniform sample

    def embedding(self, chosen: Embedding) -> Embedding:
        """Return what to embed with: `chosen`, or what is stored and agrees with it."""
        return chosen

    def embed(self, embedding: Embedding, num_points: int) -> Iterator[Embedded]:
        """Embed all datasets; keep the first `num_points` observations of each."""
        for data, summary, lost in self.chunks:
            if not len(data):
                yield (summary,), lost
                continue
            _check_shapes([self.sample[0], data])
            points = (data[:, :num_points].clone(),) if num_points else ()
            yield (summary, embedding.mean(data).float(), *points), lost


def read_simulations(
    x: Any, s: Any, summarise: Summariser, generator: torch.Generator, device: torch.device
) -> Source:
    """Return the source for the `x` and `s` of `fit`; the generator samples from an array."""
    if is_bank(x):
        return _read_bank(x, s, summarise, device)
    if not hasattr(x, "shape"):
        chunks = _chunks(_pairs(x, s), summarise, device)
        leading = _leading(chunks)
        _check_shapes([data for data, _, _ in leading if len(data)])
        return Source(_joined(leading), chain(leading, chunks), None, False)
    each = max(1, 4 * checks.simulations(checks.as_tensor(x[:1], "x")).numel())  # bytes
    order = torch.randperm(len(x), generator=generator)
    if s is not None:
        s = checks.summaries(s, len(x), name="s")
        next(_chunks([(x[:3], s[:3])], summarise, device))  # an error is about the first ones
    some = order[: min(SAMPLE_DATASETS, max(CHOICE_DATASETS, SAMPLE_BYTES // each))]
    sample = _joined(_chunks([_pick(x, s, some)], summarise, device))
    parts = filter(len, order.tensor_split([MAX_KEPT]))  # of a large array, a random sample first
    rows = (part.sort().values.split(max(1, CHUNK_BYTES // each)) for part in parts)
    pairs = (_pick(x, s, few) for few in chain.from_iterable(rows))
    return Source(sample, _chunks(pairs, summarise, device), len(x), True)


def _check_shapes(chunks: list[Tensor]) -> None:
    """Raise a ValueError unless all simulated datasets have the same shape."""
    for chunk in chunks[1:]:
        if chunk.shape[1:] != chunks[0].shape[1:]:
            said = f"every simulated dataset to have shape {tuple(chunks[0].shape[1:])}"
            got = f"a chunk with datasets of shape {tuple(chunk.shape[1:])}"
            then = "Simulate alike; each item of an iterator is a chunk (m, N, *event)."
            raise checks.wrong("x", said, got, then)


def _joined(leading: Iterable[Chunk]) -> tuple[Tensor, Tensor]:
    """Return the first finite datasets and their summaries, as many as a sample needs."""
    usable = [(data, summary) for data, summary, _ in leading if len(data)]
    if not usable:
        then = "Check the simulator and the summary for NaN."
        raise checks.wrong("x", "simulated datasets", "none with finite values", then)
    x, s = (torch.cat(parts)[:SAMPLE_DATASETS] for parts in zip(*usable, strict=True))
    return x, s


def _chunks(
    pairs: Iterable[tuple[Any, Any]], summarise: Summariser, device: torch.device
) -> Iterator[Chunk]:
    """Yield chunks of finite simulations: NaN is dropped before and after the summary."""
    checked = False
    for data, summary in pairs:
        tensor = checks.simulations(checks.as_tensor(data, "x")).to(device)
        numpy = isinstance(data, np.ndarray)
        finite = checks.finite_rows(tensor.flatten(1))
        if summary is not None:
            summary = checks.summaries(summary, len(tensor), name="s").to(device)
            if not checked and bool(finite.any()):
                few = finite.nonzero()[:3, 0]
                computed = summarise(tensor[few], prefer_numpy=numpy)
                if not checks.agree(summary[few], computed):
                    first = computed[0].tolist()
                    said = f"the summaries that summary(x) gives, {first} for the first dataset"
                    then = "Pass summary(x) in the order of x, or leave s out."
                    raise checks.wrong("s", said, summary[few][0].tolist(), then)
                checked = True
            finite = finite & torch.isfinite(summary).all(1)
        lost = int((~finite).sum())
        tensor = tensor[finite] if lost else tensor
        if not len(tensor):
            yield tensor, tensor.new_empty(0, 0), lost
        elif summary is None:
            summary = summarise(tensor, prefer_numpy=numpy)
            usable = torch.isfinite(summary).all(1)
            yield tensor[usable], summary[usable], lost + int((~usable).sum())
        else:
            yield tensor, summary[finite], lost


def _pick(x: Any, s: Tensor | None, rows: Tensor) -> tuple[Any, Any]:
    """Return some datasets of a tensor or a NumPy array, and their summaries."""
    data = x[rows.to(x.device)] if isinstance(x, Tensor) else x[rows.numpy()]
    return data, None if s is None else s[rows]


def _pairs(x: Any, s: Any) -> Iterator[tuple[Any, Any]]:
    """Yield chunks of an iterator, each with its summaries or None."""
    if not isinstance(x, Iterable):
        checks.as_tensor(x, "x")
    if s is not None:
        raise ValueError(
            "s: expected None when x is an iterator of chunks. Let the iterator yield "
            "pairs (x_chunk, s_chunk) instead."
        )
    for chunk in x:
        yield chunk if isinstance(chunk, tuple) else (chunk, None)


def _leading(chunks: Iterator[Chunk]) -> list[Chunk]:
    """Return the first chunks, until they hold enough datasets to choose a bandwidth."""
    leading: list[Chunk] = []
    count = size = 0
    for chunk in chunks:
        leading.append(chunk)
        count, size = count + len(chunk[0]), size + chunk[0].nbytes
        if count and (count >= SAMPLE_DATASETS or size >= SAMPLE_BYTES):
            break
    return leading


@dataclass(frozen=True)
class SimulationBankSource(Source):
    """The datasets of a simulation bank; its pilot is the sample."""

    bank: StoredSimulations

    def embedding(self, chosen: Embedding) -> Embedding:
        """Return the bank's own embedding where it agrees with `chosen`, else `chosen`."""
        own, difference = self._compared(chosen)
        if own is not None and difference is None:
            # A small bank has chunks of fewer datasets than that; NaN agrees with anything.
            stored = self._stored(next(self.bank.chunks()), own)[:PROBES]
            few = self.bank.pilot[0][: len(stored)].to(self.sample[0].device)
            if checks.agree(own.mean(few).float(), stored):
                return own
            raise ValueError(
                "x: expected a bank whose first embeddings are those of its pilot, got others. If "
                "representation= is a function, pass the one that the bank was simulated with; "
                "otherwise the bank is damaged."
            )
        if self.bank.x is None:
            raise ValueError(
                "x: expected a bank whose embeddings were made as this estimator's settings make "
                f"them, got one that differs in {difference} and that has not kept its data, to be "
                "embedded anew. Fit the estimator that the bank was simulated with, or simulate "
                "again with mds= this one or with keep='data'."
            )
        return chosen

    def embed(self, embedding: Embedding, num_points: int) -> Iterator[Embedded]:
        """Give all datasets, with the embeddings of the bank if they were made with this one."""
        if num_points and self.bank.x is None:
            raise ValueError(
                "decoder: expected one that learns from embeddings, such as 'ridge', for a bank "
                "that has not kept its data, got one that learns from observations. Use another "
                "decoder, or simulate again with keep='data'."
            )
        same = self._compared(embedding)[1] is None
        for chunk in self.chunks:
            s = self._tensor(chunk.s, "s")
            x = self._tensor(chunk.x, "x") if num_points or not same else s[:, :0]
            stored = self._stored(chunk, embedding).float() if same else s[:, :0]
            finite = torch.isfinite(s).all(1)
            for part in (x, stored):  # an empty one is finite
                finite &= checks.finite_rows(part.flatten(1))
            z_bar = stored[finite] if same else embedding.mean(x[finite]).float()
            points = (x[finite, :num_points].clone(),) if num_points else ()
            yield (s[finite], z_bar, *points), int((~finite).sum())

    def _compared(self, chosen: Embedding) -> tuple[Embedding | None, str | None]:
        """Return the bank's embedding, checked, and what sets it apart from another."""
        state, event = self.bank.embedding_state, tuple(self.sample[0].shape[2:])
        if state is None or self.bank.z_bar is None:
            return None, "the embeddings, of which it has none,"
        # The bank may be from somebody else: nothing in it is trusted.
        path = Path(getattr(self.bank, "path", "bank")) / "embedding"
        record = Record(path, state[0], tensors=state[1])
        function, encoder = None, chosen.representation
        if "representation" in record and record.part("representation").get("name") == Encoded.name:
            function = encoder.function if isinstance(encoder, Encoded) else torch.nn.Identity()
        own = moved(Embedding.read(record, function), self.sample[0].device)
        if own.event_shape != event:
            raise damaged(record.file, f"it is not for observations of shape {event}")
        return own, first_difference(own.state(), chosen.state())

    def _stored(self, chunk: Any, embedding: Embedding) -> Tensor:
        """Return stored embeddings; in the first edition's banks a second kernel's follow."""
        return self._tensor(chunk.z_bar, "z_bar")[:, : embedding.num_features]

    def _tensor(self, value: Any, name: str) -> Tensor:
        return checks.as_tensor(value, name).to(self.sample[0].device)


def is_bank(value: object) -> TypeGuard[StoredSimulations]:
    """Return whether an object is a bank of simulations, without reading anything from disk."""
    names = ("complete", "theta", "s", "z_bar", "x", "pilot", "embedding_state", "chunks")
    missing = object()
    return all(getattr_static(value, name, missing) is not missing for name in names)


def _read_bank(
    bank: StoredSimulations, s: Any, summarise: Summariser, device: torch.device
) -> SimulationBankSource:
    """Return the source for a simulation bank; check the summary function on its pilot."""
    if s is not None:
        raise ValueError("s: expected None with a bank, which has its summaries. Leave s out.")
    if not bank.complete:
        raise ValueError(
            f"x: expected a complete bank of {len(bank)} simulations, got one that is not. Call "
            "mindist.simulate again with the same arguments: it continues where it stopped."
        )
    x, s_x = (part.to(device) for part in bank.pilot)
    finite = checks.finite_rows(x.flatten(1)) & torch.isfinite(s_x).all(1)
    x, s_x = _joined([(x[finite], s_x[finite], 0)])
    few, computed = s_x[:PROBES], summarise(x[:PROBES])
    if summarise.numpy is False and not checks.agree(few, computed):
        again = Summariser(summarise.summary)
        if checks.agree(few, again(x[:PROBES], prefer_numpy=True)):
            summarise.numpy, computed = again.numpy, few
    if not checks.agree(few, computed):
        raise ValueError(
            "summary: expected the function that the bank was simulated with, which gives "
            f"{few[0].tolist()} on its first dataset, got one that gives {computed[0].tolist()}. "
            "Pass the same function (and, for a network, the same weights), or simulate again."
        )
    return SimulationBankSource((x, s_x), bank.chunks(), len(bank), False, bank)


class Reservoir:
    """Rows of several tensors: all, the first `capacity`, or as many that a generator chooses."""

    def __init__(self, capacity: int | None, generator: torch.Generator | None = None) -> None:
        self.capacity, self._generator = capacity, generator
        self._parts: list[tuple[Tensor, ...]] = []
        self.index = torch.arange(0)  # which of all rows the kept ones are, (m,)
        self._seen = 0

    def fill(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Keep rows `(n, ...)` as long as there is room; return those for which there is none."""
        room = len(rows[0]) if self.capacity is None else self.capacity - len(self.index)
        kept = tuple(part[:room] for part in rows)
        if len(kept[0]):
            self._parts.append(kept)
            self._seen += len(kept[0])
            self.index = torch.arange(self._seen)
        return tuple(part[room:] for part in rows)

    def rows(self) -> tuple[Tensor, ...]:
        """Return what is kept, `(m, ...)`."""
        if len(self._parts) != 1:
            self._parts = [tuple(torch.cat(column) for column in zip(*self._parts, strict=True))]
        return self._parts[0]

    def replace(self, *rows: Tensor) -> None:
        """Let further rows `(n, ...)` take the place of kept ones, at random."""
        count = len(rows[0])
        if self._generator is None or not count:
            return
        if self._seen == len(self.index):  # nothing was replaced yet: rows may be the caller's
            self._parts = [tuple(part.clone() for part in self.rows())]
        number = torch.arange(self._seen, self._seen + count)
        self._seen += count
        uniform = torch.rand(count, dtype=torch.float64, generator=self._generator)
        place = (uniform * (number + 1)).long()
        taken = (place < len(self.index)).nonzero()[:, 0]
        # The last of several rows for one place stays.
        slot, last = np.unique(place[taken].numpy()[::-1], return_index=True)
        source = taken.flip(0)[torch.from_numpy(last)]
        target = torch.from_numpy(slot)
        self.index[target] = number[source]
        for kept, new in zip(self.rows(), rows, strict=True):
            kept[target.to(kept.device)] = new[source.to(new.device)]


class EmbeddedStream:
    """Simulations that are embedded while one iterates: the leading ones together, then the rest.

    Each item is a tuple of summaries `(m, d_s)`, mean embeddings `(m, K)` and, if `num_points` is
    not 0, the first observations `(m, num_points, *event)`. A sample of them, chosen by `seed`, is
    kept, or all.
    """

    def __init__(
        self,
        source: Source,
        embedding: Embedding,
        *,
        num_points: int,
        keep_all: bool,
        seed: int,
        progress: bool = False,
    ) -> None:
        self.embedding, self.sample = embedding, source.sample
        self._source, self._num_points = source, num_points
        draws = None if source.shuffled else torch.Generator().manual_seed(seed)
        self._reservoir = Reservoir(None if keep_all else MAX_KEPT, draws)
        self._dropped = self._seen = 0
        self._bar = tqdm(total=source.total, desc="Embedding simulations", disable=not progress)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        begun, reservoir = False, self._reservoir
        for rows, lost in self._source.embed(self.embedding, self._num_points):
            self._dropped, self._seen = self._dropped + lost, self._seen + len(rows[0]) + lost
            self._bar.update(len(rows[0]) + lost)
            rest = reservoir.fill(*rows)
            if len(rest[0]):
                if not begun:
                    yield reservoir.rows()
                begun = True
                yield rest
                reservoir.replace(*rest)
        self._bar.close()
        if not begun:
            yield reservoir.rows()

    def kept(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what was kept after all were read; warn about simulations that were dropped.

        Summaries `(m, d_s)`, mean embeddings `(m, K)`, and which of all datasets they are, `(m,)`.
        """
        if self._dropped:
            checks.warn_user(
                f"x: dropped {self._dropped} of {self._seen} simulations because they or their "
                "summaries hold NaN or infinite values. If the simulator fails for some "
                "parameters, the posterior was trained without them too; check that it was."
            )
        s, z_bar = self._reservoir.rows()[:2]
        return s, z_bar, self._reservoir.index.to(s.device)
