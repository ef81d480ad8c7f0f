"""One kernel's view of the simulations: decoder, bank, and how well they agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mindist.adaptation.cloud import Cloud
from mindist.adaptation.search import EmbeddingDistance, Found, ReducedHead, Search, search
from mindist.adaptation.starts import Bank
from mindist.features.fast import serves
from mindist.protocols import CosineDecoder, Decoder
from mindist.solvers import CosineLeastSquares

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
    def decode(self, s: Tensor) -> Tensor:
        """The mean embeddings `(B, K)` of summaries `(B, d_s)`, float64."""
        return self.decoder(s.double())

    @torch.no_grad()
    def decode_single(self, s: Tensor) -> Tensor:
        """The same in float32, of which features of observations are."""
        weight, bias = self._single
        return torch.addmm(bias, self.decoder.basis(s.double()).float(), weight)

    @cached_property
    def _single(self) -> tuple[Tensor, Tensor]:
        return self.decoder.weight.float(), self.decoder.bias.float()

    def cloud(self, options: Search, z_bar: Tensor) -> Cloud | None:
        """Where datasets with embeddings like `(B, K)` have their summaries, if it matters."""
        if not (options.stay and self.error > 0) and "cloud" not in options.starts:
            return None
        return self.bank.cloud(z_bar)

    def objective(self, options: Search, z_bar: Tensor, cloud: Cloud | None) -> EmbeddingDistance:
        """What a search minimises for embeddings `(B, K)` with these clouds."""
        stay = options.stay * max(self.error, 0.0)
        return EmbeddingDistance(self.decoder, z_bar, cloud, stay)

    def search(
        self,
        options: Search,
        *,
        x: Tensor,
        s_obs: Tensor,
        z_bar: Tensor,
        generator: torch.Generator,
        cloud: Cloud | None = None,
        mu_obs: Tensor | None = None,
        near: Tensor | None = None,
    ) -> Found:
        """Search in this view; arguments as in `mindist.adaptation.search.search`."""
        cosines = self.cosines if options.compiled else None
        return search(
            self.decoder,
            options,
            self.bank,
            x=x,
            s_obs=s_obs,
            z_bar=z_bar,
            generator=generator,
            error=self.error,
            head=self.head if options.compiled and cosines is None else None,
            cosines=cosines,
            cloud=cloud,
            mu_obs=mu_obs,
            near=near,
        )

    def follow(
        self,
        options: Search,
        *,
        x: Tensor,
        s_obs: Tensor,
        z_bar: Tensor,
        generator: torch.Generator,
        cloud: Cloud | None = None,
        near: Tensor | None = None,
    ) -> Tensor:
        """Where a search ends, `(B, d_s)`, to about a hundredth of the spread of the summaries.

        For one search among several, of which only the last has to be exact.
        """
        simple = options.starts == ("cloud",) and not options.restarts
        cosines = self.cosines if simple and options.compiled else None
        if cosines is None:
            found = self.search(
                options, x=x, s_obs=s_obs, z_bar=z_bar, generator=generator, cloud=cloud, near=near
            )
            return found.s_star
        cloud = self.bank.cloud(z_bar) if cloud is None else cloud
        starts = [cloud.centre] if near is None else [cloud.centre, near]
        objective = self.objective(options, z_bar, cloud)
        return objective.compiled(cosines, torch.stack(starts, 1), repeats=0).value

    def to(self, device: torch.device) -> View:
        """The same on another device."""
        return replace(self, decoder=self.decoder.to(device), bank=self.bank.to(device))


__all__ = ["View"]
