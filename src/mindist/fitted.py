"""What `MinimumDistance.fit` learns, as one value that can be moved, stored and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import Bank, ReducedHead
from mindist.decoders import DECODERS
from mindist.detection import NullDistances
from mindist.features import FourierFeatures
from mindist.protocols import Decoder, Summary
from mindist.summarise import Summariser

BLOCK_ROWS = 4_096  # datasets that are decoded or searched for at once


@dataclass(frozen=True)
class Fitted:
    """Features, decoder, null distances and bank of simulations, and what they were fitted to.

    Arguments:
        features: The embedding of an observation.
        decoder: From a summary to the mean embedding of its datasets.
        null: Distances of held-out simulations.
        bank: Simulated summaries and embeddings from which a search may start.
        summarise: The summary function, checked.
        num_obs: Observations in each simulated dataset.
        probe: One simulated dataset, with which a summary function is recognised.
    """

    features: FourierFeatures
    decoder: Decoder
    null: NullDistances
    bank: Bank
    summarise: Summariser
    num_obs: int
    probe: Tensor

    @cached_property
    def head(self) -> ReducedHead:
        """The decoder's last layer cut to its rank, computed once."""
        return ReducedHead.of(self.decoder.weight)

    def distance(self, s: Tensor, z_bar: Tensor) -> Tensor:
        """Squared distances `(B,)` of embeddings `(B, K)` from the decoder's at `s`, `(B, d_s)`."""
        blocks = zip(s.double().split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        with torch.no_grad():
            return torch.cat([(self.decoder(b) - z).square().sum(-1) for b, z in blocks])

    def to(self, device: torch.device) -> Fitted:
        """The same on a device."""
        return replace(
            self,
            features=self.features.to(device),
            decoder=self.decoder.to(device),
            null=self.null.to(device),
            bank=self.bank.to(device),
            probe=self.probe.to(device),
        )

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors that rebuild it, all but the summary function."""
        names: dict[type, str] = {kind: name for name, kind in DECODERS.items()}
        if type(self.decoder) not in names:
            raise TypeError(
                f"decoder: expected one of {', '.join(DECODERS)} to save, got "
                f"{type(self.decoder).__name__}, which mindist could not rebuild."
            )
        decoder_config, decoder_tensors = self.decoder.state()
        config = {
            "event_shape": list(self.features.event_shape),
            "fitted_bandwidth": self.features.bandwidth,
            "num_obs": self.num_obs,
            "numpy_summary": self.summarise.numpy,
            "decoder": names[type(self.decoder)],
            "decoder_config": decoder_config,
        }
        tensors = {f"decoder.{name}": value for name, value in decoder_tensors.items()}
        tensors |= {f"bank.{name}": value for name, value in vars(self.bank).items()}
        tensors |= {
            "features.weight": self.features.weight,
            "null.noise": self.null.noise,
            "null.cross": self.null.cross,
            "null.error": self.null.error,
            "probe.x": self.probe,
            "probe.s": self.summarise(self.probe),
        }
        return config, tensors

    @classmethod
    def from_state(
        cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], summary: Summary
    ) -> Fitted:
        """Rebuild from `state` and the summary function, which is checked on the probe."""

        def part(name: str) -> dict[str, Tensor]:
            prefix = f"{name}."
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        features = FourierFeatures(
            **part("features"),
            event_shape=torch.Size(config["event_shape"]),
            bandwidth=config["fitted_bandwidth"],
        )
        kind = DECODERS[config["decoder"]]
        probe_x, probe_s = tensors["probe.x"], tensors["probe.s"]
        summarise = Summariser(summary, config["numpy_summary"], probe_s.shape[1])
        checks.same_summary(summarise(probe_x), probe_s)
        return cls(
            features,
            kind.from_state(config["decoder_config"], part("decoder"), features),
            NullDistances(**part("null"), num_obs=config["num_obs"]),
            Bank(**part("bank")),
            summarise,
            config["num_obs"],
            probe_x,
        )


__all__ = ["Fitted"]
