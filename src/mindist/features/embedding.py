r"""From a dataset to its mean embedding: representation, then one or two kernels.

.. math:: \bar z = \frac1N \sum_n [\, z_\sigma(\phi(x_n)), \; z_\tau(\phi(x_n)) \,]

with a representation :math:`\phi` of each observation and random Fourier features of two Gaussian
kernels: a wide one (:math:`\sigma`), in which the summary is sought, and a local one
(:math:`\tau \le \sigma`), whose mean embedding is a density estimate sharp enough to tell
contaminated observations from clean ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mindist.features.fourier import FourierFeatures
from mindist.features.representation import Representation, restore_representation
from mindist.protocols import State

CHUNK_BYTES = 2**24  # of raw data represented at once

# The local kernel: the narrowest of these multiples of the wide one with which two observations of
# one dataset still see each other, E k(x, x') >= DENSITY within datasets. On the Gaussian task .35
# gave the least error under contamination (docs/robustness.md); where the typical density is lower
# the ratio of two densities is one of two noises.
LOCAL_MULTIPLES = (0.35, 0.5, 0.7)
DENSITY = 0.2


@dataclass(frozen=True)
class Embedding:
    """Representation and kernels of a fitted estimator.

    Arguments:
        features: Random Fourier features of the wide kernel.
        local: Of the local kernel, or None where the wide one serves.
        representation: What the kernels see of an observation; None for the observation itself.

    Example:
        >>> wide = FourierFeatures.draw((2,), 4, bandwidth=1.0, generator=torch.Generator())
        >>> Embedding(wide, None, None).mean(torch.zeros(3, 7, 2)).shape
        torch.Size([3, 4])
    """

    features: FourierFeatures
    local: FourierFeatures | None
    representation: Representation | None

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one observation."""
        if self.representation is None:
            return self.features.event_shape
        return self.representation.event_shape

    @property
    def num_features(self) -> int:
        """K, of the wide kernel."""
        return self.features.num_features

    @property
    def density(self) -> FourierFeatures:
        """The features that estimate densities: the local kernel's, where there is one."""
        return self.features if self.local is None else self.local

    def represent(self, x: Tensor) -> Tensor:
        """What the kernels see, `(..., D)`, of observations `(..., *event)`."""
        if self.representation is not None:
            return self.representation(x)
        return x.flatten(x.dim() - len(self.event_shape)) if self.event_shape else x[..., None]

    def __call__(self, x: Tensor) -> Tensor:
        """Wide features `(..., K)` of observations `(..., *event)`."""
        return self.features(self._event(self.represent(x)))

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """Mean embeddings `(B, total)` of datasets `(B, N, *event)`, wide, then local.

        Beyond input and output memory holds `CHUNK_BYTES` of data, represented, and a few MB.
        """
        size = max(1, CHUNK_BYTES // max(1, x[:1].nbytes))
        if x.shape[0] <= size:
            return self._mean(self.represent(x))
        z_bar = x.new_empty(len(x), self.total)
        for block, result in zip(x.split(size), z_bar.split(size), strict=True):
            result.copy_(self._mean(self.represent(block)))
        return z_bar

    def _mean(self, seen: Tensor) -> Tensor:
        """The same of represented observations `(B, N, D)`."""
        return torch.cat([z.mean(self._event(seen)) for z in self._kernels], dim=1)

    @property
    def total(self) -> int:
        """The length of a mean embedding, both kernels together."""
        return sum(self._sizes)

    def split(self, z_bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """The wide and the local part of mean embeddings `(B, total)`."""
        if self.local is None:
            return z_bar, None
        wide, local = z_bar.split(self._sizes, dim=1)
        return wide, local

    @property
    def _kernels(self) -> tuple[FourierFeatures, ...]:
        return (self.features,) if self.local is None else (self.features, self.local)

    @property
    def _sizes(self) -> list[int]:
        return [z.num_features for z in self._kernels]

    def _event(self, seen: Tensor) -> Tensor:
        return seen.reshape(*seen.shape[:-1], *self.features.event_shape)

    def to(self, device: torch.device) -> Embedding:
        """The same on another device."""
        return replace(
            self,
            features=self.features.to(device),
            local=None if self.local is None else self.local.to(device),
            representation=None if self.representation is None else self.representation.to(device),
        )

    def state(self) -> State:
        """Plain values and tensors that rebuild it, all but a function as representation.

        Example:
            >>> wide = FourierFeatures.draw((2,), 4, bandwidth=1.0, generator=torch.Generator())
            >>> Embedding.from_state(*Embedding(wide, None, None).state()).features.bandwidth
            1.0
        """
        config: dict[str, Any] = {
            "event_shape": list(self.features.event_shape),
            "fitted_bandwidth": self.features.bandwidth,
        }
        tensors = {"features.weight": self.features.weight}
        if self.local is not None:
            config["local_bandwidth"] = self.local.bandwidth
            tensors["local_features.weight"] = self.local.weight
        if self.representation is not None:
            config["representation"], own = self.representation.state()
            tensors |= {f"representation.{name}": value for name, value in own.items()}
        return config, tensors

    @classmethod
    def from_state(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        representation: Callable[[Any], Any] | None = None,
    ) -> Embedding:
        """Rebuild from `state`, and the function that was the representation, if any.

        Further values and tensors are ignored: a fitted estimator keeps its own beside these.
        """

        def kernel(name: str, bandwidth: float) -> FourierFeatures:
            shape = torch.Size(config["event_shape"])
            return FourierFeatures(tensors[f"{name}.weight"], shape, bandwidth)

        narrow, prefix = "local_bandwidth" in config, "representation."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        return cls(
            kernel("features", config["fitted_bandwidth"]),
            kernel("local_features", config["local_bandwidth"]) if narrow else None,
            restore_representation(config.get("representation"), own, representation),
        )


def local_multiple(seen: Tensor, bandwidth: float) -> float | None:
    """The multiple of the wide bandwidth for the local kernel; None where none is narrow enough.

    Arguments:
        seen: Represented datasets `(M, N, D)`.
        bandwidth: Of the wide kernel.

    Example:
        >>> x = torch.tensor([[[0.0], [1.0]]])
        >>> local_multiple(x, 1.0), local_multiple(x, 2.0), local_multiple(x, 0.5)
        (0.7, 0.35, None)
    """
    first = seen[:200, :50].double()
    squared = torch.cdist(first, first).square()
    off = ~torch.eye(first.shape[1], dtype=torch.bool, device=seen.device)
    if not off.any():
        return None
    for multiple in LOCAL_MULTIPLES:
        density = torch.exp(-squared[:, off] / (2 * (multiple * bandwidth) ** 2)).mean()
        if density >= DENSITY:
            return multiple
    return None


__all__ = ["Embedding", "local_multiple"]
