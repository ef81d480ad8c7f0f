r"""The bandwidth of the kernel, from a subsample of pooled simulated observations.

The median heuristic takes the median of the pairwise Euclidean distances,

.. math:: \sigma = \mathrm{median}_{i < j} \|x_i - x_j\| ,

as in the appendix "Further Experimental Details" of the paper. A multiple of it, written
`"0.5 median"`, trades clean efficiency for robustness: a narrower kernel forgets outliers sooner
and uses less of each clean observation (docs/method.md, "Bandwidth"). `"95% efficient"` asks for
the narrowest kernel that keeps 95% of the clean efficiency, which takes summaries and a search
(`mindist.adaptation.efficiency`): here it is only read.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor

from mindist import checks

# 2,000 pooled observations give 2e6 pairs: the relative error of the median is about
# 1/sqrt(2000), 2%, and the distances take 16 MB.
MAX_OBSERVATIONS = 2_000
PRODUCT_DIMENSIONS = (
    8  # in more a product is faster: 40 ms for 76 at D = 25, .21 s for .48 at 1,024
)
CANCELLED = 1e-6  # of the squared norms: the distance still has 10 digits
NUMBER = r"\d*\.?\d+"


def median_distance(x: Tensor, generator: torch.Generator) -> float:
    """Median pairwise distance of at most 2,000 observations pooled over datasets.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        generator: Chooses the observations, evenly over datasets.

    Returns:
        The median distance, 0 where most observations coincide.

    Example:
        >>> x = torch.tensor([[[0.0], [3.0]]])
        >>> median_distance(x, torch.Generator().manual_seed(0))
        3.0
    """
    pooled = x.reshape(x.shape[0] * x.shape[1], -1)
    chosen = torch.randperm(len(pooled), generator=generator)[:MAX_OBSERVATIONS].to(x.device)
    points = pooled[chosen].double()
    unit = power_of_two(float(points.abs().median()))  # squares are then numbers
    return unit * float(_distances(points / unit).median())


def power_of_two(size: float) -> float:
    """The power of two below a size, by which a division is exact; 1 where the size is 0.

    Example:
        >>> power_of_two(5.0), power_of_two(1e-30) == 2.0**-100, power_of_two(0.0)
        (4.0, True, 1.0)
    """
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0


def _distances(x: Tensor) -> Tensor:
    """Distances of all pairs of points `(n, D)`, float64.

    In many dimensions by a matrix product around the mean, `||x||^2 + ||y||^2 - 2 x.y`, unless most
    points are so near to each other, beside their distance from the mean, that it would cancel.
    """
    if x.shape[1] > PRODUCT_DIMENSIONS:
        x = x - x.mean(0)
        norms = x.square().sum(1)
        square = (norms[:, None] + norms - 2 * (x @ x.T)).clamp_min(0)
        pairs = square[torch.ones_like(square, dtype=torch.bool).triu(1)]
        if len(pairs) and pairs.median() > CANCELLED * norms.mean():
            return pairs.sqrt()
    return torch.nn.functional.pdist(x)


def choose_bandwidth(rule: float | str, x: Tensor, generator: torch.Generator) -> float:
    """The bandwidth that a rule gives on simulated datasets.

    Arguments:
        rule: A positive number, `"median"`, or a multiple such as `"0.5 median"`; an efficiency
            needs summaries too (`mindist.adaptation.efficient_bandwidth`).
        x: Simulated datasets `(M, N, *event)`.
        generator: Chooses the subsample.

    Example:
        >>> x = torch.tensor([[[0.0], [3.0]]])
        >>> choose_bandwidth("0.5 median", x, torch.Generator().manual_seed(0))
        1.5
    """
    multiple = parse_bandwidth(rule)
    if not isinstance(rule, str):
        return multiple
    if math.isnan(multiple):
        raise checks.bad_bandwidth_rule(rule)
    return checks.positive_bandwidth(multiple * median_distance(x, generator))


def parse_bandwidth(rule: float | str) -> float:
    """The number in a bandwidth rule: the bandwidth itself, or the multiple of the median.

    NaN for an efficiency, whose multiple only simulations tell.

    Example:
        >>> parse_bandwidth(2), parse_bandwidth("0.5 median"), parse_bandwidth("95% efficient")
        (2.0, 0.5, nan)
    """
    if isinstance(rule, str):
        if efficiency_share(rule) is not None:
            return math.nan
        match = re.fullmatch(rf"\s*({NUMBER})?\s*\*?\s*median\s*", rule)
        if match is None:
            raise checks.bad_bandwidth_rule(rule)
        return _within(float(match.group(1) or 1.0), rule)
    return _within(checks.number(rule, "bandwidth", checks.BANDWIDTHS), rule)


def _within(value: float, rule: object) -> float:
    """A positive number whose square is one too."""
    if not (0 < value < math.inf):
        raise checks.bad_bandwidth_rule(rule)
    return checks.positive_bandwidth(value)


def efficiency_share(rule: float | str) -> float | None:
    """The share in a rule such as `"95% efficient"`, between 0 and 1; None for any other rule.

    Example:
        >>> efficiency_share("95% efficient"), efficiency_share("median")
        (0.95, None)
    """
    match = re.fullmatch(rf"\s*({NUMBER})\s*%\s*efficient\s*", str(rule))
    if match is None:
        return None
    share = float(match.group(1)) / 100
    if not 0 < share < 1:
        raise checks.bad_bandwidth_rule(rule)
    return share
