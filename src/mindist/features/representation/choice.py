"""Representations by name, and those among which to choose for a shape of observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from mindist import checks
from mindist.features.representation.base import Representation, StoredRepresentation
from mindist.features.representation.components import PrincipalComponents
from mindist.features.representation.encoded import Encoded
from mindist.features.representation.pointwise import Identity, SignedLog, Standardised
from mindist.features.representation.spectrum import PowerSpectrum

SMALLEST_IMAGE = 8  # pixels, on the shorter side


REPRESENTATIONS: dict[str, type[StoredRepresentation]] = {
    kind.name: kind
    for kind in (Identity, Standardised, SignedLog, PowerSpectrum, PrincipalComponents)
}
"""Representations by name."""


def make_representation(rule: str | Callable[[Any], Any], x: Tensor) -> Representation:
    """The representation that a rule gives on simulated datasets.

    Arguments:
        rule: A name of `REPRESENTATIONS`, a function for `Encoded`, or a fitted representation.
        x: Simulated datasets `(M, N, *event)`.

    Example:
        >>> import torch
        >>> x = torch.tensor([[0.0, 2.0]])
        >>> make_representation("standardised", x)(x)
        tensor([[[-1.],
                 [ 1.]]])
    """
    if isinstance(rule, Representation):
        return rule
    if callable(rule):
        return Encoded.of(rule, x)
    return REPRESENTATIONS[checks.choice(rule, tuple(REPRESENTATIONS), "representation")].of(x)


def restore_representation(
    config: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    function: Callable[[Any], Any] | None = None,
) -> Representation | None:
    """Rebuild a representation from its `state`.

    Arguments:
        config: The plain part of the state; None where the kernel sees the observation itself.
        tensors: The other part.
        function: Of an `Encoded`, because functions are not stored; None for any other.

    Example:
        >>> import torch
        >>> state = make_representation(torch.sin, torch.zeros(2, 3)).state()
        >>> restore_representation(*state, torch.sin).size
        1
    """
    name = "raw" if config is None else config["name"]
    if name != Encoded.name and function is not None:
        raise ValueError(
            f"representation: expected None, because {name!r} is stored with the estimator, got "
            f"{function!r}. Leave it out."
        )
    if config is None:
        return None
    if name != Encoded.name:
        return REPRESENTATIONS[name].from_state(config, tensors)
    if not callable(function):
        raise ValueError(
            "representation: expected the function that this estimator was fitted with, got "
            f"{function!r}. Functions are not stored: pass it to load as representation=."
        )
    return Encoded.from_state(config, tensors, function)


def candidates(event_shape: Sequence[int]) -> tuple[str, ...]:
    """Names to choose from automatically, the one that suits the shape first.

    Numbers, vectors and series are taken as they are, unless their logarithm is better, or their
    coordinates in units of their own, without which a kernel sees only the largest ones. Of images
    a kernel on pixels sees mostly noise, which is as far from a particle as particles from each
    other, so that their spectrum comes first.

    Example:
        >>> candidates((32, 32)), candidates((5,))
        (('power-spectrum', 'identity'), ('identity', 'signed-log', 'standardised'))
    """
    if len(event_shape) == 2 and min(event_shape) >= SMALLEST_IMAGE:
        return ("power-spectrum", "identity")
    names = ("identity", "signed-log") if len(event_shape) <= 1 else ("identity",)
    return (*names, "standardised") if math.prod(event_shape) > 1 else names
