"""Any function of observations as a representation, such as a frozen network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.features.representation.base import Representation
from mindist.features.representation.scale import UNLIMITED, Range
from mindist.protocols import State


@dataclass(frozen=True)
class Encoded(Representation):
    """Any function of observations, such as a frozen network.

    The function is not stored with a model, only its range: it is given again at load. It is
    called on the device of the data: move a network there yourself.

    Arguments:
        function: From `(n, *event)` to `(n, D)`, or to `(n, *shape)`, which is flattened.
        numpy: Whether it wants NumPy arrays; `of` finds out.

    Example:
        >>> x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> Encoded.of(lambda x: x.sum(-1), x)(x)
        tensor([[[3.],
                 [7.]]])
    """

    function: Callable[[Any], Any]
    numpy: bool = False
    name = "function"

    @classmethod
    @torch.no_grad()
    def of(cls, function: Callable[[Any], Any], x: Tensor) -> Encoded:
        """Check the function on simulated datasets `(M, N, *event)` and take its range there."""
        rows = x.reshape(-1, x.shape[2:].numel())
        few, numpy = rows[:3], _wants_numpy(function, x.flatten(0, 1)[:3])
        encoded = cls(x.shape[2:], UNLIMITED, function, numpy)
        first = encoded._map(few)
        for again in (encoded._map(few), encoded._map(few[:1])):
            if not checks.agree(again, first[: len(again)]):
                raise ValueError(
                    "representation: expected a function that maps an observation to the same "
                    "vector at every call and in every batch, got different vectors for the first "
                    "simulated observations. Put a network with batch normalisation or dropout "
                    "into eval mode; make a random function deterministic."
                )
        encoded = encoded._bounded(rows)
        if not torch.isfinite(encoded.bounds.lo).all():
            raise ValueError(
                "representation: expected a function that is finite on simulated observations, got "
                "NaN or infinite values. Look for a logarithm of 0 or a ratio to 0 in it."
            )
        return encoded

    def state(self) -> State:
        """All but the function, which `from_state` wants again."""
        config = {"name": self.name, "event_shape": list(self.event_shape), "numpy": self.numpy}
        return config, {"lo": self.bounds.lo, "hi": self.bounds.hi}

    @classmethod
    def from_state(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        function: Callable[[Any], Any],
    ) -> Encoded:
        """Rebuild from `state` and the function."""
        bounds = Range(tensors["lo"], tensors["hi"])
        return cls(torch.Size(config["event_shape"]), bounds, function, config["numpy"])

    def _map(self, rows: Tensor) -> Tensor:
        x = rows.reshape(len(rows), *self.event_shape)
        with torch.set_grad_enabled(torch.is_grad_enabled() and rows.requires_grad):
            value = self.function(x.detach().cpu().numpy() if self.numpy else x)
        vectors = checks.as_tensor(value, "representation (its result)").to(rows)
        if vectors.shape[:1] != rows.shape[:1] or not vectors.shape[1:].numel():
            raise ValueError(
                f"representation: expected vectors of shape ({len(rows)}, D) for {len(rows)} "
                f"observations, got shape {tuple(vectors.shape)}. The function maps observations "
                "(n, *event) to vectors (n, D): the mean of a series is lambda x: x.mean(1), not "
                "x.mean(0)."
            )
        vectors = vectors.reshape(len(rows), vectors.shape[1:].numel())
        if self.bounds is not UNLIMITED and vectors.shape[1] != self.size:
            raise ValueError(
                f"representation: expected vectors of length {self.size}, as for the simulations, "
                f"got length {vectors.shape[1]}. Pass the function of the fit."
            )
        return vectors


def _wants_numpy(function: Callable[[Any], Any], x: Tensor) -> bool:
    try:
        return isinstance(function(x), np.ndarray)
    except Exception as error:
        try:
            function(x.cpu().numpy())
        except Exception:
            raise error from None
        return True
