r"""The Gaussian kernel, its bandwidth, the squared MMD, and random Fourier features.

.. math::
    k(x, y) = \sum_b \exp\left(-\frac{\|x - y\|^2}{2 \sigma_b^2}\right), \qquad
    \mathrm{MMD}^2(P, Q) = \mathbb{E}\,k(x, x') - 2\,\mathbb{E}\,k(x, y) + \mathbb{E}\,k(y, y')

with one bandwidth, or several to sum over. The median heuristic is :math:`\sigma =
\mathrm{median}_{i < j} \|x_i - x_j\|` (the paper's appendix "Further Experimental Details"); a
multiple of it trades clean efficiency for robustness (docs/method.md, "Bandwidth").

**Random Fourier features**

.. math::
    z(x) = \sqrt{2/K}\, [\cos(x W), \sin(x W)], \qquad
    W \in \mathbb{R}^{D \times K/2}, \quad W_{ij} \sim \mathcal{N}(0, \sigma^{-2}), \qquad
    \mathbb{E}\,\langle z(x), z(y) \rangle = k(x, y) ,

make the squared MMD between two samples close to the squared distance of their mean embeddings
:math:`\bar z = \frac{1}{N} \sum_n z(x_n)` (equation 2 of the paper), with a smaller variance than
one cosine with a random phase for each frequency (docs/method.md).

References:
    Gretton et al., A Kernel Two-Sample Test, JMLR 13 (2012), equations 3 and 5.
    Rahimi and Recht, Random Features for Large-Scale Kernel Machines, NeurIPS 2007.
    Sutherland and Schneider, On the Error of Random Fourier Features, UAI 2015.
    Yu et al., Orthogonal Random Features, NeurIPS 2016.
    Avron et al., Quasi-Monte Carlo Feature Maps for Shift-Invariant Kernels, JMLR 17 (2016).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist import checks

BLOCK_VALUES = 2**22  # kernel values computed at once: 32 MB in float64
LOST = 1e-10  # the largest error of a squared distance by products, in units of the bandwidth's
# 2,000 pooled observations give 2e6 pairs: the relative error of the median is about
# 1/sqrt(2000), 2%, and the distances take 16 MB.
MAX_OBSERVATIONS = 2_000
LEAST = 1e-100  # a bandwidth whose square and inverse square are numbers
RULES = "a positive number, 'median', or a multiple such as '0.5 median'"


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    """Return the Gram matrix `(*, n, m)` of a Gaussian kernel between `(*, n, D)` and `(*, m, D)`.

    Several bandwidths, each the standard deviation of a kernel, give the sum of these kernels.

    Example:
        >>> gaussian_kernel(torch.zeros(1, 2), torch.ones(1, 2), bandwidth=(1.0, 1.0))
        tensor([[0.7358]])
    """
    widths = _several(bandwidth)
    squared = squared_distances(x, y, min(widths))
    others = [(squared * (-0.5 / width**2)).exp_() for width in widths[1:]]
    kernel = sum(others, squared.mul_(-0.5 / widths[0] ** 2).exp_())
    return kernel.to(torch.promote_types(x.dtype, y.dtype))


def mmd_squared(
    x: Tensor, y: Tensor, bandwidth: float | Sequence[float], *, unbiased: bool = False
) -> Tensor:
    """Return the squared maximum mean discrepancy `(*,)` between points `(*, n, D)`, `(*, m, D)`.

    The biased form (a V-statistic, never negative) is the squared distance between the two
    empirical mean embeddings, which is what `FourierFeatures` approximates; the unbiased form (a
    U-statistic) leaves out the diagonal. Kernels of several bandwidths are summed. Differentiable;
    without gradients memory is bounded by blocks of `BLOCK_VALUES` kernel values.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> mmd_squared(x, x, bandwidth=1.0)
        tensor(0.)
    """
    n, m = x.shape[-2], y.shape[-2]
    if unbiased and min(n, m) < 2:
        raise ValueError(
            f"x, y: the unbiased MMD expects at least 2 points in each sample, got {n} and {m}."
        )
    within_x, within_y = _kernel_sum(x, x, bandwidth), _kernel_sum(y, y, bandwidth)
    between = _kernel_sum(x, y, bandwidth) / (n * m)
    if not unbiased:
        return within_x / n**2 - 2 * between + within_y / m**2
    diagonal = len(_several(bandwidth))  # k(x, x)
    first = (within_x - n * diagonal) / (n * (n - 1))
    return first - 2 * between + (within_y - m * diagonal) / (m * (m - 1))


def _kernel_sum(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    """Return the sum of all kernel values between two samples, `(*,)`, in blocks of rows."""
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]).numel()
    rows = max(1, BLOCK_VALUES // max(1, batch * y.shape[-2]))
    blocks = x.split(rows, dim=-2)
    return torch.stack([gaussian_kernel(b, y, bandwidth).sum(dim=(-2, -1)) for b in blocks]).sum(0)


def squared_distances(x: Tensor, y: Tensor, unit: float) -> Tensor:
    r"""Return squared distances `(*, n, m)` between points `(*, n, D)` and `(*, m, D)`, float64.

    As :math:`\|x\|^2 + \|y\|^2 - 2 x^\top y` about the mean of y, ten times faster in many
    dimensions, where no point is so far that rounding of its square matters next to `unit` squared.
    """
    x, y = x.double(), y.double()
    centre = y.detach().mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    x_norm, y_norm = x.square().sum(-1), y.square().sum(-1)
    largest = x_norm.amax() + y_norm.amax() if x_norm.numel() and y_norm.numel() else 0.0
    if largest * torch.finfo(torch.float64).eps <= LOST * unit**2:
        product = (x @ y.mT).mul_(-2)
        return product.add_(x_norm[..., :, None]).add_(y_norm[..., None, :]).clamp_min_(0)
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _several(bandwidth: float | Sequence[float]) -> tuple[float, ...]:
    values = tuple(bandwidth) if isinstance(bandwidth, Sequence) else (bandwidth,)
    if not values or not all(0 < value < float("inf") for value in values):
        raise ValueError(f"bandwidth: expected positive numbers, got {bandwidth!r}.")
    return values


def median_distance(x: Tensor, generator: torch.Generator) -> float:
    """Return the median distance of 2,000 random observations of datasets `(M, N, *event)`.

    It is 0 where most observations coincide.

    Example:
        >>> x = torch.tensor([[[0.0], [3.0]]])
        >>> median_distance(x, torch.Generator().manual_seed(0))
        3.0
    """
    pooled = x.reshape(x.shape[0] * x.shape[1], -1)
    chosen = torch.randperm(len(pooled), generator=generator)[:MAX_OBSERVATIONS].to(x.device)
    points = pooled[chosen].double()
    unit = power_of_two(float(points.abs().median()))  # squares are then numbers
    return unit * float(torch.nn.functional.pdist(points / unit).median())


def power_of_two(size: float) -> float:
    """Return the power of two below a size, by which a division is exact; 1 for a size of 0."""
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0


def choose_bandwidth(rule: float | str, x: Tensor, generator: torch.Generator) -> float:
    """Return the bandwidth that a rule gives on simulated datasets `(M, N, *event)`.

    The rule is a positive number, `"median"`, or a multiple such as `"0.5 median"`.

    Example:
        >>> x = torch.tensor([[[0.0], [3.0]]])
        >>> choose_bandwidth("0.5 median", x, torch.Generator().manual_seed(0))
        1.5
    """
    number = parse_bandwidth(rule)
    unit = median_distance(x, generator) if isinstance(rule, str) else 1.0
    return checked_bandwidth(number * unit)


def checked_bandwidth(bandwidth: float) -> float:
    """Return a bandwidth above zero whose square is a number."""
    if not bandwidth > 0:
        raise ValueError(
            "x: the median distance between simulated observations is 0, so the kernel would have "
            "zero bandwidth: at least half of the simulated observations are identical. Check the "
            "simulator, or give a positive number as bandwidth."
        )
    if not LEAST < bandwidth < 1 / LEAST:
        then = "Measure the data, and a bandwidth that is a number, in other units: x / x.std()."
        said = f"between {LEAST} and {1 / LEAST}"
        raise checks.wrong("bandwidth", said, f"{bandwidth:.3g}", then)
    return bandwidth


def parse_bandwidth(rule: float | str) -> float:
    """Return the number in a bandwidth rule: the bandwidth, or the multiple of the median."""
    if isinstance(rule, str):
        match = re.fullmatch(r"\s*(\d*\.?\d+)?\s*\*?\s*median\s*", rule)
        value = float(match.group(1) or 1.0) if match else 0.0
    else:
        value = checks.number(rule, "bandwidth", RULES)
    if not (0 < value < math.inf):
        raise checks.wrong("bandwidth", RULES, repr(rule))
    return checked_bandwidth(value)


BLOCK_BYTES = 2**20  # of phases computed at once, so that they stay in the cache
# The largest dimension of a Sobol sequence. Orthogonal frequencies are better from 16 on
# (docs/method.md, "Features"); the results in docs/results have Sobol sequences up to here.
SOBOL_DIMENSIONS = 64


@dataclass(frozen=True)
class FourierFeatures:
    r"""A drawn feature map :math:`z : \mathbb{R}^{event} \to \mathbb{R}^K`.

    Its frequencies `weight`, `(D, K/2)`, float64, are drawn once and stored: the same map embeds
    the simulations and the observations, which are flattened. Computation happens in the precision
    of the data.

    Example:
        >>> z = FourierFeatures.draw((2,), 4, bandwidth=1.0, generator=torch.Generator())
        >>> z(torch.zeros(3, 7, 2)).shape
        torch.Size([3, 7, 4])
        >>> z.mean(torch.zeros(3, 7, 2)).shape
        torch.Size([3, 4])
    """

    weight: Tensor
    event_shape: torch.Size
    bandwidth: float

    @classmethod
    def draw(
        cls,
        event_shape: tuple[int, ...],
        num_features: int,
        *,
        bandwidth: float,
        generator: torch.Generator,
        frequencies: str = "random",
    ) -> "FourierFeatures":
        """Draw the frequencies of `num_features` features, an even number, each with the same law.

        `"random"` ones are independent normals. `"sobol"` ones are evenly spread, for a smaller
        error of the kernel: normal quantiles of a scrambled Sobol sequence up to
        `SOBOL_DIMENSIONS`, `"orthogonal"` ones, which any dimension has, in more.
        """
        shape = (math.prod(event_shape), num_features // 2)
        if frequencies == "random":
            normal = torch.randn(shape, dtype=torch.float64, generator=generator)
        elif frequencies == "sobol" and shape[0] <= SOBOL_DIMENSIONS:
            normal = _sobol_normal(*shape, generator)
        else:
            normal = _orthogonal_normal(*shape, generator)
        return cls(normal / bandwidth, torch.Size(event_shape), bandwidth)

    @property
    def num_features(self) -> int:
        """K, the length of a feature vector."""
        return 2 * self.weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Return features `(..., K)` of observations `(..., *event)`."""
        phase = self._phase(x)
        return torch.cat([phase.cos(), phase.sin()], dim=-1) * self.scale

    def _phase(self, x: Tensor) -> Tensor:
        batch_shape = x.shape[: x.dim() - len(self.event_shape)]
        return x.reshape(*batch_shape, len(self.weight)) @ self.weight.to(x.dtype)

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """Return mean embeddings `(B, K)` of datasets `(B, N, *event)`.

        Beyond input and output this takes a few MB.
        """
        rows = max(1, BLOCK_BYTES // max(1, self.weight.shape[1] * x.element_size()))
        z_bar, num_obs = x.new_empty(len(x), self.num_features), max(1, x.shape[1])
        group = max(1, rows // num_obs)  # whole datasets at a time
        for datasets, out in zip(x.split(group), z_bar.split(group), strict=True):
            phases = (self._phase(part) for part in datasets.split(rows, dim=1))
            sums = [torch.cat([p.cos().sum(1), p.sin().sum(1)], dim=1).double() for p in phases]
            out.copy_(torch.stack(sums).sum(0) * (self.scale / num_obs))
        return z_bar

    @property
    def scale(self) -> float:
        """The largest value of a feature."""
        return math.sqrt(2 / self.num_features)


def _sobol_normal(dim: int, num: int, generator: torch.Generator) -> Tensor:
    """Normal quantiles `(dim, num)` of a scrambled Sobol sequence."""
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=seed)
    uniform: Tensor = engine.draw(num, dtype=torch.float64)
    # A coordinate of exactly 0 has no quantile; the sequence has 30 bits.
    normal: Tensor = torch.special.ndtri(uniform.clamp(2.0**-31, 1 - 2.0**-31))
    return normal.T.contiguous()


def _orthogonal_normal(dim: int, num: int, generator: torch.Generator) -> Tensor:
    """Normal vectors `(dim, num)`, orthogonal within each block of `dim`, with normal lengths."""
    normal = torch.randn(dim, num, dtype=torch.float64, generator=generator)
    factors = [torch.linalg.qr(block) for block in normal.split(dim, dim=1)]
    lengths = torch.randn(dim, num, dtype=torch.float64, generator=generator).norm(dim=0)
    return torch.cat([q * r.diagonal().sign() for q, r in factors], 1).mul_(lengths)
