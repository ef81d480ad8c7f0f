"""One kernel's view of the simulations: decoder, bank, and how well they agree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.objective import Cosines, EmbeddingDistance, ReducedHead
from mindist.adaptation.options import Search
from mindist.adaptation.starts import Bank
from mindist.protocols import CosineDecoder, Decoder


@dataclass(frozen=True)
class View:
    """Decoder, bank and error, learned from simulations through one kernel.

    Arguments:
        decoder: From a summary to the mean embedding of its datasets.
        bank: Simulated summaries and embeddings, to start from and to stay near.
        error: Mean squared distance of simulations that the decoder has not seen.
    """

    decoder: Decoder
    bank: Bank
    error: float

    @cached_property
    def head(self) -> ReducedHead | Cosines:
        """The decoder's cosines if it has such a basis, else its last layer cut to its rank."""
        if isinstance(self.decoder, CosineDecoder):
            return Cosines.of(self.decoder, self.bank.likeness.directions)
        return ReducedHead.of(self.decoder.weight)

    @torch.no_grad()
    def decode(self, s: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The mean embeddings `(B, K)` of summaries `(B, d_s)`, float64 or float32."""
        if dtype == torch.float32 and isinstance(self.head, Cosines):
            return self.head(s.double(), dtype) + self.single[1]
        return self.decoder(s.double()).to(dtype)

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
    def single(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the decoder in float32."""
        return self.decoder.weight.float(), self.decoder.bias.float()

    def cloud(self, options: Search, z_bar: Tensor) -> Cloud | None:
        """Where datasets with embeddings like `(B, K)` have their summaries, if it matters."""
        if not (options.stay and self.error > 0) and "cloud" not in options.starts:
            return None
        return self.bank.cloud(z_bar)

    def objective(self, options: Search, z_bar: Tensor, cloud: Cloud | None) -> EmbeddingDistance:
        """Return the objective of a search for embeddings `(B, K)` with these clouds."""
        stay = options.stay * max(self.error, 0.0)  # a perfect fit may have an error of -1e-17
        head = self.head if options.least_squares else None
        return EmbeddingDistance(self.decoder, z_bar, cloud, stay, head)


__all__ = ["View"]
