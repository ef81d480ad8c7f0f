r"""How a microscope sees a molecule: the image formation model of the cryo-EM task.

.. math::
    \rho(u) = \sum_a \mathcal{N}_2\left(u; P R r_a + t, \sigma^2 I\right), \qquad
    y = \mathcal{F}^{-1}\left[ C(k) \, \mathcal{F}[\rho](k) \right] + \text{noise},

.. math::
    C(k) = -\left[ w \cos\chi + \sqrt{1 - w^2} \sin\chi \right] e^{-B |k|^2 / 2}, \qquad
    \chi = \pi \lambda \Delta |k|^2

for atoms at :math:`r_a`, rotation R, shift t, defocus :math:`\Delta`, B-factor B and amplitude
contrast w, as in cryoSBI (Dingeldein et al., PNAS 2025). `project` shares atoms out to a grid with
quadratic B-splines (Hockney and Eastwood, 1988, chapter 5), good to 1e-3 of the maximum (tests).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist import checks

CELLS_PER_SIGMA = 2.25  # grid nodes in one sigma: error below 1e-3 (module docstring)
SMALLEST_EXPONENT = -40.0  # e^-40 is nothing beside 1; e^-90 is denormal, and ten times slower
GRIDS_AT_ONCE = 16  # 800 kB of grids: they stay in cache, and malloc does not return them
DRAWS = 16  # normal numbers set aside for the nuisance parameters of an image; 10 are used


@dataclass(frozen=True)
class View:
    """The nuisance parameters of n images; units as in `Microscope`."""

    rotation: Tensor  # matrices `(n, 3, 3)`
    shift: Tensor  # in the plane, `(n, 2)`
    sigma: Tensor  # `(n,)`, and so on
    defocus: Tensor
    b_factor: Tensor
    snr: Tensor


@dataclass(frozen=True)
class Microscope:
    """The settings of the simulator; pairs are the ends of a uniform law."""

    num_pixels: int = 32  # along a side
    pixel_size: float = 4.0  # Angstrom
    sigma: tuple[float, float] = (3.0, 4.0)  # standard deviation of an atom, Angstrom
    shift: float = 2.0  # the largest along each axis, Angstrom
    defocus: tuple[float, float] = (1.8, 2.2)  # micrometres
    b_factor: tuple[float, float] = (1.0, 5.0)  # square Angstrom
    amplitude: float = 0.1  # amplitude contrast w
    snr: tuple[float, float] = (0.5, 1.0)  # ratio of the variances of signal and noise
    wavelength: float = 0.019866  # of the electrons, Angstrom; cryoSBI's value for 300 kV
    padding: int = 1

    def __post_init__(self) -> None:
        checks.positive(self.num_pixels, "num_pixels")
        checks.positive(self.padding, "padding")
        for name in ("sigma", "defocus", "b_factor", "snr"):
            interval(getattr(self, name), name)

    def draw(self, num: int, generator: torch.Generator) -> tuple[View, Tensor]:
        """Draw nuisance parameters and white noise `(num, P, P)` of images."""
        area = self.num_pixels**2
        z = torch.randn(num, DRAWS + 16 * math.ceil(area / 16), generator=generator)
        u = torch.special.ndtr(z[:, 4:10])
        low, high = torch.tensor([self.sigma, self.defocus, self.b_factor]).T
        sigma, defocus, b_factor = (low + (high - low) * u[:, 2:5]).unbind(1)
        snr = self.snr[0] * (self.snr[1] / self.snr[0]) ** u[:, 5]
        shift = self.shift * (2 * u[:, :2] - 1)
        view = View(rotation_matrices(z[:, :4]), shift, sigma, defocus, b_factor, snr)
        return view, z[:, DRAWS : DRAWS + area].reshape(num, self.num_pixels, -1)

    def images(self, coordinates: Tensor, index: Tensor, view: View) -> Tensor:
        """Return images `(n, P, P)` without noise of atoms `(C, 3, A)` in conformations `(n,)`."""
        parts = (index, view.rotation, view.shift, view.sigma)
        chunks = zip(*(part.split(GRIDS_AT_ONCE) for part in parts), strict=True)
        densities = [
            self.density(R[:, :2] @ coordinates[i] + t[..., None], sigma)
            for i, R, t, sigma in chunks
        ]
        spectrum = torch.fft.rfft2(torch.cat(densities))
        gain = self.transfer(view.defocus, view.b_factor)
        canvas: Tensor = torch.fft.irfft2(spectrum * gain, s=(self.side, self.side))
        inside = slice(self.margin, self.margin + self.num_pixels)
        return canvas[:, inside, inside]

    @property
    def side(self) -> int:
        """Number S of pixels along a side of the canvas."""
        return self.padding * self.num_pixels

    @property
    def margin(self) -> int:
        """Where the image begins on the canvas, in pixels."""
        return (self.side - self.num_pixels) // 2

    def density(self, points: Tensor, sigma: Tensor) -> Tensor:
        """Return densities `(n, S, S)` on the canvas of atoms at `(n, 2, A)` of width `(n,)`."""
        pixel = torch.arange(self.side, dtype=points.dtype) - self.margin
        centres = (pixel - (self.num_pixels - 1) / 2) * self.pixel_size
        return project(points, sigma, centres, self.sigma[0] / CELLS_PER_SIGMA)

    def transfer(self, defocus: Tensor, b_factor: Tensor) -> Tensor:
        """Return the transfer function C(k) `(n, S, S/2 + 1)` at the frequencies of `rfft2`."""
        k = torch.fft.fftfreq(self.side, self.pixel_size, dtype=defocus.dtype)
        k2 = k[:, None] ** 2 + k[: self.side // 2 + 1] ** 2
        chi = (1e4 * math.pi * self.wavelength * defocus)[:, None, None] * k2
        phase = math.asin(self.amplitude)  # w cos(chi) + sqrt(1 - w^2) sin(chi) in one sine
        return -torch.sin(chi + phase) * torch.exp(-0.5 * b_factor[:, None, None] * k2)

    def add_noise(self, images: Tensor, snr: Tensor, noise: Tensor) -> Tensor:
        """Add noise `(n, P, P)` scaled to the SNR `(n,)` to images `(n, P, P)`; standardise."""
        centred = torch.arange(self.num_pixels) - (self.num_pixels - 1) / 2
        disc = ((centred[:, None] ** 2 + centred**2) < (self.num_pixels / 2) ** 2).to(images)
        signal = images - (images * disc).sum((1, 2), keepdim=True) / disc.sum()
        variance = (signal**2 * disc).sum((1, 2)) / (disc.sum() - 1)
        scale = (variance / snr).sqrt()
        return standardise(images + scale[:, None, None] * noise)


def standardise(images: Tensor) -> Tensor:
    """Bring each of images `(..., P, P)` to mean 0 and (unbiased) standard deviation 1."""
    centred = images - images.mean((-2, -1), keepdim=True)
    pixels = images.shape[-2] * images.shape[-1]
    variance = centred.square().sum((-2, -1), keepdim=True) / (pixels - 1)
    return centred / variance.sqrt().clamp(min=torch.finfo(images.dtype).tiny)


def rotation_matrices(quaternions: Tensor) -> Tensor:
    """Return rotations `(n, 3, 3)` of quaternions `(n, 4)`, real part first, not 0."""
    a, b, c, d = torch.nn.functional.normalize(quaternions, dim=1).unbind(1)
    entries = (
        *(1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)),
        *(2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)),
        *(2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)),
    )
    return torch.stack(entries, 1).view(-1, 3, 3)


def project(points: Tensor, sigma: Tensor, centres: Tensor, cell: float) -> Tensor:
    r"""Return densities `(n, P, P)`, :math:`\sum_a \mathcal{N}_2(u; p_a, \sigma^2 I)`."""
    grid, nodes = share_out(points, cell)
    variance = (sigma**2 - cell**2 / 4)[:, None, None]
    exponent = (centres[:, None] - nodes) ** 2 / (-2 * variance)
    gaussian = exponent.clamp_(min=SMALLEST_EXPONENT).exp_() / (2 * torch.pi * variance).sqrt()
    return gaussian @ grid @ gaussian.mT


def share_out(points: Tensor, cell: float) -> tuple[Tensor, Tensor]:
    """Share points `(n, 2, A)` of unit mass out to the nodes of a grid by quadratic B-splines."""
    half = 8 * math.ceil((float(points.abs().max()) / cell + 2) / 8)
    side = 2 * half
    scaled = points / cell + half
    nearest = scaled.round()
    d = scaled - nearest
    weights = (0.5 * (0.5 - d) ** 2, 0.75 - d * d, 0.5 * (0.5 + d) ** 2)
    index = ((nearest[:, 0] - 1) * side + nearest[:, 1] - 1).long()
    grid = points.new_zeros(len(points), side * side)
    for i, row in enumerate(weights):  # one neighbour at a time: what is at hand fits in cache
        for j, column in enumerate(weights):
            grid[:, i * side + j :].scatter_add_(1, index, row[:, 0] * column[:, 1])
    nodes = (torch.arange(side) - half).to(points) * cell
    return grid.view(-1, side, side), nodes


def interval(value: tuple[float, float], name: str) -> tuple[float, float]:
    """Return the ends of an interval of positive numbers."""
    if len(value) != 2 or not 0 < value[0] <= value[1] < math.inf:
        raise ValueError(f"{name}: expected the ends of an interval, 0 < low <= high, got {value}.")
    return value
