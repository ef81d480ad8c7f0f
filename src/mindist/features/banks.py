"""Simulations from a bank on disk, larger than memory: embeddings as stored, or made anew.

A bank stores the mean embeddings of its datasets, and the datasets themselves only where that was
asked for. The stored embeddings serve if they were made with the embedding that an estimator's
settings give on the pilot, the first datasets, which every bank keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from mindist import checks
from mindist.features.agreement import first_difference
from mindist.features.embedding import Embedding
from mindist.features.embedding_layout import check_embedding
from mindist.features.representation import Encoded
from mindist.features.sources import Choose, Embedded
from mindist.protocols import State, StoredChunk, StoredSimulations
from mindist.storage import damaged
from mindist.summarise import Summariser

PROBES = 3  # datasets on which stored summaries and embeddings are checked


@dataclass(frozen=True)
class BankSource:
    """The datasets of a bank, as a `Source`; `read_bank` makes and checks it.

    Arguments:
        bank: The bank.
        sample: Its pilot: datasets `(m, N, *event)` and their summaries `(m, d_s)`.
        device: Where to compute.
    """

    bank: StoredSimulations
    sample: tuple[Tensor, Tensor]
    device: torch.device
    shuffled: ClassVar[bool] = False

    @property
    def total(self) -> int:
        """How many datasets there are."""
        return len(self.bank)

    def embedding(self, choose: Choose) -> Embedding:
        """The bank's own where it agrees with what `choose` chooses on the pilot."""
        chosen = choose(*self.sample)
        difference, state = self._difference(chosen), self._state
        if difference is None and state is not None:
            function = _function(chosen.representation)
            own = Embedding.from_state(*state, function).to(self.device)
            self._check(own)
            return own
        if self.bank.x is None:
            raise ValueError(
                "x: expected a bank whose embeddings were made as this estimator's settings make "
                f"them, got one that differs in {difference} and that has not kept its data, to be "
                "embedded anew. Fit the estimator that the bank was simulated with, or simulate "
                "again with mds= this one or with keep='data'."
            )
        return chosen

    def embed(self, embedding: Embedding, num_points: int) -> Iterator[Embedded]:
        """All datasets, with the embeddings of the bank if they were made with this one."""
        if num_points and self.bank.x is None:
            raise ValueError(
                "decoder: expected one that learns from embeddings, such as 'ridge', for a bank "
                "that has not kept its data, got one that learns from observations. Use another "
                "decoder, or simulate again with keep='data'."
            )
        stored = self._difference(embedding) is None
        for chunk in self.bank.chunks():
            yield self._embedded(chunk, embedding, stored, num_points)

    @property
    def _state(self) -> State | None:
        """The bank's embedding, after it was checked: it may be from a file that somebody sent."""
        state, event = self.bank.embedding_state, tuple(self.sample[0].shape[2:])
        if state is None:
            return None
        file = Path(getattr(self.bank, "path", "bank")) / "embedding"
        if check_embedding(file, *state) != event:
            raise damaged(file, f"it is not for observations of shape {event}")
        return state

    def _difference(self, embedding: Embedding) -> str | None:
        """What sets the bank's embeddings apart from those that this embedding gives."""
        state = self._state
        if state is None or self.bank.z_bar is None:
            return "the embeddings, of which it has none,"
        return first_difference(state, embedding.state())

    def _check(self, embedding: Embedding) -> None:
        """Whether the first embeddings of the bank are those of its pilot."""
        # A small bank has chunks of fewer datasets than that; NaN agrees with anything.
        stored = self._tensor(next(self.bank.chunks()).z_bar, "z_bar")[:PROBES]
        few = self.bank.pilot[0][: len(stored)].to(self.device)
        if not checks.agree(embedding.mean(few).float(), stored):
            raise ValueError(
                "x: expected a bank whose first embeddings are those of its pilot, got others. If "
                "representation= is a function, pass the one that the bank was simulated with; "
                "otherwise the bank is damaged."
            )

    def _embedded(
        self, chunk: StoredChunk, embedding: Embedding, stored: bool, num_points: int
    ) -> Embedded:
        """The finite datasets of a chunk, embedded."""
        s = self._tensor(chunk.s, "s")
        x = self._tensor(chunk.x, "x") if num_points or not stored else None
        z_bar = self._tensor(chunk.z_bar, "z_bar").float() if stored else None
        finite = torch.isfinite(s).all(1)
        for part in (x, z_bar):
            finite &= True if part is None else checks.finite_rows(part.flatten(1))
        if z_bar is None:
            assert x is not None  # `embedding` has seen to it
            z_bar = s.new_empty(len(s), embedding.total, dtype=torch.float32)
            z_bar[finite] = embedding.mean(x[finite]).float()
        points = x[finite, :num_points].clone() if x is not None and num_points else None
        return Embedded(s[finite], z_bar[finite], points, int((~finite).sum()))

    def _tensor(self, value: Any, name: str) -> Tensor:
        return checks.as_tensor(value, name).to(self.device)


def read_bank(
    bank: StoredSimulations, s: Any, summarise: Summariser, device: torch.device
) -> BankSource:
    """The source for a bank that `MinimumDistance.fit` was given.

    Arguments:
        bank: A complete bank.
        s: None, because it has its summaries.
        summarise: The summary function, which is checked on the pilot.
        device: Where to compute.
    """
    if s is not None:
        raise ValueError("s: expected None with a bank, which has its summaries. Leave s out.")
    if not bank.complete:
        raise ValueError(
            f"x: expected a complete bank of {len(bank)} simulations, got one that is not. Call "
            "mindist.simulate again with the same arguments: it continues where it stopped."
        )
    x, s_x = (part.to(device) for part in bank.pilot)
    finite = checks.finite_rows(x.flatten(1)) & torch.isfinite(s_x).all(1)
    if not finite.any():
        raise checks.no_simulations()
    x, s_x = x[finite], s_x[finite]
    _check_summary(summarise, x[:PROBES], s_x[:PROBES])
    return BankSource(bank, (x, s_x), device)


def _check_summary(summarise: Summariser, x: Tensor, s: Tensor) -> None:
    """Whether the bank holds the summaries that the function gives, of tensors or of arrays."""
    computed = summarise(x)
    if summarise.numpy is False and not checks.agree(s, computed):
        again = Summariser(summarise.summary)
        if checks.agree(s, again(x, prefer_numpy=True)):
            summarise.numpy, computed = again.numpy, s
    if not checks.agree(s, computed):
        raise ValueError(
            "summary: expected the function that the bank was simulated with, which gives "
            f"{s[0].tolist()} on its first dataset, got one that gives {computed[0].tolist()}. "
            "Pass the same function (and, for a network, the same weights), or simulate again."
        )


def _function(representation: Any) -> Any:
    """The function of an encoded representation, which a bank does not store."""
    return representation.function if isinstance(representation, Encoded) else None


__all__ = ["BankSource", "read_bank"]
