r"""From a dataset to its mean embedding: representation, then random Fourier features.

.. math:: \bar z = \tfrac1N \textstyle\sum_n z(\phi(x_n))

with a representation :math:`\phi` of each observation and features z of a Gaussian kernel.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.features.kernel import FourierFeatures
from mindist.features.representation import Representation, read_representation
from mindist.protocols import State
from mindist.schema import Record, prefixed

CHUNK_BYTES = 2**24  # of raw data represented at once
TOLERANCE = 1e-6  # what another machine's rounding of a median may change of two equal embeddings


@dataclass(frozen=True)
class Embedding:
    """Representation and kernel of a fitted estimator."""

    features: FourierFeatures
    representation: Representation | None  # None: the kernel sees the observation itself

    @property
    def event_shape(self) -> torch.Size:
        """The shape of one observation."""
        return (self.representation or self.features).event_shape

    @property
    def num_features(self) -> int:
        """K, the length of an embedding."""
        return self.features.num_features

    def represent(self, x: Tensor) -> Tensor:
        """Return what the kernel sees, `(..., D)`, of observations `(..., *event)`."""
        if self.representation is not None:
            return self.representation(x)
        return x.flatten(x.dim() - len(self.event_shape)) if self.event_shape else x[..., None]

    def __call__(self, x: Tensor) -> Tensor:
        """Return features `(..., K)` of observations `(..., *event)`."""
        return self.features(self._event(self.represent(x)))

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """Return mean embeddings `(B, K)` of datasets `(B, N, *event)`.

        Beyond input and output memory holds `CHUNK_BYTES` of data, represented, and a few MB.
        """
        blocks = x.split(max(1, CHUNK_BYTES // max(1, x[:1].nbytes)))
        return torch.cat([self.features.mean(self._event(self.represent(b))) for b in blocks])

    def _event(self, seen: Tensor) -> Tensor:
        return seen.reshape(*seen.shape[:-1], *self.features.event_shape)

    def state(self) -> State:
        """Return plain values and tensors that rebuild it, but no function as representation."""
        config: dict[str, Any] = {
            "event_shape": list(self.features.event_shape),
            "fitted_bandwidth": self.features.bandwidth,
        }
        tensors = {"features.weight": self.features.weight}
        if self.representation is not None:
            config["representation"], own = self.representation.state()
            tensors |= prefixed("representation", own)
        return config, tensors

    @classmethod
    def read(cls, record: Record, function: Callable[[Any], Any] | None = None) -> "Embedding":
        """Rebuild from a record of `state`, which is checked; further settings are ignored.

        `function` is the one that was the representation, if any.
        """
        event = record.shape("event_shape")
        width = record.number("fitted_bandwidth", positive=True)
        weight = record.tensor("features.weight", "D F", {"D": event.numel()})
        features = FourierFeatures(weight, event, width)
        return cls(features, read_representation(record, event.numel(), function))


def first_difference(stored: State, wanted: State) -> str | None:
    """Return the first setting of `MinimumDistance` in which two embeddings differ, or None.

    `stored` is the `state()` of what embedded a bank, `wanted` that of what embeds observed data.
    """
    (config, tensors), (other, others) = stored, wanted
    widths = [c["fitted_bandwidth"] for c in (config, other)]
    if math.isclose(*widths, rel_tol=TOLERANCE):
        widths[1] = widths[0]
    seen = [c.get("representation", {}).get("name", "raw") for c in (config, other)]
    compared: dict[str, list[Any]] = {
        "representation": list(map(repr, seen)),
        "num_features": [2 * t["features.weight"].shape[1] for t in (tensors, others)],
        "bandwidth": [f"a kernel of width {width:.6g}" for width in widths],
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
    finite = other[torch.isfinite(other)].abs()
    largest = float(finite.max()) if len(finite) else 0.0
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * largest)
