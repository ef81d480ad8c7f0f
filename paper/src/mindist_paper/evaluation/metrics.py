r"""How good a posterior is (appendix "Further Experimental Details").

Samples of the posteriors of B test datasets come as `(S, B, d_theta)`, as `sample_batched` gives
them; every metric has one value for each dataset, `(B,)`, over which tables average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mindist.features.kernel import mmd_squared

REFERENCE_MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the mean squared distance that give the five bandwidths of `pooled_bandwidths`."""


def rmse(theta_mean: Tensor, theta: Tensor) -> Tensor:
    r"""Return the errors `(*,)` of posterior means, given true parameters, both `(*, d_theta)`.

    .. math:: \sqrt{\tfrac{1}{d_\theta} \| \bar\theta - \theta^* \|_2^2}

    Example:
        >>> import torch
        >>> rmse(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
        tensor([3.5355])
    """
    return (theta_mean - theta).square().mean(-1).sqrt()


def coverage(samples: Tensor, theta: Tensor, levels: Sequence[float] | Tensor) -> Tensor:
    r"""Return the share of parameters that central credible intervals hold.

    .. math:: \tfrac{1}{d_\theta} \textstyle\sum_j 1[L_j \le \theta_j^* \le U_j], \qquad
        L_j, U_j = Q_{\alpha/2}, Q_{1-\alpha/2} \text{ of } \theta_j^{(1)}, \ldots, \theta_j^{(S)}

    with :math:`1 - \alpha` the level. Averaged over datasets, a calibrated posterior has the level.

    Arguments:
        samples: Posterior samples `(S, B, d_theta)`.
        theta: True parameters `(B, d_theta)`.
        levels: L levels between 0 and 1, such as `(0.5, 0.9)`.

    Returns:
        Coverage `(L, B)`, between 0 and 1.

    Example:
        >>> samples = torch.arange(101.0)[:, None, None].expand(-1, 1, 2)
        >>> coverage(samples, torch.tensor([[30.0, 50.0]]), (0.1, 0.5))
        tensor([[0.5000],
                [1.0000]])
    """
    levels = torch.as_tensor(levels, dtype=samples.dtype, device=samples.device)
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"levels: expected numbers between 0 and 1, got {levels.tolist()}.")
    lower = torch.quantile(samples, (1 - levels) / 2, dim=0)
    upper = torch.quantile(samples, (1 + levels) / 2, dim=0)
    inside = (lower <= theta) & (theta <= upper)
    return inside.to(samples.dtype).mean(-1)


def summary_distance(s: Tensor, s_oracle: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return distances `(B,)` of used summaries from those of the clean data, both `(B, d_s)`.

    `scale`, standard deviations `(d_s,)` over simulations, makes them standardised.

    Example:
        >>> s, scale = torch.tensor([[3.0, 4.0]]), torch.tensor([3.0, 4.0])
        >>> summary_distance(s, 0 * s), summary_distance(s, 0 * s, scale)
        (tensor([5.]), tensor([1.4142]))
    """
    difference = s - s_oracle if scale is None else (s - s_oracle) / scale
    return difference.square().sum(-1).sqrt()


def predictive_mmd(
    x_predicted: Tensor, x_clean: Tensor, bandwidth: float | Sequence[float]
) -> Tensor:
    """Return squared MMDs `(B,)` of predicted observations `(B, n, *event)` from clean datasets.

    `bandwidth`, one or several, is the same for all methods that are compared.

    Example:
        >>> predictive_mmd(torch.zeros(1, 5, 2), torch.zeros(1, 3, 2), bandwidth=1.0)
        tensor([0.])
    """
    pairs = zip(x_predicted.flatten(2), x_clean.flatten(2), strict=True)
    return torch.stack([mmd_squared(a, b, bandwidth) for a, b in pairs])


def pooled_bandwidths(x: Tensor, y: Tensor) -> tuple[float, ...]:
    r"""Return five bandwidths around the spread of two samples `(n, D)`, `(m, D)` together.

    .. math:: 2 \sigma_m^2 = m \cdot \mathrm{mean}_{i \ne j} \|z_i - z_j\|^2, \qquad
        m \in \{\tfrac14, \tfrac12, 1, 2, 4\}, \quad z = x \cup y .

    A rule common in domain adaptation (Long et al., ICML 2015). With the exact posterior it gives
    1.22, 2.77, 4.10 and 5.20 on the Gaussian task at epsilon .1, .2, .3 and .5, where the paper's
    NPE has 1.58, 2.94, 4.00 and 5.18; multiples of the median distance give 0.8 to 3.7.

    Example:
        >>> x = torch.tensor([[0.0], [2.0]])  # squared distances 0, 4 and 4 of three distinct pairs
        >>> pooled_bandwidths(x, x[:1])[2] ** 2 * 2
        2.666...
    """
    # The mean squared distance is twice the trace of the samples' covariance.
    variance = float(torch.cat([x, y]).double().var(dim=0).sum())
    return tuple(math.sqrt(multiple * variance) for multiple in REFERENCE_MULTIPLES)


def reference_mmd(
    samples: Tensor, reference: Tensor, bandwidth: float | Sequence[float] | None = None
) -> Tensor:
    r"""Return the squared MMD (biased) of posterior samples from draws of the exact posterior.

    Arguments:
        samples: Posterior samples `(S, B, d_theta)`.
        reference: Draws from the reference posteriors of the clean datasets, `(S', B, d_theta)`.
        bandwidth: One or several for all datasets; by default for each dataset the five of
            `pooled_bandwidths`, whose kernels are summed: the largest value is then 10.

    Returns:
        Squared discrepancies `(B,)`.

    Example:
        >>> reference_mmd(torch.zeros(4, 1, 2), torch.full((4, 1, 2), 99.0), bandwidth=1.0)
        tensor([2.])
    """
    values = []
    for drawn, exact in zip(samples.unbind(1), reference.unbind(1), strict=True):
        chosen = pooled_bandwidths(drawn, exact) if bandwidth is None else bandwidth
        values.append(mmd_squared(drawn.to(exact.dtype), exact, chosen))
    return torch.stack(values)


def roc_auc(score: Tensor, wrong: Tensor) -> Tensor:
    r"""Return the area under the ROC curve of a score of observations.

    .. math:: \mathrm{AUC} = \Pr(\text{score}_i > \text{score}_j)
        + \tfrac12 \Pr(\text{score}_i = \text{score}_j)

    for a wrong observation i and a right one j.

    Arguments:
        score: Score of each observation, `(B, N)`, larger where it looks wrong.
        wrong: Which observations are wrong, `(B, N)`.

    Returns:
        Areas `(B,)`; NaN for a dataset whose observations are all right, or all wrong.

    Example:
        >>> score = torch.tensor([[0.1, 0.9, 0.9], [0.5, 0.5, 0.5]])
        >>> wrong = torch.tensor([[False, True, False], [False, False, False]])
        >>> roc_auc(score, wrong)
        tensor([0.7500,    nan], dtype=torch.float64)
    """
    values = []
    for own, bad in zip(score.double(), wrong, strict=True):
        difference = own[bad][:, None] - own[~bad]
        above = (difference > 0).double() + 0.5 * (difference == 0).double()
        values.append(above.mean() if above.numel() else above.new_tensor(math.nan))
    return torch.stack(values)
