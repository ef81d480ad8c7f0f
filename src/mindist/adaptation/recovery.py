r"""How well an embedding gives the summary back on clean data, and which representation does best.

For simulations that the decoder has not seen, the search should end at their own summaries. What
it misses,

.. math:: e_j = \mathbb{E}\, (s^\star_j - s_j)^2 , \qquad \frac1{d_s} \sum_j \log e_j

(the mean without its largest 2%), is the price of going through the embedding. Means of logarithms
compare embeddings whatever the units of the summaries: half the error in one of them counts as much
as in any other.

**Efficiency.** The second half finds the bandwidth that keeps a stated share of it. A summary
:math:`s` of a clean dataset scatters about its expectation given the parameters with variance
:math:`V_j` in coordinate j, and the summary :math:`s^\star` that is found through the embedding
about the same expectation with a larger one. If :math:`s` is efficient, nothing that is unbiased
can be correlated with it beyond its own noise, or else a combination of the two would have less
variance than :math:`s`. So the difference is uncorrelated with :math:`s` (Hausman), and

.. math:: \mathrm{Var}\, s^\star_j = V_j + \mathbb{E} (s^\star_j - s_j)^2, \qquad
    \mathrm{eff}_j = \frac{V_j}{V_j + \mathbb{E} (s^\star_j - s_j)^2} ,

the share of the observations that :math:`s` needs to be as accurate as :math:`s^\star`. The
differences are those of held-out simulations, :math:`V_j` the mean
of the variances that the bootstrap gives for the same datasets. No parameter is needed. Where
:math:`s` is not efficient, :math:`s^\star` may do better than this, and even better than :math:`s`;
the number then says how far the two differ, in units of their noise.

Coordinates are combined by the geometric mean,
:math:`(\prod_j \mathrm{eff}_j)^{1/d_s}`: the efficiency of an estimator of several numbers is the
root :math:`(|V| / |V^\star|)^{1/d_s}` of the ratio of the generalised variances (Serfling), again
a ratio of numbers of observations, of which this is the form for covariances that are diagonal, or
correlated alike. The determinants themselves would be decided by rounding where summaries depend
on each other.

**Closed form.** For observations :math:`\mathcal{N}(\theta, I_d)`, their mean as summary and a
Gaussian kernel of bandwidth h, :math:`\mu_\theta(x) \propto \exp(-\|x - \theta\|^2 / 2c)` with
:math:`c = h^2 + 1`, and :math:`\|\mu_\theta\|` does not depend on :math:`\theta`. The estimator
solves :math:`\sum_n \psi(x_n - \theta) = 0` with :math:`\psi(u) = u\, e^{-\|u\|^2 / 2c}`, its
influence function up to a factor, so that

.. math:: N\, \mathrm{Var}\, s^\star_j = \frac{\mathbb{E} \psi_j^2}{(\mathbb{E}\,
    \partial_j \psi_j)^2} = \frac{(1 + 1/c)^{d+2}}{(1 + 2/c)^{d/2 + 1}}, \qquad
    \mathrm{eff} = \Big( 1 - \frac1{(h^2 + 2)^2} \Big)^{d/2 + 1} .

For d = 2, 95% need h = 2.07 standard deviations of an observation given the parameters.

References:
    Hausman, Specification Tests in Econometrics, Econometrica 46 (1978).
    Serfling, Approximation Theorems of Mathematical Statistics, Wiley 1980, section 4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mindist import checks
from mindist.adaptation.noise import bootstrap_summaries
from mindist.adaptation.search import Problem, Search, View, search
from mindist.adaptation.starts import Bank
from mindist.decoders import RidgeDecoder
from mindist.features.embedding import Embedding
from mindist.features.fourier import FourierFeatures
from mindist.features.kernel import (
    checked_bandwidth,
    choose_bandwidth,
    efficiency_share,
    median_distance,
)
from mindist.features.representation import candidates, make_representation
from mindist.features.stream import SAMPLE_BYTES, SAMPLE_DATASETS
from mindist.schema import moved
from mindist.summarise import Summariser

HELD_OUT = 0.25
NUM_FEATURES = 256
NUM_BASIS = 200
TRIMMED = 0.02  # of the held-out datasets
MARGIN = 0.5  # of mean log squared errors: by less, errors of 1,000 simulations may differ by luck


@dataclass(frozen=True)
class Recovery:
    """Held-out simulations and what the search made of their embeddings.

    Arguments:
        index: Which simulations were held out, `(n,)`.
        s: Their summaries `(n, d_s)`, float64.
        s_star: The summaries that were found, `(n, d_s)`, float64.
    """

    index: Tensor
    s: Tensor
    s_star: Tensor


def recover(z_bar: Tensor, s: Tensor, generator: torch.Generator) -> Recovery:
    """Learn a decoder from three quarters of the simulations, and search for the rest unaided."""
    order = torch.randperm(len(s), generator=generator).to(s.device)
    z_bar, s = z_bar[order], s[order].double()
    num = max(1, round(HELD_OUT * len(s)))
    decoder = RidgeDecoder(NUM_BASIS).fit(s[num:], z_bar[num:], generator=generator)
    view = View(decoder, Bank.of(s[num:], z_bar[num:], generator), decoder.held_out_error)
    no_hint = s.mean(0).expand_as(s[:num])
    # In the place of the datasets, which the squared distance does not look at, the summaries.
    found = search(view, Search(), Problem(s[:num], no_hint, z_bar[:num]), generator)
    return Recovery(order[:num], s[:num], found.s_star)


def recovery_error(embedding: Embedding, x: Tensor, s: Tensor, generator: torch.Generator) -> float:
    """Return the mean over summaries of the log mean squared error of finding them again."""
    z_bar, _ = embedding.split(embedding.mean(x))
    found = recover(z_bar, s, generator)
    variance = s.double().var(0)
    varies = variance > 0
    squared = (found.s_star - found.s).square()[:, varies] / variance[varies]
    # A single dataset at the edge of the simulations would decide a plain mean.
    kept = squared.sort(0).values[: max(1, round((1 - TRIMMED) * len(squared)))]
    error = kept.mean(0)
    return float(error.clamp(min=1e-30).log().mean())


def choose_representation(
    x: Tensor, s: Tensor, bandwidth: float | str, generator: torch.Generator | None = None
) -> str:
    """The representation that suits the shape of observations, unless another is clearly better.

    Better means that simulated summaries are found again with less error, `recovery_error`.

    Arguments:
        x: Simulated datasets `(M, N, *event)`.
        s: Their summaries `(M, d_s)`.
        bandwidth: The rule for the bandwidth, which is applied to each representation; an
            efficiency comes later, and the median distance stands for it here.
        generator: Draws features; by default from a fixed seed.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> centre = torch.randn(300, 1, 2, generator=generator)
        >>> x = centre + torch.randn(300, 20, 2, generator=generator)
        >>> choose_representation(x, x.mean(1), "median")
        'identity'
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    names = candidates(tuple(x.shape[2:]))
    if len(names) == 1:
        return names[0]
    if not isinstance(bandwidth, str):
        return "identity"  # a number is in the units of the data
    if efficiency_share(bandwidth) is not None:
        bandwidth = "median"
    errors = {}
    for name in names:
        representation = make_representation(name, x)
        seen = representation(x)
        errors[name] = math.inf
        try:
            sigma = choose_bandwidth(bandwidth, seen, torch.Generator().manual_seed(0))
        except ValueError:  # most represented observations are equal
            continue
        features = FourierFeatures.draw(
            tuple(seen.shape[2:]),
            NUM_FEATURES,
            bandwidth=sigma,
            generator=torch.Generator().manual_seed(0),
        )
        features = features if x.is_cpu else moved(features, x.device)
        embedding = Embedding(features, None, representation)
        errors[name] = recovery_error(embedding, x, s, generator)
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < errors[names[0]] - MARGIN else names[0]


