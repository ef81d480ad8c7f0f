r"""The cryo-EM task (section "Cryo-EM Inference", appendix "Cryo-EM Task").

With skewness :math:`\gamma_n`, excess kurtosis :math:`\kappa_n` and range :math:`r_n` of image n,

.. math:: s = (\bar\gamma, \bar\kappa, \bar r, \mathrm{sd}(\gamma), \mathrm{sd}(\kappa),
    \mathrm{sd}(r)) \in \mathbb{R}^6 .
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Uniform

from mindist import checks
from mindist.tasks.task import SetNetwork, Task
from mindist.threads import one_thread
from mindist_paper.tasks.image_formation import Microscope, standardise
from mindist_paper.tasks.molecule import Molecule, synthetic_chain

IMAGES_AT_ONCE = 128  # half a megabyte of pixels, which stays in cache


@dataclass(frozen=True)
class CryoEMTask(Task):
    """Which conformation of a molecule do noisy images of it show, when some hold only noise?"""

    molecule: Molecule = field(default_factory=synthetic_chain)
    num_obs: int = 100
    microscope: Microscope = field(default_factory=Microscope)

    name: ClassVar[str] = "cryo_em"
    num_simulations: ClassVar[int] = 15_000
    dim_theta: ClassVar[int] = 1
    dim_summary: ClassVar[int] = 6

    def __post_init__(self) -> None:
        checks.positive(self.num_obs, "num_obs")

    @property
    def card(self) -> str:
        """Equations and defaults, with the molecule and the microscope that it has."""
        m, optics = self.molecule, self.microscope
        return f"""\
Cryo-electron microscopy
  prior          theta uniform on the conformations 0, ..., {m.num_conformations - 1} of a molecule
  simulator      x_n an image of conformation theta: uniform rotation, shift, Gaussian atoms,
                 projection, contrast transfer function, white noise, standardisation
  summary        mean and standard deviation over images of skewness, excess kurtosis, range
  contamination  with probability epsilon, x_n becomes standardised white noise
  defaults       {m.name}, {m.num_atoms} atoms; N = {self.num_obs}; {optics.num_pixels} x \
{optics.num_pixels} pixels of {optics.pixel_size:g} A, shift {optics.shift:g} A,
                 sigma {_range(optics.sigma)} A, defocus {_range(optics.defocus)} um, B-factor \
{_range(optics.b_factor)} A^2, amplitude {optics.amplitude:g},
                 SNR {_range(optics.snr)}; {self.num_simulations:,} simulations
  reference      Dingeldein et al., Amortized template matching of molecular conformations from
                 cryoelectron microscopy images using simulation-based inference, PNAS 2025"""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of an image."""
        return (self.microscope.num_pixels, self.microscope.num_pixels)

    @property
    def prior(self) -> Distribution:
        """Continuous relaxation of the prior, uniform on [-1/2, C - 1/2]."""
        low = torch.tensor([-0.5])
        return Independent(Uniform(low, low + self.molecule.num_conformations), 1)

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw indices `(num, 1)`, whole numbers in float32, uniform on 0, ..., C - 1."""
        index = torch.randint(self.molecule.num_conformations, (num, 1), generator=generator)
        return index.float()

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate datasets `(B, N, P, P)` given indices `(B, 1)`, rounded to the nearest."""
        last = self.molecule.num_conformations - 1
        theta = checks.parameters(theta, self.prior, f"an index from 0 to {last}")
        num = checks.size(num_observations, self.num_obs)
        index = theta[:, 0].round().long().clamp(0, last)
        index = index.repeat_interleave(num)
        x = torch.empty(len(index), *self.event_shape)
        with one_thread():
            for first in range(0, len(index), IMAGES_AT_ONCE):
                chunk = slice(first, first + IMAGES_AT_ONCE)
                view, noise = self.microscope.draw(len(index[chunk]), generator)
                clean = self.microscope.images(self.molecule.coordinates, index[chunk], view)
                x[chunk] = self.microscope.add_noise(clean, view.snr, noise)
        return x.view(len(theta), num, *self.event_shape)

    @staticmethod
    def summary(x: Tensor) -> Tensor:
        """Return means, then standard deviations, of skewness, kurtosis and range, `(B, 6)`."""
        chunks = x.flatten(0, 1).split(IMAGES_AT_ONCE)
        with one_thread():
            statistics = torch.cat([image_statistics(images) for images in chunks])
        statistics = statistics.view(*x.shape[:2], 3)
        spread, mean = torch.std_mean(statistics, 1, correction=int(x.shape[1] > 1))
        return torch.cat((mean, spread), 1)

    def contaminate(self, x: Tensor, epsilon: float, *, generator: torch.Generator) -> Tensor:
        """Replace images of `(B, N, P, P)` by standardised noise with probability epsilon."""
        x = checks.datasets(x, self.event_shape).clone()
        replaced = torch.rand(x.shape[:2], generator=generator) < checks.fraction(epsilon)
        noise = torch.randn(int(replaced.sum()), *self.event_shape, generator=generator)
        x[replaced] = standardise(noise).to(x)
        return x

    def summary_network(self, width: int = 64) -> nn.Module:
        """Build a convolutional network on a set of images, to be trained with an NPE."""
        return SetNetwork(4 * 16, width, self.dim_summary, encoder=ImageEncoder())


def image_statistics(images: Tensor) -> Tensor:
    """Return skewness, excess kurtosis and intensity range `(n, 3)` of images `(n, P, P)`."""
    pixels = images.flatten(1)
    d = pixels - pixels.mean(1, keepdim=True)
    d2 = d * d
    m2 = d2.mean(1).clamp(min=torch.finfo(d.dtype).tiny ** 0.5)
    skewness = (d2 * d).mean(1) / m2**1.5
    kurtosis = (d2 * d2).mean(1) / m2**2 - 3
    low, high = torch.aminmax(pixels, dim=1)
    return torch.stack((skewness, kurtosis, high - low), 1)


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g}-{ends[1]:g}"


class ImageEncoder(nn.Module):
    """Three convolutions and an average pool: images `(..., P, P)` to `(..., 64)`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.SiLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.SiLU()),
            *(nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.SiLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features `(..., 64)` of images `(..., P, P)`."""
        features: Tensor = self.layers(images.flatten(0, -3)[:, None])
        return features.view(*images.shape[:-2], -1)
