"""One kernel's view of the simulations: decoder, bank, and how well they agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud, ridge
from mindist.adaptation.objective import EmbeddingDistance, ReducedHead
from mindist.adaptation.options import Search
from mindist.adaptation.starts import Bank
from mindist.features.fast import serves
from mindist.protocols import CosineDecoder, Decoder
from mindist.solvers import CosineLeastSquares

if TYPE_CHECKING:
    from mindist.adaptation.few_loops import Sight

MAX_POINTS = 2_000  # simulated summaries over which the decoder's directions are ordered
# Of the held-out error, left out of a search that need not be exact: on contaminated OUP data
# (50 of 500 directions) it moves 95% of the ends by less than .03 standard deviations of simulated
# summaries, and those of the exact search after them by less than 2e-4.
LEFT_OUT = 1e-3


@dataclass(frozen=True)
class View:
    """What is learned from simulations through one kernel.

    Arguments:
        decoder: From a summary to the mean embedding of its datasets.
        bank: Simulated summaries and embeddings, to start from and to stay near.
        error: Mean squared distance of simulations that the decoder has not seen.
    """

    decoder: Decoder
    bank: Bank
    error: float

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank, computed once."""
        return ReducedHead.of(self.decoder.weight)

    @cached_property
    def cosines(self) -> CosineLeastSquares | None:
        """The decoder prepared for the compiled search; None where there is none for it."""
        decoder = self.decoder
        if not isinstance(decoder, CosineDecoder) or not serves(decoder.weight):
            return None
        points = self.bank.s[:MAX_POINTS]
        return CosineLeastSquares.of(*decoder.cosines(), points, least=LEFT_OUT * self.error)

    @torch.no_grad()
    def decode(self, s: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The mean embeddings `(B, K)` of summaries `(B, d_s)`, float64 or float32."""
        if self.cosines is None:
            return self.decoder(s.double()).to(dtype)
        cosine = self.cosines.basis(s.double())
        if dtype == torch.float64:
            return torch.addmm(self.decoder.bias, cosine, self.cosines.mixing)
        return torch.addmm(self.single[1], cosine.float(), self.cosines.single.T)

    @torch.no_grad()
    def decode_with_slopes(self, s: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same, with derivatives `(B, d_s, K)`."""
        basis, slopes = self.decoder.basis_and_jacobian(s)
        weight, bias = (
            self.single if dtype == torch.float32 else (self.decoder.weight, self.decoder.bias)
        )
        made = torch.cat([basis[:, None], slopes.mT], 1).to(weight.dtype) @ weight
        return made[:, 0] + bias, made[:, 1:]

    @cached_property
    def sight(self) -> Sight:
        """What the compiled rounds of few datasets take of it, where there are cosines."""
        from mindist.adaptation.few_loops import Sight

        assert self.cosines is not None
        likeness, bank = self.bank.likeness, self.bank
        few, others, norms = likeness.parts
        return Sight(
            self.cosines.loops_basis,
            self.cosines.mixing.float().contiguous().numpy(),
            self.cosines.single.numpy(),
            self.decoder.bias.numpy(),
            self.single[1].numpy(),
            self.cosines.loose_limits,
            likeness.directions.contiguous().numpy(),
            (few.numpy(), others, norms),
            (bank.s.contiguous().numpy(), bank.unit.contiguous().numpy(), ridge(len(bank.s))),
        )

    @cached_property
    def single(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the decoder in float32."""
        return self.decoder.weight.float(), self.decoder.bias.float()

    def cloud(self, options: Search, z_bar: Tensor) -> Cloud | None:
        """Where datasets with embeddings like `(B, K)` have their summaries, if it matters."""
        if not (options.stay and self.error > 0) and "cloud" not in options.starts:
            return None
        return self.bank.cloud(z_bar)

    def objective(self, options: Search, z_bar: Tensor, cloud: Cloud | None) -> EmbeddingDistance:
        """What a search minimises for embeddings `(B, K)` with these clouds."""
        stay = options.stay * max(self.error, 0.0)  # a perfect fit may have an error of -1e-17
        head = self.head if options.least_squares and self.cosines is None else None
        return EmbeddingDistance(self.decoder, z_bar, cloud, stay, head)

    def to(self, device: torch.device) -> View:
        """The same on another device."""
        return replace(self, decoder=self.decoder.to(device), bank=self.bank.to(device))


__all__ = ["View"]
