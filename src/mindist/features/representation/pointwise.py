r"""Each value by itself: as it is, standardised, or through a signed logarithm.

.. math:: r(x) = x, \qquad \frac{x - m}{\sigma}, \qquad \operatorname{asinh} \frac{x}{c} .
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mindist.features.fast import serves
from mindist.features.representation.base import StoredRepresentation
from mindist.features.representation.scale import MAX_OBSERVATIONS, moments, some, typical
from mindist.threads import ranges, team

WORTH_SHARING = 2**20  # numbers: 1 ms of one core


@dataclass(frozen=True)
class Identity(StoredRepresentation):
    """The observation itself, flattened and clamped.

    Example:
        >>> Identity.of(torch.tensor([[0.0, 2.0]]))(torch.tensor([1.5, 1e6]))
        tensor([[1.5000],
                [3.0000]])
    """

    name = "identity"

    def _map(self, rows: Tensor) -> Tensor:
        return rows


@dataclass(frozen=True)
class Standardised(StoredRepresentation):
    """Each coordinate centred, and divided by its standard deviation over simulations.

    One that never varied is divided by the median deviation of the others, as for its `Range`.

    Arguments:
        centre: Means `(D,)`, float64.
        scale: Standard deviations `(D,)`, float64.

    Example:
        >>> Standardised.of(torch.tensor([[0.0, 2.0]]))(torch.tensor([2.5]))
        tensor([[1.5000]])
    """

    centre: Tensor
    scale: Tensor
    name = "standardised"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        return moments(rows)

    def _map(self, rows: Tensor) -> Tensor:
        return (rows - self.centre.to(rows.dtype)) / self.scale.to(rows.dtype)


@dataclass(frozen=True)
class SignedLog(StoredRepresentation):
    r""":math:`\operatorname{asinh}(x / c)`: linear near 0, a signed logarithm far from it.

    For heavy-tailed data such as counts, where a few large values would decide the distances.

    Arguments:
        unit: c, one number: the median of :math:`|x|` over simulations, their mean if that is 0,
            and 1 if that is 0 too.

    Example:
        >>> SignedLog.of(torch.tensor([[1.0, 2.0, 100.0]]))(torch.tensor([2.0, 100.0]))
        tensor([[0.8814],
                [4.6053]])
    """

    unit: Tensor
    name = "signed-log"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        return {"unit": typical(some(rows, MAX_OBSERVATIONS).abs())}

    def _map(self, rows: Tensor) -> Tensor:
        return asinh(rows, self.unit)


def asinh(x: Tensor, unit: Tensor) -> Tensor:
    r""":math:`\operatorname{asinh}(x / c)` to rounding, for float32 by a compiled loop.

    `torch.asinh` takes ten times as long; NumPy's, here for float64, six times less than that
    where the processor has long vector instructions, and as long where not.

    Arguments:
        x: Numbers, any shape.
        unit: c, one number.

    Example:
        >>> asinh(torch.tensor([0.0, -2.0, 2e-6, 2e30]), torch.tensor(2.0))
        tensor([ 0.0000e+00, -8.8137e-01,  1.0000e-06,  6.9771e+01])
    """
    unit = unit.to(x.dtype)
    if not serves(x):
        return torch.asinh(x / unit)
    if x.dtype != torch.float32:
        return torch.from_numpy(np.asarray(np.arcsinh((x / unit).numpy())))
    from mindist.features.representation.pointwise_loops import signed_log

    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    loop = partial(signed_log, x.reshape(-1).numpy(), unit.numpy()[()], out.view(-1).numpy())
    with team(worth=x.numel() >= WORTH_SHARING) as threads:
        threads.do(loop, ranges(x.numel(), threads.size))
    return out
