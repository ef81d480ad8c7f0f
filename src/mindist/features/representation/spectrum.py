r"""The power spectrum of a series or an image.

.. math:: r_j(x) = \log \operatorname{mean}\{|\hat x(f)|^2 : |f| \approx j\}
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
    some,
    typical,
    unit_of,
)


@dataclass(frozen=True)
class PowerSpectrum(StoredRepresentation):
    r"""Log power at each frequency of a series `(T,)`, or at each radius of an image `(H, W)`.

    .. math:: r_j(x) = \log \operatorname{mean}\{|\hat x(f)|^2 : |f| \approx j\},
        \qquad j = 0, \ldots, \lfloor \min(H, W)/2 \rfloor ,

    with the unitary discrete Fourier transform and :math:`|f|` in cycles per shorter side, rounded;
    the corners beyond are left out. It does not change when a series or an image is shifted
    cyclically, and hardly when an image is rotated: it tells texture, size and noise, not place.

    Arguments:
        floor: The least power, `FLOOR` of the median over simulations of the mean power.
        ring: The index j of each frequency of the real transform; one past the last for a corner.
        share: The weight of each frequency in the mean over its ring, which is one of the full
            plane: the real transform leaves out half of it.

    Example:
        >>> x = torch.tensor([[[0.0, 2.0, 0.0, -2.0], [4.0, 0.0, 0.0, 0.0]]])
        >>> PowerSpectrum.of(x)(x).exp().round(decimals=3)
        tensor([[[0., 4., 0.],
                 [4., 4., 4.]]])
    """

    floor: Tensor
    ring: Tensor
    share: Tensor
    name = "power-spectrum"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        if len(event_shape) not in (1, 2):
            raise ValueError(
                "representation: 'power-spectrum' expects series (T,) or images (H, W), got "
                f"observations of shape {tuple(event_shape)}. Choose 'identity' or "
                "'principal-components', or pass a function from observations to vectors."
            )
        # Parseval: the mean of the squares of the pixels is the mean power over all frequencies.
        few = some(rows, MAX_OBSERVATIONS)
        unit = unit_of(few.abs().amax(1).median())
        few = few if unit == 1 else few / unit
        floor = FLOOR * typical(few.square().mean(1)) * unit**2
        ring, share = _rings(event_shape)
        return {"floor": floor, "ring": ring.to(rows.device), "share": share.to(rows.device)}

    def _map(self, rows: Tensor) -> Tensor:
        n, axes = len(rows), tuple(range(1, 1 + len(self.event_shape)))
        unit = unit_of((self.floor / FLOOR).sqrt())
        rows = rows if unit == 1 else rows / unit
        x_hat = torch.fft.rfftn(rows.reshape(n, *self.event_shape), dim=axes, norm="ortho")
        power = torch.view_as_real(x_hat).square().sum(-1).reshape(n, len(self.ring))
        count = min(self.event_shape) // 2 + 1
        # Sums, not a matrix product, in which 0 times an overflown power would be NaN.
        weighted = power * self.share.to(power.dtype)
        rings = power.new_zeros(n, count + 1).index_add(1, self.ring, weighted)[:, :count]
        rings = rings.nan_to_num(nan=torch.inf, posinf=torch.inf)  # inf - inf, where it overflows
        floor = (self.floor / unit**2).to(power.dtype)
        return rings.clamp(min=floor).log() + 2 * math.log(unit)


def _rings(event_shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The ring of each frequency of `rfftn`, and its share of that ring in the full plane."""
    axes = [torch.fft.fftfreq(side, dtype=torch.float64) for side in event_shape[:-1]]
    axes.append(torch.fft.rfftfreq(event_shape[-1], dtype=torch.float64))
    radius = torch.stack(torch.meshgrid(*axes, indexing="ij")).norm(dim=0) * min(event_shape)
    ring = (radius + 0.5).floor().long().clamp(max=min(event_shape) // 2 + 1).flatten()
    copies = torch.full_like(radius, 2)  # f and -f, of which rfftn gives one, ...
    copies[..., 0] = 1  # ... but both where the last frequency is its own opposite
    if event_shape[-1] % 2 == 0:
        copies[..., -1] = 1
    return ring, copies.flatten() / ring.bincount(copies.flatten())[ring]
