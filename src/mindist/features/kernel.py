r"""The exact Gaussian kernel, its bandwidth and the exact squared MMD.

.. math::
    k(x, y) = \sum_b \exp\left(-\frac{\|x - y\|^2}{2 \sigma_b^2}\right), \qquad
    \mathrm{MMD}^2(P, Q) = \mathbb{E}\,k(x, x') - 2\,\mathbb{E}\,k(x, y) + \mathbb{E}\,k(y, y')

with one bandwidth, or several to sum over. The median heuristic is :math:`\sigma =
\mathrm{median}_{i < j} \|x_i - x_j\|` (the paper's appendix "Further Experimental Details"). A
multiple of it, written `"0.5 median"`, trades clean efficiency for robustness: a narrower kernel
forgets outliers sooner and uses less of each clean observation (docs/method.md, "Bandwidth").

Reference: Gretton et al., A Kernel Two-Sample Test, JMLR 13 (2012), equations 3 and 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from mindist import checks

BLOCK_VALUES = 2**22  # kernel values computed at once: 32 MB in float64
LOST = 1e-10  # the largest error of a squared distance by products, in units of the bandwidth's
# 2,000 pooled observations give 2e6 pairs: the relative error of the median is about
# 1/sqrt(2000), 2%, and the distances take 16 MB.
MAX_OBSERVATIONS = 2_000
CANCELLED = 1e-6  # of the largest squared distance: a product still has 10 digits of the others
NUMBER = r"\d*\.?\d+"
LEAST = 1e-100  # a bandwidth whose square and inverse square are numbers
RULES = "a positive number, 'median', or a multiple such as '0.5 median'"


def gaussian_kernel(x: Tensor, y: Tensor, bandwidth: float | Sequence[float]) -> Tensor:
    r"""Return the Gram matrix of the Gaussian kernel, or of a sum of Gaussian kernels.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`; kernel values are `(*, n, m)`.
        bandwidth: The standard deviation :math:`\sigma` of the kernel, or several.

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
    r"""Return the squared maximum mean discrepancy `(*,)` between two samples.

    The biased form (a V-statistic, never negative) is the squared distance between the two
    empirical mean embeddings, which is what `FourierFeatures` approximates; the unbiased form (a
    U-statistic) leaves out the diagonal. Differentiable; without gradients memory is bounded by
    blocks of `BLOCK_VALUES` kernel values.

    Arguments:
        x: Points `(*, n, D)`.
        y: Points `(*, m, D)`.
        bandwidth: The standard deviation of the kernel, or several, whose kernels are summed.
        unbiased: Whether to leave out the terms :math:`k(x_i, x_i)`.

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

    As :math:`\|x\|^2 + \|y\|^2 - 2 x^\top y` about the mean of y, a matrix product and ten times
    faster in many dimensions, but only where no point is so far that the rounding of its square
    matters next to `unit` squared.
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
    """Return the median pairwise distance of at most 2,000 observations pooled over datasets.

    It is 0 where most observations coincide.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        generator: Chooses the observations, evenly over datasets.

    Example:
        >>> x = torch.tensor([[[0.0], [3.0]]])
        >>> median_distance(x, torch.Generator().manual_seed(0))
        3.0
    """
    pooled = x.reshape(x.shape[0] * x.shape[1], -1)
    chosen = torch.randperm(len(pooled), generator=generator)[:MAX_OBSERVATIONS].to(x.device)
    points = pooled[chosen].double()
    unit = power_of_two(float(points.abs().median()))  # squares are then numbers
    points /= unit
    squared = squared_distances(points, points, unit=math.inf)
    median = squared[torch.ones_like(squared, dtype=torch.bool).triu(1)].median().sqrt()
    if not median.square() > CANCELLED * squared.max():
        median = torch.nn.functional.pdist(points).median()
    return unit * float(median)


def power_of_two(size: float) -> float:
    """Return the power of two below a size, by which a division is exact; 1 for a size of 0."""
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0


def choose_bandwidth(rule: float | str, x: Tensor, generator: torch.Generator) -> float:
    """Return the bandwidth that a rule gives on simulated datasets.

    Arguments:
        rule: A positive number, `"median"`, or a multiple such as `"0.5 median"`.
        x: Simulated datasets `(M, N, *event)`.
        generator: Chooses the subsample.

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
        match = re.fullmatch(rf"\s*({NUMBER})?\s*\*?\s*median\s*", rule)
        value = float(match.group(1) or 1.0) if match else 0.0
    else:
        value = checks.number(rule, "bandwidth", RULES)
    if not (0 < value < math.inf):
        raise checks.wrong("bandwidth", RULES, repr(rule))
    return checked_bandwidth(value)