# Of the median distance, by factors of 1.35: the efficiency of a Gaussian location goes from .93 to
# .97 in one of them.
MULTIPLES = tuple(0.1 * 20 ** (step / 10) for step in range(11))
NUM_BOOTSTRAP = 20  # 250 held-out datasets then give their mean variance to 2%
LEAST_DATASETS = 200  # fewer do not teach a decoder
NOISELESS = 1e-12  # of the variance of a summary over simulations: sampling noise that is rounding


def efficiency(s: Tensor, s_star: Tensor, variance: Tensor) -> float:
    r"""The geometric mean over coordinates of :math:`V_j / (V_j + \mathbb{E}(s^\star_j - s_j)^2)`.

    In each coordinate the 2% of the datasets with the largest :math:`(s^\star_j - s_j)^2` relative
    to their variance are left out, because a single one at the edge of the simulations would decide
    the mean; what this takes from the mean of squared normal differences is given back.

    Arguments:
        s: Summaries of clean datasets `(n, d_s)`.
        s_star: Summaries that were found through their embeddings `(n, d_s)`.
        variance: Sampling variances of `s`, `(n, d_s)`; a coordinate without any is left out.
    """
    usable = torch.isfinite(variance).all(1)  # a resampled dataset may have no summary
    s, s_star, variance = s[usable], s_star[usable], variance[usable]
    noisy = variance.mean(0) > NOISELESS * s.var(0)
    if not noisy.any():
        said = "a summary with sampling noise, of which an efficiency is a share"
        got = "one that does not change when observations are drawn again"
        raise checks.wrong("bandwidth", said, got, "Choose 'median'.")
    squared, variance = (s_star - s).square()[:, noisy], variance[:, noisy]
    num = max(1, round((1 - TRIMMED) * len(s)))
    kept = (squared / variance.clamp(min=torch.finfo(variance.dtype).tiny)).argsort(0)[:num]
    excess = squared.gather(0, kept).mean(0) / _kept_share(1 - num / len(s))
    noise = variance.gather(0, kept).mean(0)
    return float((noise / (noise + excess)).log().mean().exp())


