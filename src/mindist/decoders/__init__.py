r"""Decoders: the mean embedding of a dataset as a function of its summary, :math:`\mu(s)`.

May import: torch, `mindist.features`, `mindist.checks`, `mindist.protocols`; zuko in `flow` only.
"""

from mindist.decoders.flow import FlowDecoder
from mindist.decoders.mlp import MLPDecoder
from mindist.decoders.ridge import RidgeDecoder
from mindist.protocols import Decoder

DECODERS: dict[str, type[RidgeDecoder | MLPDecoder | FlowDecoder]] = {
    "ridge": RidgeDecoder,
    "mlp": MLPDecoder,
    "flow": FlowDecoder,
}
"""Decoders by name, as `MinimumDistance(decoder=...)` and saved files call them."""

__all__ = ["DECODERS", "Decoder", "FlowDecoder", "MLPDecoder", "RidgeDecoder"]
