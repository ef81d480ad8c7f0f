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
from mindist.features.kernel import squared_distances

# 2,000 pooled observations give 2e6 pairs: the relative error of the median is about
# 1/sqrt(2000), 2%, and the distances take 16 MB.
MAX_OBSERVATIONS = 2_000
CANCELLED = 1e-6  # of the largest squared distance: a product still has 10 digits of the others
NUMBER = r"\d*\.?\d+"


def median_distance(x: Tensor, generator: torch.Generator) -> float:
    """Return the median pairwise distance of at most 2,000 observations pooled over datasets.

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
    points /= unit
    squared = squared_distances(points, points, unit=math.inf)
    median = squared[torch.ones_like(squared, dtype=torch.bool).triu(1)].median().sqrt()
    if not median.square() > CANCELLED * squared.max():
        median = torch.nn.functional.pdist(points).median()
    return unit * float(median)


def power_of_two(size: float) -> float:
    """Return the power of two below a size, by which a division is exact; 1 for a size of 0.

    Example:
        >>> power_of_two(5.0), power_of_two(1e-30) == 2.0**-100, power_of_two(0.0)
        (4.0, True, 1.0)
    """
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0


def choose_bandwidth(rule: float | str, x: Tensor, generator: torch.Generator) -> float:
    """Return the bandwidth that a rule gives on simulated datasets.

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
    """Return the number in a bandwidth rule: the bandwidth, or the multiple of the median.

    NaN for an efficiency, whose multiple only simulations tell.

    Example:
        >>> parse_bandwidth(2), parse_bandwidth("0.5 median"), parse_bandwidth("95% efficient")
        (2.0, 0.5, nan)
    """
    if isinstance(rule, str):
        if efficiency_share(rule) is not None:
            return math.nan
        match = re.fullmatch(rf"\s*({NUMBER})?\s*\*?\s*median\s*", rule)
        value = float(match.group(1) or 1.0) if match else 0.0
    else:
        value = checks.number(rule, "bandwidth", checks.BANDWIDTHS)
    if not (0 < value < math.inf):
        raise checks.bad_bandwidth_rule(rule)
    return checks.positive_bandwidth(value)


def efficiency_share(rule: float | str) -> float | None:
    """Return the share in a rule such as `"95% efficient"`, in (0, 1); None for other rules.

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