def sampling_variance(summarise: Summariser, x: Tensor) -> Tensor:
    """Return the variance `(n, d_s)` of the summary of each of the datasets `(n, N, *event)`.

    By the bootstrap, times N / (N - 1): the observations lie about their own mean.
    """
    drawn = bootstrap_summaries(summarise, x, NUM_BOOTSTRAP, _fixed())
    return drawn.var(1) * x.shape[1] / (x.shape[1] - 1)


def efficient_bandwidth(
    share: float,
    x: Tensor,
    seen: Tensor,
    s: Tensor,
    summarise: Summariser,
    generator: torch.Generator,
) -> float:
    """Return the narrowest bandwidth with which the found summaries keep a share of the efficiency.

    Multiples of the median distance from 0.1 to 2 are tried, narrow ones first. Where none keeps
    the share, it is the median distance itself, with a warning: on images the most efficient one
    doubles the error under contamination (docs/method.md).

    Arguments:
        share: Between 0 and 1.
        x: Simulated datasets `(M, N, *event)`, of which at most 1,000, and 64 MB, are used.
        seen: What the kernel sees of them `(M, N, D)`.
        s: Their summaries `(M, d_s)`.
        summarise: The summary function, for the bootstrap.
        generator: Chooses the subsample for the median distance.

    Example:
        >>> theta = torch.linspace(-3, 3, 600)[:, None, None]
        >>> x = theta + torch.randn(600, 50, 1, generator=torch.Generator().manual_seed(0))
        >>> mean = Summariser(lambda x: x.mean(1))
        >>> narrow, wide = (
        ...     efficient_bandwidth(share, x, x, mean(x), mean, torch.Generator())
        ...     for share in (0.7, 0.95)
        ... )
        >>> narrow < 1 < wide  # 0.42 and 1.86 in closed form
        True
    """
    median = checked_bandwidth(median_distance(seen, generator))
    most = max(LEAST_DATASETS, min(SAMPLE_DATASETS, SAMPLE_BYTES // max(1, seen[:1].nbytes)))
    x, seen, s = x[:most], seen[:most], s[:most]
    shape, rule = tuple(seen.shape[2:]), "sobol"
    unit = FourierFeatures.draw(
        shape, NUM_FEATURES, bandwidth=1.0, generator=_fixed(), frequencies=rule
    )
    weight = unit.weight.to(x.device)
    variance: Tensor | None = None
    reached: dict[float, float] = {}
    for multiple in MULTIPLES:
        width = multiple * median
        # The same frequencies, split and decoder features at each: the curve has no noise of those.
        z_bar = FourierFeatures(weight / width, unit.event_shape, width).mean(seen)
        found = recover(z_bar, s, _fixed())
        if variance is None:
            variance = sampling_variance(summarise, x[found.index])
        reached[multiple] = efficiency(found.s, found.s_star, variance)
        if reached[multiple] >= share:
            return width
    best = max(reached, key=lambda multiple: reached[multiple])
    checks.warn_user(
        f"bandwidth: expected a bandwidth that keeps {share:.3g} of the efficiency of the summary, "
        f"got at most {reached[best]:.3g}, at {best:.3g} times the median distance. The median "
        "distance is used. Ask for less, simulate more datasets, or give the kernel a "
        "representation that shows what the summary measures."
    )
    return median


def _kept_share(trimmed: float) -> float:
    r"""The mean of the square of a standard normal without its largest values, such as 2% of them.

    .. math:: 1 - \frac{2 q \varphi(q)}{1 - t}, \qquad \Pr(|Z| > q) = t .
    """
    if trimmed <= 0:
        return 1.0
    q = math.sqrt(2) * float(torch.special.erfinv(torch.tensor(1 - trimmed, dtype=torch.float64)))
    density = math.exp(-(q**2) / 2) / math.sqrt(2 * math.pi)
    return 1 - 2 * q * density / (1 - trimmed)


def _fixed() -> torch.Generator:
    return torch.Generator().manual_seed(0)
