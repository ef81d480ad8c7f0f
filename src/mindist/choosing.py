"""Choosing an embedding on a sample of simulations: representation, bandwidths, features.

The wide kernel's bandwidth follows a rule on what the representation shows of the sample, the local
one's is the narrowest multiple of it with which observations of one dataset still see each other;
the frequencies of both are drawn from the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.adaptation import choose_representation, efficient_bandwidth
from mindist.features import FourierFeatures, choose_bandwidth
from mindist.features.bandwidth import efficiency_share
from mindist.features.embedding import Embedding, local_multiple
from mindist.features.representation import Representation, make_representation
from mindist.summarise import Summariser


@dataclass(frozen=True)
class EmbeddingRule:
    """The settings of `MinimumDistance` that decide how it embeds, under the same names.

    Arguments:
        bandwidth: As for `MinimumDistance`.
        representation: As for `MinimumDistance`.
        local: As for `MinimumDistance`.
        num_features: As for `MinimumDistance`.
        frequencies: As for `MinimumDistance`.
        seed: As for `MinimumDistance`.

    Example:
        >>> x = torch.randn(50, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> rule = EmbeddingRule(2.0, "raw", True, 4, "sobol", seed=0)
        >>> rule.choose(x, x.mean(1), Summariser(lambda x: x.mean(1))).total
        8
    """

    bandwidth: float | str
    representation: str | Callable[[Any], Any]
    local: bool
    num_features: int
    frequencies: str
    seed: int

    def choose(
        self,
        x: Tensor,
        s: Tensor,
        summarise: Summariser,
        sampling: torch.Generator | None = None,
    ) -> Embedding:
        """The embedding that these settings give on simulations.

        Arguments:
            x: Simulated datasets `(M, N, *event)`.
            s: Their summaries `(M, d_s)`.
            summarise: The summary function.
            sampling: Chooses the observations whose distances set the bandwidth; by default a new
                stream of the seed.
        """
        sampling = torch.Generator().manual_seed(self.seed) if sampling is None else sampling
        representation = self._representation(x, s)
        seen = x if representation is None else representation(x)
        bandwidth = self._bandwidth(x, s, seen, summarise, sampling)
        wide, local = self._kernels(seen, bandwidth)
        return Embedding(wide, local, representation)

    def _representation(self, x: Tensor, s: Tensor) -> Representation | None:
        rule = self.representation
        if rule == "auto":
            rule = choose_representation(x, s, self.bandwidth)
        return None if rule == "raw" else make_representation(rule, x)

    def _bandwidth(
        self, x: Tensor, s: Tensor, seen: Tensor, summarise: Summariser, sampling: torch.Generator
    ) -> float:
        share = efficiency_share(self.bandwidth)
        if share is None:
            return choose_bandwidth(self.bandwidth, seen, sampling)
        return efficient_bandwidth(share, x, seen, s, summarise, sampling)

    def _kernels(
        self, seen: Tensor, bandwidth: float
    ) -> tuple[FourierFeatures, FourierFeatures | None]:
        drawing = torch.Generator().manual_seed(self.seed)

        def draw(width: float) -> FourierFeatures:
            return FourierFeatures.draw(
                tuple(seen.shape[2:]),
                self.num_features,
                bandwidth=width,
                generator=drawing,
                frequencies=self.frequencies,
            )

        wide = draw(bandwidth)
        if not self.local:
            return wide, None
        multiple = local_multiple(seen.reshape(*seen.shape[:2], -1), bandwidth)
        return wide, None if multiple is None else draw(multiple * bandwidth)


__all__ = ["EmbeddingRule"]
