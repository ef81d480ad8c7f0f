"""What a representation is: a map of observations to vectors, fitted on simulations, clamped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from mindist.features.representation.scale import UNLIMITED, Range
from mindist.protocols import State

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK_ROWS = 1_024  # observations mapped at once for their range: 64 MB of 128 x 128 images


@dataclass(frozen=True)
class Representation(ABC):
    """A map of finite observations `(..., *event)` to vectors `(..., D)`, in their precision.

    Arguments:
        event_shape: Shape of one observation.
        bounds: Of each coordinate of the result.

    Example:
        >>> from mindist.features import make_representation
        >>> r = make_representation("power-spectrum", torch.zeros(2, 5, 16, 12))
        >>> r.event_shape, r.size, r(torch.zeros(5, 16, 12)).shape
        (torch.Size([16, 12]), 7, torch.Size([5, 7]))
    """

    event_shape: torch.Size
    bounds: Range

    @property
    def size(self) -> int:
        """D, the length of a represented observation."""
        return len(self.bounds.lo)

    def __call__(self, x: Tensor) -> Tensor:
        """Vectors `(..., D)` of observations `(..., *event)`; an infinite one may give NaN."""
        batch = x.shape[: x.dim() - len(self.event_shape)]
        if not batch.numel():  # of which Fourier transforms, and many functions, make an error
            return x.new_empty(*batch, self.size)
        rows = x.reshape(-1, self.event_shape.numel())
        return self.bounds(self._map(rows)).reshape(*batch, self.size)

    def to(self, device: torch.device) -> Self:
        """The same map with its tensors on another device."""
        moved: dict[str, Any] = {name: value.to(device) for name, value in self._tensors().items()}
        bounds = Range(self.bounds.lo.to(device), self.bounds.hi.to(device))
        return replace(self, bounds=bounds, **moved)

    @abstractmethod
    def state(self) -> State:
        """Configuration and tensors from which the map can be rebuilt."""

    @abstractmethod
    def _map(self, rows: Tensor) -> Tensor:
        """Vectors `(n, D)` of flattened observations, not yet clamped."""

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _bounded(self, rows: Tensor) -> Self:
        """The same map with bounds from flattened simulated observations."""
        ends = [torch.stack(torch.aminmax(self._map(r), dim=0)) for r in rows.split(BLOCK_ROWS)]
        return replace(self, bounds=Range.of(torch.cat(ends)))


class StoredRepresentation(Representation):
    """A representation with a name, fitted to simulations and stored as tensors.

    Example:
        >>> from mindist.features.representation import SignedLog
        >>> config, tensors = SignedLog.of(torch.tensor([[0.0, 2.0]])).state()
        >>> config["name"], list(tensors)
        ('signed-log', ['lo', 'hi', 'unit'])
        >>> SignedLog.from_state(config, tensors)(torch.zeros(1))
        tensor([[0.]])
    """

    name: ClassVar[str]

    @classmethod
    @torch.no_grad()
    def of(cls, x: Tensor) -> Self:
        """Fit to simulated datasets `(M, N, *event)`."""
        event_shape = x.shape[2:]
        rows = x.reshape(-1, event_shape.numel())
        return cls(event_shape, UNLIMITED, **cls._fit(rows, event_shape))._bounded(rows)

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        """The tensors of the class from flattened simulated observations."""
        return {}

    def state(self) -> State:
        """Configuration and tensors from which `from_state` rebuilds the map."""
        config = {"name": self.name, "event_shape": list(self.event_shape)}
        return config, {"lo": self.bounds.lo, "hi": self.bounds.hi, **self._tensors()}

    @classmethod
    def from_state(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Rebuild from `state`."""
        own = {name: value for name, value in tensors.items() if name not in ("lo", "hi")}
        return cls(torch.Size(config["event_shape"]), Range(tensors["lo"], tensors["hi"]), **own)
