"""In which setting two embeddings differ, from their `state()`.

Embeddings on disk can only be learned from if they were made with what will embed the observed
data; where they were not, a user wants to know which setting to change.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mindist.protocols import State

# Of bandwidths and frequencies: what another machine's rounding of a median may change.
TOLERANCE = 1e-6


def first_difference(stored: State, wanted: State) -> str | None:
    """The first setting of `MinimumDistance` in which an embedding is not as wanted.

    Arguments:
        stored: What embedded a bank.
        wanted: What the estimator would embed with.

    Returns:
        A few words such as "num_features (64 in the bank, 512 here)"; None where they agree.

    Example:
        >>> few, many = ({"features.weight": torch.ones(2, half)} for half in (2, 4))
        >>> first_difference(({"fitted_bandwidth": 1.0}, few), ({"fitted_bandwidth": 1.0}, many))
        'num_features (4 in the bank, 8 here)'
    """
    return next(_differences(stored, wanted), None)


def _differences(stored: State, wanted: State) -> Iterator[str]:
    (config, tensors), (other, others) = stored, wanted

    def say(setting: str, was: object, now: object) -> str:
        return f"{setting} ({was} in the bank, {now} here)"

    names = [c.get("representation", {}).get("name", "raw") for c in (config, other)]
    if names[0] != names[1]:
        yield say("representation", *map(repr, names))
    shapes = [t["features.weight"].shape for t in (tensors, others)]
    if shapes[0][1] != shapes[1][1]:
        yield say("num_features", 2 * shapes[0][1], 2 * shapes[1][1])
    for key, setting in (("fitted_bandwidth", "bandwidth"), ("local_bandwidth", "local")):
        widths = config.get(key), other.get(key)
        if not _same_width(*widths):
            yield say(setting, *(_width(width) for width in widths))
    for name in sorted(tensors.keys() | others.keys()):
        if name not in tensors or name not in others or not _same(tensors[name], others[name]):
            weight = name.endswith("features.weight")
            yield (
                "frequencies or seed (other random features in the bank than here)"
                if weight
                else f"representation (fitted to other simulations: {name})"
            )


def _width(value: float | None) -> str:
    return "none" if value is None else f"a kernel of width {value:.6g}"


def _same_width(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * abs(other)


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    finite = torch.isfinite(other)
    largest = other[finite].abs().max() if finite.any() else 0.0
    return bool(((one == other) | ((one - other).abs() <= TOLERANCE * largest)).all())


__all__ = ["first_difference"]
