"""What `MinimumDistance.fit` learns, as one value that can be moved, stored and read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import Bank, SummaryNoise, View
from mindist.decoders import DECODERS, RidgeDecoder
from mindist.detection import Detector, NullDistances
from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding
from mindist.features.representation import Encoded
from mindist.protocols import Decoder, Summary
from mindist.summarise import Summariser

BLOCK_ROWS = 4_096  # datasets that are decoded or searched for at once


class Judged(NamedTuple):
    """What detection says of datasets, float64.

    Arguments:
        distance: Squared distances `(B,)` from the decoder's embeddings.
        p_value: `(B,)`.
        mu: These embeddings, wide, `(B, K)`.
    """

    distance: Tensor
    p_value: Tensor
    mu: Tensor


@dataclass(frozen=True)
class Fitted:
    """Embedding, decoders, null distances and bank of simulations, and what they were fitted to.

    Arguments:
        embedding: Representation and kernels of an observation.
        wide: Decoder and bank in the wide kernel.
        local: The same in the local kernel, where there is one.
        null: Distances of held-out simulations in the wide kernel.
        detector: The combined test, or None where the distance alone decides.
        summarise: The summary function, checked.
        num_obs: Observations in each simulated dataset.
        probe: One simulated dataset, with which a summary function is recognised.
        least_mass: The mass of the model that 95% of the simulated datasets exceed.
        score_threshold: The outlier score that 99% of the simulated observations stay below.
        noise: The sampling noise of the summary, where it is known.
        continuous: Whether no simulated dataset holds two equal observations.
    """

    embedding: Embedding
    wide: View
    local: View | None
    null: NullDistances
    detector: Detector | None
    summarise: Summariser
    num_obs: int
    probe: Tensor
    least_mass: float
    score_threshold: float
    noise: SummaryNoise | None = None
    continuous: bool = False

    @property
    def features(self) -> FourierFeatures:
        """The wide kernel's features, of represented observations."""
        return self.embedding.features

    @property
    def decoder(self) -> Decoder:
        """The wide kernel's decoder."""
        return self.wide.decoder

    @property
    def bank(self) -> Bank:
        """The wide kernel's bank of simulations."""
        return self.wide.bank

    @property
    def density(self) -> View:
        """The view that estimates densities."""
        return self.wide if self.local is None else self.local

    def mass_threshold(self, num_obs: int) -> float:
        """The mass that 95% of simulated datasets with `num_obs` observations would exceed."""
        return 1 - (1 - self.least_mass) * math.sqrt(self.num_obs / num_obs)

    def distance(self, s: Tensor, z_bar: Tensor) -> Tensor:
        """Squared distances `(B,)` of embeddings `(B, K)` from the decoder's at `s`, `(B, d_s)`."""
        blocks = zip(s.double().split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
        with torch.no_grad():
            return torch.cat([(self.decoder(b) - z).square().sum(-1) for b, z in blocks])

    @torch.no_grad()
    def judge(self, s: Tensor, z_bar: Tensor, num_obs: int) -> Judged:
        """Distances and p-values of datasets, and the embeddings that they were compared with.

        Arguments:
            s: Summaries `(B, d_s)`.
            z_bar: Mean embeddings in all kernels `(B, K)`, in whose precision products are taken.
            num_obs: Observations in each dataset.
        """
        if s.shape[0] > BLOCK_ROWS:
            blocks = zip(s.split(BLOCK_ROWS), z_bar.split(BLOCK_ROWS), strict=True)
            parts = [self.judge(*block, num_obs) for block in blocks]
            return Judged(*map(torch.cat, zip(*parts, strict=True)))
        s, mu = s.double(), self.wide.decode(s)
        distance, residuals = self._residuals(s, z_bar, mu)
        if self.detector is None:
            return Judged(distance, self.null.p_value(distance, num_obs), mu)
        return Judged(distance, self.detector.p_value(residuals, s, z_bar, num_obs), mu)

    @torch.no_grad()
    def p_values(self, x: Tensor) -> dict[str, Tensor]:
        """p-values `(B,)` of every statistic of the test alone, of datasets `(B, N, *event)`."""
        s, z_bar, num_obs = self.summarise(x).double(), self.embedding.mean(x), x.shape[1]
        distance, residuals = self._residuals(s, z_bar, self.wide.decode(s))
        if self.detector is None:
            return {"distance": self.null.p_value(distance, num_obs)}
        return self.detector.p_values(residuals, s, z_bar, num_obs)

    def _residuals(self, s: Tensor, z_bar: Tensor, mu: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Squared distances `(B,)`, and what the decoders leave: wide, and local where there is."""
        wide, local = self.embedding.split(z_bar)
        difference = wide - mu
        distance = torch.linalg.vecdot(difference, difference)
        if not isinstance(self.decoder, RidgeDecoder):
            return distance, [difference]
        residuals = [difference.to(wide.dtype)]
        if self.detector is not None and self.local is not None and local is not None:
            residuals.append(local - self.local.decode(s, local.dtype))
        return distance, residuals

    def excess(self, s_star: Tensor, covariance: Tensor, adapted: Tensor) -> Tensor:
        """What covariances `(B, d_s, d_s)` of adapted summaries have beyond that of simulations."""
        if self.noise is None or not adapted.any():
            return torch.zeros_like(covariance)
        if adapted.all():
            return self.noise.excess(s_star, covariance)
        value = torch.zeros_like(covariance)
        value[adapted] = self.noise.excess(s_star[adapted], covariance[adapted])
        return value

    def to(self, device: torch.device) -> Fitted:
        """The same on a device."""
        return replace(
            self,
            embedding=self.embedding.to(device),
            wide=self.wide.to(device),
            local=None if self.local is None else self.local.to(device),
            null=self.null.to(device),
            detector=None if self.detector is None else self.detector.to(device),
            probe=self.probe.to(device),
            noise=None if self.noise is None else self.noise.to(device),
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
        embedding = self.embedding
        config, tensors = embedding.state()
        config |= {
            "num_obs": self.num_obs,
            "numpy_summary": self.summarise.numpy,
            "decoder": names[type(self.decoder)],
            "decoder_config": decoder_config,
            "least_mass": self.least_mass,
            "score_threshold": self.score_threshold,
            "continuous": self.continuous,
        }
        tensors |= {f"decoder.{name}": value for name, value in decoder_tensors.items()}
        tensors |= {f"bank.{name}": value for name, value in self.bank.state().items()}
        tensors |= {
            "null.noise": self.null.noise,
            "null.cross": self.null.cross,
            "null.error": self.null.error,
            "probe.x": self.probe,
            "probe.s": self.summarise(self.probe),
        }
        config["error"] = self.wide.error
        if self.local is not None:
            local_config, local_tensors = self.local.decoder.state()
            config |= {"local_decoder": local_config, "local_error": self.local.error}
            tensors |= {f"local.{name}": value for name, value in local_tensors.items()}
            tensors |= {
                f"local_bank.{name}": value for name, value in self.local.bank.state().items()
            }
        if self.detector is not None:
            config["detector"], detector_tensors = self.detector.state()
            tensors |= {f"detector.{name}": value for name, value in detector_tensors.items()}
        if self.noise is not None:
            tensors |= {f"noise.{name}": value for name, value in self.noise.state().items()}
        if isinstance(embedding.representation, Encoded):
            tensors["probe.seen"] = embedding.represent(self.probe)
        return config, tensors

    @classmethod
    def from_state(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        summary: Summary,
        function: Callable[[Any], Any] | None = None,
    ) -> Fitted:
        """Rebuild from `state`, the summary, and the function that was the representation, if any.

        Both are checked on the probe.
        """

        def part(name: str) -> dict[str, Tensor]:
            prefix = f"{name}."
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        embedding = Embedding.from_state(config, tensors, function)
        features, local, local_view = embedding.features, embedding.local, None
        if local is not None:
            local_decoder = RidgeDecoder.from_state(config["local_decoder"], part("local"), local)
            local_view = View(local_decoder, Bank(**part("local_bank")), config["local_error"])
        probe_x, probe_s = tensors["probe.x"], tensors["probe.s"]
        if "probe.seen" in tensors:
            checks.same_representation(embedding.represent(probe_x), tensors["probe.seen"])
        summarise = Summariser(summary, config["numpy_summary"], probe_s.shape[1])
        checks.same_summary(summarise(probe_x), probe_s)
        decoder_kind = DECODERS[config["decoder"]]
        # What 0.1.0 saved has one kernel, no weights and no detector but the distance.
        null = NullDistances(**part("null"), num_obs=config["num_obs"])
        error = config.get("error", float(null.distances(null.num_obs).mean()))
        decoder = decoder_kind.from_state(config["decoder_config"], part("decoder"), features)
        return cls(
            embedding,
            View(decoder, Bank(**part("bank")), error),
            local_view,
            null,
            Detector.from_state(config["detector"], part("detector"))
            if "detector" in config
            else None,
            summarise,
            config["num_obs"],
            probe_x,
            config.get("least_mass", 1.0),
            config.get("score_threshold", 0.0),
            SummaryNoise(**part("noise")) if "noise.s" in tensors else None,
            config.get("continuous", False),
        )


__all__ = ["Fitted"]
