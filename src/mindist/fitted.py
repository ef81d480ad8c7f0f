"""The value that `MinimumDistance.fit` learns, which can be moved, stored and read back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation import Bank, SummaryNoise, View
from mindist.decoders import DECODERS, FlowDecoder, RidgeDecoder
from mindist.detection import Detector, NullDistances
from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding
from mindist.features.representation import Encoded
from mindist.protocols import Decoder, State, Summary
from mindist.schema import Record, moved, pack, prefixed
from mindist.summarise import Summariser

BLOCK_ROWS = 4_096  # datasets that are decoded or searched for at once


class Judged(NamedTuple):
    """Detection of datasets, float64.

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
        """Return the mass that 95% of simulated datasets of `num_obs` observations exceed."""
        return 1 - (1 - self.least_mass) * math.sqrt(self.num_obs / num_obs)

    @torch.no_grad()
    def judge(self, s: Tensor, z_bar: Tensor, num_obs: int) -> Judged:
        """Return distances and p-values, and the embeddings that datasets were compared with.

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
        """Return p-values `(B,)` of each statistic alone, of datasets `(B, N, *event)`."""
        s, z_bar, num_obs = self.summarise(x).double(), self.embedding.mean(x), x.shape[1]
        distance, residuals = self._residuals(s, z_bar, self.wide.decode(s))
        if self.detector is None:
            return {"distance": self.null.p_value(distance, num_obs)}
        return self.detector.p_values(residuals, s, z_bar, num_obs)

    def _residuals(self, s: Tensor, z_bar: Tensor, mu: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return squared distances `(B,)`, and the residuals of the wide and the local decoder."""
        wide, local = self.embedding.split(z_bar)
        difference = wide - mu
        distance = torch.linalg.vecdot(difference, difference)
        if self.detector is None:
            return distance, []
        residuals = [difference.to(wide.dtype)]
        if self.local is not None and local is not None:
            residuals.append(local - self.local.decode(s, local.dtype))
        return distance, residuals

    def excess(self, s_star: Tensor, covariance: Tensor, adapted: Tensor) -> Tensor:
        """Return the part of covariances `(B, d_s, d_s)` beyond that of simulated summaries."""
        if self.noise is None or not adapted.any():
            return torch.zeros_like(covariance)
        if adapted.all():
            return self.noise.excess(s_star, covariance)
        value = torch.zeros_like(covariance)
        value[adapted] = self.noise.excess(s_star[adapted], covariance[adapted])
        return value

    def to(self, device: torch.device) -> Fitted:
        """Return the same on a device."""
        return moved(self, device)

    def state(self) -> State:
        """Return settings and tensors that rebuild it, all but the user's functions."""
        names: dict[type, str] = {kind: name for name, kind in DECODERS.items()}
        if type(self.decoder) not in names:
            raise TypeError(
                f"decoder: expected one of {', '.join(DECODERS)} to save, got "
                f"{type(self.decoder).__name__}, which mindist could not rebuild."
            )
        config, tensors = self.embedding.state()
        config |= {
            "numpy_summary": self.summarise.numpy,
            "decoder": names[type(self.decoder)],
            "error": self.wide.error,
            "least_mass": self.least_mass,
            "score_threshold": self.score_threshold,
            "continuous": self.continuous,
        }
        tensors |= {"probe.x": self.probe, "probe.s": self.summarise(self.probe)}
        if isinstance(self.embedding.representation, Encoded):
            tensors["probe.seen"] = self.embedding.represent(self.probe)
        parts = [
            ("decoder_config", "decoder", self.decoder),
            ("", "bank", self.bank),
            ("", "null", self.null),
            ("detector", "detector", self.detector),
            ("", "noise", self.noise),
        ]
        if self.local is not None:
            config["local_error"] = self.local.error
            parts.append(("local_decoder", "local", self.local.decoder))
            parts.append(("", "local_bank", self.local.bank))
        for name, prefix, part in parts:
            if part is not None:
                own, values = pack(part)
                config |= {name: own} if name else own
                tensors |= prefixed(prefix, values)
        return config, tensors

    @classmethod
    def read(
        cls, record: Record, summary: Summary, function: Callable[[Any], Any] | None = None
    ) -> Fitted:
        """Rebuild from a record of `state`.

        Arguments:
            record: Settings and tensors, which are checked.
            summary: The summary function, which is checked on a stored dataset.
            function: The function that was the representation, if any; checked likewise.
        """
        embedding = Embedding.read(record, function)
        kernels = [z.num_features for z in (embedding.features, embedding.local) if z is not None]
        record.axes |= dict(zip(("wide", "local"), kernels, strict=False))
        record.axes |= {"total": sum(kernels), "D": embedding.features.event_shape.numel()}
        probe_s = record.tensor("probe.s", "1 d")
        probe_x = record.tensor("probe.x", " ".join(["1", "N", *map(str, embedding.event_shape)]))
        # A file of 0.1.0 has one kernel, no weights and no detector but the distance.
        null, local, detector, noise = record.part("", "null").read(NullDistances), None, None, None
        wide = View(
            _read_decoder(record, embedding.features),
            record.part("", "bank", K=kernels[0]).read(Bank),
            record.number("error") if "error" in record else null.mean(null.num_obs),
        )
        if embedding.local is not None:
            local = View(
                record.part("local_decoder", "local", K=kernels[1]).read(RidgeDecoder),
                record.part("", "local_bank", K=kernels[1]).read(Bank),
                record.number("local_error"),
            )
        if record.under("noise."):
            noise = record.part("", "noise").read(SummaryNoise)
        if "detector" in record:
            detector = record.part("detector").read(Detector)
            if len(detector.kernels) != len(kernels):
                raise record.refuse("detector", f"statistics of {len(kernels)} kernels")
        if "probe.seen" in record.tensors:
            seen = record.tensor("probe.seen", "1 N D")
            checks.same_function("representation", embedding.represent(probe_x), seen)
        summarise = Summariser(summary, record.flag("numpy_summary"), probe_s.shape[1])
        checks.same_function("summary", summarise(probe_x), probe_s)
        return cls(
            embedding,
            wide,
            local,
            null,
            detector,
            summarise,
            null.num_obs,
            probe_x,
            record.number("least_mass") if "least_mass" in record else 1.0,
            record.number("score_threshold") if "score_threshold" in record else 0.0,
            noise,
            record.flag("continuous") if "continuous" in record else False,
        )


def _read_decoder(record: Record, features: FourierFeatures) -> Decoder:
    kind = DECODERS[record.word("decoder", tuple(DECODERS))]
    own = record.part("decoder_config", "decoder", K=features.num_features)
    if issubclass(kind, FlowDecoder):
        return kind.restore(own, features)
    return own.read(kind)


__all__ = ["Fitted"]
