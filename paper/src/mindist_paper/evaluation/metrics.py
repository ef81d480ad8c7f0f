"""How good posteriors are: `(B,)` values from samples `(S, B, d_theta)` for B test datasets."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mindist.features.kernel import mmd_squared

# Multiples of the mean squared distance that give the five bandwidths of `pooled_bandwidths`
REFERENCE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)


def rmse(theta_mean: Tensor, theta: Tensor) -> Tensor:
    """Return the errors `(*,)` of posterior means, given true parameters, both `(*, d_theta)`."""
    return (theta_mean - theta).square().mean(-1).sqrt()


def coverage(samples: Tensor, theta: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    """Return the share of parameters that central credible intervals hold."""
    levels = torch.as_tensor(levels, dtype=samples.dtype, device=samples.device)
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"levels: expected numbers between 0 and 1, got {levels.tolist()}.")
    lower = torch.quantile(samples, (1 - levels) / 2, dim=0)
    upper = torch.quantile(samples, (1 + levels) / 2, dim=0)
    inside = (lower <= theta) & (theta <= upper)
    return inside.to(samples.dtype).mean(-1)


def summary_distance(s: Tensor, s_oracle: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return distances `(B,)` of used summaries from those of the clean data, both `(B, d_s)`."""
    difference = s - s_oracle if scale is None else (s - s_oracle) / scale
    return difference.square().sum(-1).sqrt()


def predictive_mmd(
    predicted: Tensor, x_clean: Tensor, bandwidth: float | Sequence[float]
) -> Tensor:
    """Return squared MMDs `(B,)` of predicted observations `(B, n, *event)` from clean datasets."""
    pairs = zip(predicted.flatten(2), x_clean.flatten(2), strict=True)
    return torch.stack([mmd_squared(a, b, bandwidth) for a, b in pairs])


def pooled_bandwidths(x: Tensor, y: Tensor) -> tuple[float, ...]:
    """Return five bandwidths around the spread of two samples `(n, D)`, `(m, D)` together."""
    # The mean squared distance is twice the trace of the samples' covariance.
    variance = float(torch.cat([x, y]).double().var(dim=0).sum())
    return tuple(math.sqrt(multiple * variance) for multiple in REFERENCE_MULTIPLES)


def reference_mmd(samples: Tensor, reference: Tensor) -> Tensor:
    """Return the squared MMD (biased) of posterior samples from draws of the exact posterior."""
    values = []
    for drawn, exact in zip(samples.unbind(1), reference.unbind(1), strict=True):
        bandwidths = pooled_bandwidths(drawn, exact)
        values.append(mmd_squared(drawn.to(exact.dtype), exact, bandwidths))
    return torch.stack(values)
