r"""From a dataset to its mean embedding: representation, then one or two kernels.

.. math:: \bar z = \frac1N \sum_n [\, z_\sigma(\phi(x_n)), \; z_\tau(\phi(x_n)) \,]

with a representation :math:`\phi` of each observation and random Fourier features of two Gaussian
kernels: a wide one (:math:`\sigma`), in which the summary is sought, and a local one
(:math:`\tau \le \sigma`), whose mean embedding is a density estimate sharp enough to tell
contaminated observations from clean ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.features.fourier import FourierFeatures
from mindist.features.kernel import gaussian_kernel
from mindist.features.representation import Representation, read_representation
from mindist.protocols import State
from mindist.schema import Record, prefixed

CHUNK_BYTES = 2**24  # of raw data represented at once

# The local kernel: the narrowest of these multiples of the wide one with which two observations of
# one dataset still see each other, E k(x, x') >= DENSITY within datasets. On the Gaussian task .35
# gave the least error under contamination (docs/robustness.md); where the typical density is lower
# the ratio of two densities is one of two noises.
LOCAL_MULTIPLES = (0.35, 0.5, 0.7)
DENSITY = 0.2

TOLERANCE = 1e-6  # what another machine's rounding of a median may change of two equal embeddings


@dataclass(frozen=True)
class Embedding:
    """Representation and kernels of a fitted estimator.

    Arguments:
        features: Random Fourier features of the wide kernel.
        local: Those of the local kernel, or None where the wide one serves.
        representation: What the kernels see of an observation; None for the observation itself.
    """

    features: FourierFeatures
    local: FourierFeatures | None
    representation: Representation | None

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one observation."""
        return (self.representation or self.features).event_shape

    @property
    def num_features(self) -> int:
        """K, of the wide kernel."""
        return self.features.num_features

    @property
    def total(self) -> int:
        """The length of a mean embedding, both kernels together."""
        return sum(z.num_features for z in self._kernels)

    @property
    def density(self) -> FourierFeatures:
        """The features that estimate densities: the local kernel's, where there is one."""
        return self.local or self.features

    @property
    def _kernels(self) -> tuple[FourierFeatures, ...]:
        return (self.features,) if self.local is None else (self.features, self.local)

    def represent(self, x: Tensor) -> Tensor:
        """Return what the kernels see, `(..., D)`, of observations `(..., *event)`."""
        if self.representation is not None:
            return self.representation(x)
        return x.flatten(x.dim() - len(self.event_shape)) if self.event_shape else x[..., None]

    def __call__(self, x: Tensor) -> Tensor:
        """Return wide features `(..., K)` of observations `(..., *event)`."""
        return self.features(self._event(self.represent(x)))

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """Return mean embeddings `(B, total)` of datasets `(B, N, *event)`, wide, then local.

        Beyond input and output memory holds `CHUNK_BYTES` of data, represented, and a few MB.
        """
        z_bar = x.new_empty(len(x), self.total)
        size = max(1, CHUNK_BYTES // max(1, x[:1].nbytes))
        for block, result in zip(x.split(size), z_bar.split(size), strict=True):
            seen = self._event(self.represent(block))
            torch.cat([z.mean(seen) for z in self._kernels], dim=1, out=result)
        return z_bar

    def split(self, z_bar: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the wide and the local part of mean embeddings `(B, total)`."""
        if self.local is None:
            return z_bar, None
        return z_bar[:, : self.num_features], z_bar[:, self.num_features :]

    def _event(self, seen: Tensor) -> Tensor:
        return seen.reshape(*seen.shape[:-1], *self.features.event_shape)

    def state(self) -> State:
        """Return plain values and tensors that rebuild it, but no function as representation."""
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
            tensors |= prefixed("representation", own)
        return config, tensors

    @classmethod
    def read(cls, record: Record, function: Callable[[Any], Any] | None = None) -> Embedding:
        """Rebuild from a record of `state`, which is checked.

        Arguments:
            record: Settings and tensors; further ones, of a fitted estimator, are ignored.
            function: The function that was the representation, if any.
        """
        event = record.shape("event_shape")

        def kernel(name: str, bandwidth: str) -> FourierFeatures:
            width = record.number(bandwidth, positive=True)
            weight = record.tensor(f"{name}.weight", "D F", {"D": event.numel()})
            return FourierFeatures(weight, event, width)

        wide, local = kernel("features", "fitted_bandwidth"), None
        if "local_bandwidth" in record:
            local = kernel("local_features", "local_bandwidth")
        return cls(wide, local, read_representation(record, event.numel(), function))


def local_multiple(seen: Tensor, bandwidth: float) -> float | None:
    """Return the multiple of the wide bandwidth for the local kernel; None if none serves.

    Arguments:
        seen: Represented datasets `(M, N, D)`.
        bandwidth: That of the wide kernel.
    """
    first = seen[:200, :50].double()
    num = first.shape[1]
    if num < 2:
        return None
    for multiple in LOCAL_MULTIPLES:
        kernel = gaussian_kernel(first, first, multiple * bandwidth)
        # Without the diagonal: an observation is not its own neighbour.
        if (kernel.sum((1, 2)).mean() - num) / (num * (num - 1)) >= DENSITY:
            return multiple
    return None


def first_difference(stored: State, wanted: State) -> str | None:
    """Return the first setting of `MinimumDistance` in which two embeddings differ, or None.

    Embeddings on disk serve only if they were made with what will embed the observed data; where
    they were not, a user wants to know which setting to change.

    Arguments:
        stored: The `state()` of what embedded a simulation bank.
        wanted: That of what the estimator would embed with.
    """
    (config, tensors), (other, others) = stored, wanted

    def widths(key: str) -> list[str]:
        was, now = config.get(key), other.get(key)
        if was is not None and now is not None and math.isclose(was, now, rel_tol=TOLERANCE):
            return ["", ""]
        return ["none" if w is None else f"a kernel of width {w:.6g}" for w in (was, now)]

    seen = [c.get("representation", {}).get("name", "raw") for c in (config, other)]
    compared: dict[str, list[Any]] = {
        "representation": list(map(repr, seen)),
        "num_features": [2 * t["features.weight"].shape[1] for t in (tensors, others)],
        "bandwidth": widths("fitted_bandwidth"),
        "local": widths("local_bandwidth"),
    }
    for setting, (was, now) in compared.items():
        if was != now:
            return f"{setting} ({was} in the bank, {now} here)"
    for name in sorted(tensors.keys() | others.keys()):
        if name not in tensors or name not in others or not _same(tensors[name], others[name]):
            if name.endswith("features.weight"):
                return "frequencies or seed (other random features in the bank than here)"
            return f"representation (fitted to other simulations: {name})"
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors agree up to the rounding of another machine."""
    if one.shape != other.shape:
        return False
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    finite = torch.isfinite(other)
    largest = other[finite].abs().max() if finite.any() else 0.0
    return bool(((one == other) | ((one - other).abs() <= TOLERANCE * largest)).all())
