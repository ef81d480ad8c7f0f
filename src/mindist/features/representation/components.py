r"""Principal components, with the energies inside and outside of them.

.. math:: r(x) = \left[y,\ \log \|y\|^2,\ \log \|x - m - V y\|^2\right], \qquad y = V^\top (x - m)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist.features.representation.base import StoredRepresentation
from mindist.features.representation.scale import (
    FLOOR,
    MAX_OBSERVATIONS,
    ROUNDING,
    moments,
    some,
    typical,
    unit_of,
)

MAX_VALUES = 2**22  # 32 MB in float64: an SVD of 5 s at worst, 2,048 squared values on one core
EXPLAINED, MAX_COMPONENTS = 0.9, 32  # of the variance, and at most: a choice, not measured


@dataclass(frozen=True)
class PrincipalComponents(StoredRepresentation):
    r"""The leading principal components and the energies inside and outside of them.

    Components :math:`y = V^\top (x - m)`, as many as explain 90% of the simulated variance and at
    most 32, then :math:`\log \|y\|^2` and :math:`\log \|x - m - V y\|^2`; all standardised. The
    last one sees what the components cannot: structure that was never simulated.

    Arguments:
        mean: m, `(D,)`.
        components: V, `(D, k)`.
        floor: The least energy, `FLOOR` of the median over simulations of :math:`\|x - m\|^2`.
        centre: Means `(k + 2,)` of components and log energies.
        scale: Their standard deviations `(k + 2,)`.

    Example:
        >>> x = torch.tensor([[[3.0, 4.0], [-3.0, -4.0], [6.0, 8.0], [-6.0, -8.0]]])
        >>> PrincipalComponents.of(x)(x).abs().round(decimals=2)  # one component, nothing outside
        tensor([[[0.6300, 1.0000, 0.0000],
                 [0.6300, 1.0000, 0.0000],
                 [1.2600, 1.0000, 0.0000],
                 [1.2600, 1.0000, 0.0000]]])
    """

    mean: Tensor
    components: Tensor
    floor: Tensor
    centre: Tensor
    scale: Tensor
    name = "principal-components"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        limit = min(MAX_OBSERVATIONS, max(2, MAX_VALUES // rows.shape[1]))
        rows = some(rows, limit).double()
        mean = rows.mean(0)
        _, deviations, directions = torch.linalg.svd(rows - mean, full_matrices=False)
        explained = deviations.square().cumsum(0)
        k = min(MAX_COMPONENTS, 1 + int((explained < EXPLAINED * explained[-1]).sum()))
        floor = FLOOR * typical((rows - mean).square().sum(1))
        floor = torch.maximum(floor, (ROUNDING * mean).square().sum())  # large mean, small spread
        own = {"mean": mean, "components": directions[:k].T.contiguous(), "floor": floor}
        return {**own, **moments(_energies(rows, **own))}

    def _map(self, rows: Tensor) -> Tensor:
        unit = unit_of((self.floor / FLOOR).sqrt())
        own = (self.mean / unit, self.components, self.floor / unit**2)
        scaled = rows if unit == 1 else rows / unit
        values = _energies(scaled, *(tensor.to(rows.dtype) for tensor in own))
        if unit != 1:
            values[:, :-2] *= unit
            values[:, -2:] += 2 * math.log(unit)
        values = (values - self.centre.to(rows.dtype)) / self.scale.to(rows.dtype)
        return values.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _energies(rows: Tensor, mean: Tensor, components: Tensor, floor: Tensor) -> Tensor:
    """Components `(n, k)`, and the log squared norms inside and outside of them."""
    x = rows - mean
    y = x @ components
    rest = x - y @ components.T  # not a difference of norms, which would cancel
    energy = torch.stack([y.square().sum(1), rest.square().sum(1)], dim=1)
    return torch.cat([y, energy.clamp(min=floor).log()], dim=1)
