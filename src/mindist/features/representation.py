r"""The map of each observation that the kernel sees.

A kernel :math:`k(r(x), r(y))` compares observations through a representation
:math:`r : \mathbb{R}^{event} \to \mathbb{R}^D`, fitted on simulations:

.. math::
    r(x) = x, \quad \frac{x - m}{\sigma}, \quad \operatorname{asinh} \frac{x}{c}, \quad
    \log \overline{|\hat x(f)|^2}_{|f| = 0, 1, \ldots} ,

or any function; each coordinate of it clamped to a `Range` about its simulated values.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mindist import checks
from mindist.features.kernel import power_of_two
from mindist.protocols import State
from mindist.schema import INLINE, UNSTORED, Record, pack
from mindist.storage import damaged
from mindist.summarise import first_call

BLOCK_ROWS = 1_024  # observations mapped at once for their range: 64 MB of 128 x 128 images
MAX_OBSERVATIONS = 5_000  # for medians
ROUNDING = 1e-7  # of float32: a smaller relative spread is that of a constant
# Share of the typical square below which a logarithm would be of rounding errors: float32 has them
# at 1e-14, for instance at the frequencies that a smooth image lacks.
FLOOR = 1e-8
SQUARABLE = 1e-12  # the square, times a floor of 1e-8, is still far from the least float32
SMALLEST_IMAGE = 8  # pixels, on the shorter side


@dataclass(frozen=True)
class Range:
    r"""Clamp each coordinate to its simulated range, widened by half of its width on both sides.

    Far from everything simulated a kernel is 0, but its estimate by random features is noise of
    size :math:`1/\sqrt{K}`: gross outliers would look close to some simulations by luck. What never
    varied gets the median width of what varies (or 1), so that a departure is as visible there.
    """

    lo: Annotated[Tensor, "D"]
    hi: Annotated[Tensor, "D"]

    @classmethod
    def of(cls, values: Tensor) -> "Range":
        """Return the widened range of simulated values `(n, D)`."""
        lo, hi = torch.aminmax(values.double(), dim=0)
        middle, width = (lo + hi) / 2, _filled(hi - lo, torch.maximum(lo.abs(), hi.abs()))
        return cls(middle - width, middle + width)

    def __call__(self, values: Tensor) -> Tensor:
        """Clamp values `(..., D)`, in their precision."""
        return values.clamp(self.lo.to(values.dtype), self.hi.to(values.dtype))


UNLIMITED = Range(torch.tensor([-torch.inf]), torch.tensor([torch.inf]))


@dataclass(frozen=True)
class Representation(ABC):
    """A map of finite observations `(..., *event)` to bounded `(..., D)`, in their precision.

    Example:
        >>> from mindist.features import make_representation
        >>> r = make_representation("power-spectrum", torch.zeros(2, 5, 16, 12))
        >>> r.event_shape, r.size, r(torch.zeros(5, 16, 12)).shape
        (torch.Size([16, 12]), 7, torch.Size([5, 7]))
    """

    event_shape: torch.Size
    bounds: Annotated[Range, INLINE]
    name: ClassVar[str]

    @property
    def size(self) -> int:
        """D, the length of a represented observation."""
        return len(self.bounds.lo)

    def __call__(self, x: Tensor) -> Tensor:
        """Map observations `(..., *event)` to `(..., D)`; an infinite one may give NaN."""
        batch = x.shape[: x.dim() - len(self.event_shape)]
        if not batch.numel():  # Fourier transforms and many functions refuse an empty batch
            return x.new_empty(*batch, self.size)
        rows = x.reshape(-1, self.event_shape.numel())
        return self.bounds(self._map(rows)).reshape(*batch, self.size)

    def state(self) -> State:
        """Return plain values and tensors from which `read_representation` rebuilds the map."""
        config, tensors = pack(self)
        return {"name": self.name, **config}, tensors

    @property
    def _length(self) -> int:
        """The length of a represented observation that the other tensors give."""
        return self.event_shape.numel()

    @abstractmethod
    def _map(self, rows: Tensor) -> Tensor:
        """Map flattened observations to vectors `(n, D)`, not yet clamped."""

    def _range(self, rows: Tensor) -> Range:
        """Return the bounds that flattened simulated observations give."""
        ends = [torch.stack(torch.aminmax(self._map(r), dim=0)) for r in rows.split(BLOCK_ROWS)]
        return Range.of(torch.cat(ends))


class StoredRepresentation(Representation):
    """A representation that is fitted to simulations and stored as tensors."""

    @classmethod
    @torch.no_grad()
    def of(cls, x: Tensor) -> Representation:
        """Fit to simulated datasets `(M, N, *event)`."""
        rows, event = x.reshape(-1, x.shape[2:].numel()), x.shape[2:]
        made = cls(event, UNLIMITED, **cls._fit(rows, event))
        return replace(made, bounds=made._range(rows))

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        """Return the tensors of the class, from flattened simulated observations."""
        return {}


@dataclass(frozen=True)
class Identity(StoredRepresentation):
    """The observation itself, flattened and clamped."""

    name = "identity"

    def _map(self, rows: Tensor) -> Tensor:
        return rows


@dataclass(frozen=True)
class Standardised(StoredRepresentation):
    """Each coordinate centred, and divided by its standard deviation over simulations."""

    centre: Annotated[Tensor, "D"]  # means
    scale: Annotated[Tensor, "D"]  # standard deviations; the median of the others for constants
    name = "standardised"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        # Without a float64 copy of the rows.
        scale, centre = (moment.double() for moment in torch.std_mean(rows, dim=0, correction=0))
        return {"centre": centre, "scale": _filled(scale, centre.abs())}

    def _map(self, rows: Tensor) -> Tensor:
        return (rows - self.centre.to(rows.dtype)) / self.scale.to(rows.dtype)


@dataclass(frozen=True)
class SignedLog(StoredRepresentation):
    r""":math:`\operatorname{asinh}(x / c)`: linear near 0, a signed logarithm far from it.

    For heavy-tailed data such as counts, where a few large values would decide the distances.
    """

    unit: Annotated[Tensor, ""]  # c, the median of |x| over simulations, or what is `_typical`
    name = "signed-log"

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        return {"unit": _typical(_some(rows).abs())}

    def _map(self, rows: Tensor) -> Tensor:
        return asinh(rows / self.unit.to(rows.dtype))


@dataclass(frozen=True)
class PowerSpectrum(StoredRepresentation):
    r"""Log power at each frequency of a series `(T,)`, or at each radius of an image `(H, W)`.

    .. math:: r_j(x) = \log \operatorname{mean}\{|\hat x(f)|^2 : |f| \approx j\},
        \qquad j = 0, \ldots, \lfloor \min(H, W)/2 \rfloor ,

    with the unitary discrete Fourier transform and :math:`|f|` in cycles per shorter side, rounded;
    the corners beyond are left out. It tells texture, size and noise, not place or rotation.
    """

    floor: Annotated[Tensor, ""]  # the least power, `FLOOR` of the median of the mean power
    ring: Annotated[Tensor, "int r"]  # j of each frequency; one past the last for a corner
    share: Annotated[Tensor, "r"]  # weight of each frequency in the mean over its ring
    name = "power-spectrum"

    def __post_init__(self) -> None:
        shape = self.event_shape
        if len(shape) not in (1, 2):
            raise ValueError(f"expected a series or an image, got observations of shape {shape}")
        if len(self.ring) != shape[:-1].numel() * (shape[-1] // 2 + 1):
            raise ValueError(f"expected the rings of all frequencies, got {len(self.ring)}")
        if int(self.ring.min()) < 0 or int(self.ring.max()) > self._length:
            raise ValueError("'representation.ring' names rings that do not exist")

    @property
    def _length(self) -> int:
        return min(self.event_shape) // 2 + 1

    @staticmethod
    def _fit(rows: Tensor, event_shape: torch.Size) -> dict[str, Tensor]:
        if len(event_shape) not in (1, 2):
            raise ValueError(
                "representation: 'power-spectrum' expects series (T,) or images (H, W), got "
                f"observations of shape {tuple(event_shape)}. Choose 'identity', "
                "or pass a function from observations to vectors."
            )
        # Parseval: the mean of the squares of the pixels is the mean power over all frequencies.
        few = _some(rows)
        unit = _unit_of(few.abs().amax(1).median())
        floor = FLOOR * _typical((few / unit).square().mean(1)) * unit**2
        ring, share = _rings(event_shape)
        return {"floor": floor, "ring": ring.to(rows.device), "share": share.to(rows.device)}

    def _map(self, rows: Tensor) -> Tensor:
        n, axes = len(rows), tuple(range(1, 1 + len(self.event_shape)))
        unit = _unit_of((self.floor / FLOOR).sqrt())
        rows = rows if unit == 1 else rows / unit
        x_hat = torch.fft.rfftn(rows.reshape(n, *self.event_shape), dim=axes, norm="ortho")
        power = torch.view_as_real(x_hat).square().sum(-1).reshape(n, len(self.ring))
        count = self._length
        # Sums, not a matrix product, in which 0 times an overflown power would be NaN.
        weighted = power * self.share.to(power.dtype)
        rings = power.new_zeros(n, count + 1).index_add(1, self.ring, weighted)[:, :count]
        rings = rings.nan_to_num(nan=torch.inf, posinf=torch.inf)  # inf - inf, where it overflows
        floor = (self.floor / unit**2).to(power.dtype)
        return rings.clamp(min=floor).log() + 2 * math.log(unit)


def _rings(event_shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return the ring of each frequency of `rfftn`, and its share of that ring in the plane."""
    axes = [torch.fft.fftfreq(side, dtype=torch.float64) for side in event_shape[:-1]]
    axes.append(torch.fft.rfftfreq(event_shape[-1], dtype=torch.float64))
    radius = torch.stack(torch.meshgrid(*axes, indexing="ij")).norm(dim=0) * min(event_shape)
    ring = (radius + 0.5).floor().long().clamp(max=min(event_shape) // 2 + 1).flatten()
    copies = torch.full_like(radius, 2)  # f and -f, of which rfftn gives one, ...
    copies[..., 0] = 1  # ... but both where the last frequency is its own opposite
    if event_shape[-1] % 2 == 0:
        copies[..., -1] = 1
    return ring, copies.flatten() / ring.bincount(copies.flatten())[ring]


@dataclass(frozen=True)
class Encoded(Representation):
    """Any function of observations, such as a frozen network, which is not stored, only its range.

    It maps `(n, *event)`, as tensors or NumPy arrays, to `(n, D)`, or to `(n, *shape)`, which is
    flattened. It is called on the device of the data: move a network there yourself.

    Example:
        >>> x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> Encoded.of(lambda x: x.sum(-1), x)(x)
        tensor([[[3.],
                 [7.]]])
    """

    function: Annotated[Callable[[Any], Any], UNSTORED]
    numpy: bool = False
    name = "function"

    @classmethod
    @torch.no_grad()
    def of(cls, function: Callable[[Any], Any], x: Tensor) -> "Encoded":
        """Check the function on simulated datasets `(M, N, *event)` and take its range there."""
        rows = x.reshape(-1, x.shape[2:].numel())
        few, (_, numpy) = rows[:3], first_call(function, x.flatten(0, 1)[:3])
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
        encoded = replace(encoded, bounds=encoded._range(rows))
        if not torch.isfinite(encoded.bounds.lo).all():
            said = "a function that is finite on simulated observations"
            then = "Look for a logarithm of 0 or a ratio to 0 in it."
            raise checks.wrong("representation", said, "NaN or infinite values", then)
        return encoded

    @property
    def _length(self) -> int:
        return self.size

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
            said = f"vectors of length {self.size}, as for the simulations"
            got, then = f"length {vectors.shape[1]}", "Pass the function of the fit."
            raise checks.wrong("representation", said, got, then)
        return vectors


REPRESENTATIONS: dict[str, type[StoredRepresentation]] = {
    kind.name: kind for kind in (Identity, Standardised, SignedLog, PowerSpectrum)
}
"""Representations by name."""


def make_representation(rule: str | Callable[[Any], Any], x: Tensor) -> Representation:
    """Fit to simulated datasets `(M, N, *event)` the representation that a rule names.

    The rule is a name of `REPRESENTATIONS`, a function for `Encoded`, or a fitted representation.

    Example:
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


def read_representation(
    record: Record, size: int, function: Callable[[Any], Any] | None = None
) -> Representation | None:
    """Rebuild the representation of length `size`, if any; a `function` is given, never stored."""
    own = record.part("representation", D=size) if "representation" in record else None
    name = own.word("name", (*REPRESENTATIONS, Encoded.name)) if own else "raw"
    if name != Encoded.name and function is not None:
        said = f"None, because {name!r} is stored with the estimator"
        raise checks.wrong("representation", said, repr(function), "Leave it out.")
    if own is None:
        return None
    made: Representation
    if name != Encoded.name:
        made = own.read(REPRESENTATIONS[name])
    elif callable(function):
        made = Encoded(own.shape("event_shape"), own.read(Range), function, own.flag("numpy"))
    else:
        then = "Functions are not stored: pass it to load as representation=."
        said = "the function that this estimator was fitted with"
        raise checks.wrong("representation", said, repr(function), then)
    if made._length != size:
        said = f"the size of a represented observation is {size}, expected {made._length}"
        raise damaged(own.file, said)
    return made


def candidates(event_shape: Sequence[int]) -> tuple[str, ...]:
    """Return the names to choose from automatically, the one that suits the shape first.

    In images a kernel on pixels sees mostly noise, so that their spectrum comes first.

    Example:
        >>> candidates((32, 32)), candidates((5,))
        (('power-spectrum', 'identity'), ('identity', 'signed-log', 'standardised'))
    """
    if len(event_shape) == 2 and min(event_shape) >= SMALLEST_IMAGE:
        return ("power-spectrum", "identity")
    names = ("identity", "signed-log") if len(event_shape) <= 1 else ("identity",)
    return (*names, "standardised") if math.prod(event_shape) > 1 else names


def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine: NumPy takes .7 to 2 ns for a number, torch 17 ns."""
    if x.requires_grad or not x.is_cpu:
        return torch.asinh(x)
    return torch.from_numpy(np.arcsinh(x.numpy()))


def _some(rows: Tensor) -> Tensor:
    """Return at most `MAX_OBSERVATIONS` of the rows, evenly over datasets."""
    return rows[:: -(-len(rows) // MAX_OBSERVATIONS)]


def _typical(values: Tensor) -> Tensor:
    """Return the median of values of at least 0; their mean if that is 0, else 1."""
    median, mean = values.median().double(), values.double().mean()
    return torch.where(median > 0, median, torch.where(mean > 0, mean, 1.0))


def _filled(spread: Tensor, size: Tensor) -> Tensor:
    """Replace the spread `(D,)` of constant coordinates by the median of the others, or 1."""
    varies = spread > ROUNDING * size
    return torch.where(varies, spread, spread[varies].median() if varies.any() else 1.0)


def _unit_of(size: Tensor) -> float:
    """Return 1, or a power of two to divide by before numbers of a size are squared in float32."""
    value = float(size)
    return 1.0 if SQUARABLE < value < 1 / SQUARABLE else power_of_two(value)
