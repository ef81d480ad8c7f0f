r"""The map of each observation that the kernel sees.

A kernel :math:`k(r(x), r(y))` compares observations through a representation
:math:`r : \mathbb{R}^{event} \to \mathbb{R}^D`, fitted on simulations:

.. math::
    r(x) = x, \quad \frac{x - m}{\sigma}, \quad \operatorname{asinh} \frac{x}{c}, \quad
    \log \overline{|\hat x(f)|^2}_{|f| = 0, 1, \ldots}, \quad
    \left[y,\ \log \|y\|^2,\ \log \|x - m - V y\|^2\right] \text{ with } y = V^\top (x - m) ,

or any function; each coordinate of it clamped to a `Range` about its simulated values.

May import: torch, `mindist.checks`, `mindist.protocols`.
"""

from mindist.features.representation.base import Representation, StoredRepresentation
from mindist.features.representation.choice import (
    REPRESENTATIONS,
    candidates,
    make_representation,
    restore_representation,
)
from mindist.features.representation.components import PrincipalComponents
from mindist.features.representation.encoded import Encoded
from mindist.features.representation.pointwise import Identity, SignedLog, Standardised
from mindist.features.representation.scale import FLOOR, Range
from mindist.features.representation.spectrum import PowerSpectrum

__all__ = [
    "FLOOR",
    "REPRESENTATIONS",
    "Encoded",
    "Identity",
    "PowerSpectrum",
    "PrincipalComponents",
    "Range",
    "Representation",
    "SignedLog",
    "Standardised",
    "StoredRepresentation",
    "candidates",
    "make_representation",
    "restore_representation",
]
