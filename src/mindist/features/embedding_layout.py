"""What the settings and tensors of a stored embedding must look like: see `mindist.layout`.

Axes: D numbers of a represented observation, F and L frequencies of the wide and the local kernel,
K features of the wide one; r, k, E are sizes that one representation has for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mindist import storage
from mindist.features.representation import REPRESENTATIONS, Encoded
from mindist.layout import Settings, Sizes

REPRESENTED = {
    "identity": {},
    "standardised": {"centre": "D", "scale": "D"},
    "signed-log": {"unit": ""},
    "power-spectrum": {"floor": "", "ring": "int r", "share": "r"},
    "principal-components": {
        "mean": "E",
        "components": "E k",
        "floor": "",
        "centre": "D",
        "scale": "D",
    },
    Encoded.name: {},
}


def check_embedding(
    file: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[int, ...]:
    """Raise a ValueError unless an `Embedding` can be made of this state.

    Arguments:
        file: Where it is from, for messages.
        config: Plain values.
        tensors: Tensors by name.

    Returns:
        The shape of one observation.
    """
    settings, sizes = Settings(file, config), Sizes(file, tensors)
    return check_representation(settings, sizes, check_kernels(settings, sizes))


def check_kernels(settings: Settings, sizes: Sizes) -> tuple[int, ...]:
    """Check the features of one or two kernels; the shape of a represented observation."""
    event = settings.shape("event_shape")
    sizes.known["D"] = math.prod(event)
    settings.number("fitted_bandwidth", positive=True)
    sizes.check("features.", {"weight": "D F"})
    sizes.known["K"] = 2 * sizes["F"]
    if "local_bandwidth" in settings:
        settings.number("local_bandwidth", positive=True)
        sizes.check("local_features.", {"weight": "D L"})
    return event


def check_representation(
    settings: Settings, sizes: Sizes, event: tuple[int, ...]
) -> tuple[int, ...]:
    """Check the representation; the shape of an observation before it."""
    if "representation" not in settings:
        return event
    own = settings.part("representation")
    name = own.word("name", (*REPRESENTATIONS, Encoded.name))
    raw, D = own.shape("event_shape"), sizes["D"]
    table = {"lo": "D", "hi": "D", **REPRESENTED[name]}
    sizes.check("representation.", table, r=None, k=None, E=math.prod(raw))
    if name == Encoded.name:
        own.flag("numpy")
    elif name == "power-spectrum":
        _rings(sizes, raw)
    elif name == "principal-components":
        components = sizes.tensors["representation.components"].shape[1]
        sizes.equal("the size of a represented observation", D, components + 2)
    else:
        sizes.equal("the size of a represented observation", D, math.prod(raw))
    return raw


def _rings(sizes: Sizes, raw: tuple[int, ...]) -> None:
    count = min(raw, default=0) // 2 + 1
    sizes.equal("the number of rings", sizes["D"], count)
    sizes.equal("the number of axes of an image or a series", min(len(raw), 3), len(raw[:2]) or 1)
    ring = sizes.tensors["representation.ring"]
    sizes.equal("the number of frequencies", len(ring), math.prod(raw[:-1]) * (raw[-1] // 2 + 1))
    if int(ring.min()) < 0 or int(ring.max()) > count:
        raise storage.damaged(sizes.file, "'representation.ring' names rings that do not exist")


__all__ = ["check_embedding", "check_kernels", "check_representation"]
