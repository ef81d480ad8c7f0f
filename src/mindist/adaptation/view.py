"""One kernel's view of the simulations: decoder, bank, and how well they agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mindist.adaptation.search import Found, ReducedHead, Search, search
from mindist.adaptation.starts import Bank
from mindist.protocols import Decoder


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

    def search(
        self,
        options: Search,
        *,
        x: Tensor,
        s_obs: Tensor,
        z_bar: Tensor,
        generator: torch.Generator,
    ) -> Found:
        """Search in this view; arguments as in `mindist.adaptation.search.search`."""
        return search(
            self.decoder,
            options,
            self.bank,
            x=x,
            s_obs=s_obs,
            z_bar=z_bar,
            generator=generator,
            head=self.head,
            error=self.error,
        )

    def to(self, device: torch.device) -> View:
        """The same on another device."""
        return replace(self, decoder=self.decoder.to(device), bank=self.bank.to(device))


__all__ = ["View"]
