r"""Calibrate what comes out, by indirect inference: run the same procedure on clean simulations.

An adapted summary t is not the summary s of clean data: trimming has a bias, projection is drawn to
the mean, both have noise. On clean simulations t and s are known, and

.. math:: \hat s(t) = \mathbb{E}[s \mid t], \qquad S(t) = \operatorname{Cov}[s \mid t]

are learned: the first by a regression for a projection, while a summary of what is left has lost
its bias already and stays t. The posterior is asked over :math:`N(\hat s(t), U)`,

.. math:: U = \tfrac{N_0}{N} S(t) + \big( \tfrac{N_0}{n} - 1 \big)_+ V ,

the second term for the :math:`N - n` observations that were left out: V is the sampling covariance
of a summary of the simulations' :math:`N_0` observations (below).

The covariance is that of the nearest 19 in 20 of clean simulations, as it would be of a normal law:
one fixed point in a hundred that is far off would widen the intervals of all.

**Other explanations.** Wrong observations near the right ones are not left out, and a contaminated
dataset may be explained in several ways (`mindist.adaptation.speaking`). Explanations c with
summaries :math:`t_c` and shares :math:`\omega_c` add their second moments to U, about t or, where
the observed summary is kept, about that:

.. math:: \textstyle\sum_c \omega_c\, (t_c - t)(t_c - t)^\top .

**Has the summary moved?** The observed summary is one of clean data only if it lies within
:math:`N(\hat s(t), U)`. The length

.. math:: H = (f(x) - \hat s)^\top (U + 0.05\, V)^{-1} (f(x) - \hat s)

is compared with that of clean simulations: two estimates of one summary, one of them robust, as in
the test of Hausman. A change of a fifth of the sampling error is no harm, hence the 0.05.

**Sampling noise.** A dataset of N observations has a summary with covariance :math:`V` around what
infinitely many observations would give. Datasets drawn with replacement from its own observations
show it, for any summary function:

.. math:: \hat V = \tfrac{N}{N - 1}\, \mathrm{Cov}_b\, f(x^{(b)}), \qquad
    x^{(b)}_n \sim \tfrac1N \textstyle\sum_m \delta_{x_m} .

Summaries around an adapted one stand for its uncertainty, of covariance U (`spread`),

.. math:: s_j = s^\star + U^{1/2} q_j , \qquad j = 1, \dots, J ,

with fixed, evenly spread points :math:`q_j` that have the mean 0 and the covariance I of a standard
normal exactly. The root is the symmetric one in standard deviations of the simulated summaries:
unlike other roots it changes little where U does.

References:
    Gouriéroux, Monfort and Renault, Indirect inference, Journal of Applied Econometrics 8 (1993).
    Hausman, Specification tests in econometrics, Econometrica 46 (1978).
    Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 7 (1979).
    Owen, Scrambling Sobol' and Niederreiter-Xing Points, Journal of Complexity 14 (1998).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from scipy.special import gammainc, gammaincinv
from torch import Tensor
from torch.quasirandom import SobolEngine

from mindist.features.residuals import Regression, scale_of
from mindist.summarise import Summariser

NEIGHBOURS = 60  # clean simulations whose residuals give the covariance at a summary
# Share of them that does: a fixed point that is far off, once in a hundred clean simulations, would
# make the covariance ten times as large (Ricker), and the intervals of the others with it.
USUAL = 0.95
HARMLESS = 0.05  # share of the sampling variance that a summary may move unnoticed
FEATURES = 100
COLLINEAR = 1e-3  # added to the diagonal of a correlation matrix


@dataclass(frozen=True)
class Calibration:
    """The law of the summary of clean data given an adapted one."""

    adapted: Annotated[Tensor, "C d"]  # adapted summaries of clean simulations `(C, d_s)`
    # what is left of their summaries `(C, d_s)`, each left out of the regression
    residual: Annotated[Tensor, "C d"]
    scale: Annotated[Tensor, "d"]  # standard deviations of simulated summaries `(d_s,)`
    # the expected difference of the summary from the adapted one; None where it is 0
    back: Regression | None = None

    @classmethod
    def of(
        cls, adapted: Tensor, s: Tensor, *, unbiased: bool = False
    ) -> "tuple[Calibration, Tensor, Tensor]":
        """Compare summaries `(C, d_s)` of clean simulations with the adapted ones.

        They are regressed on these unless the adapted ones are unbiased already. Returns also the
        expected summary and the covariance of each simulation, left out in turn.
        """
        s, back, left_out = s.double(), None, adapted
        if not unbiased:
            back, off = Regression.of(adapted, s - adapted, FEATURES, wider=0.0)
            left_out = adapted + off
        made = cls(adapted, s - left_out, scale_of(s), back)
        return made, left_out, made._covariance(adapted, alone=False)

    def __call__(self, adapted: Tensor) -> tuple[Tensor, Tensor]:
        """Return expected summaries `(B, d_s)` and covariances, given adapted ones `(B, d_s)`."""
        off = 0.0 if self.back is None else self.back(adapted)
        return adapted + off, self._covariance(adapted)

    def _covariance(self, adapted: Tensor, *, alone: bool = True) -> Tensor:
        parts, num = [], min(NEIGHBOURS, len(self.adapted) - 1)
        for rows in adapted.split(256):
            distance = torch.cdist(rows / self.scale, self.adapted / self.scale)
            near = distance.topk(num + (not alone), largest=False).indices[:, int(not alone) :]
            residual = self.residual[near]
            length = (residual / self.scale).square().sum(2)
            usual = length.topk(max(1, int(USUAL * num)), largest=False).indices
            residual = residual.gather(1, usual[..., None].expand(-1, -1, residual.shape[2]))
            parts.append(residual.mT @ residual / residual.shape[1])
        # What leaving out the longest takes from the covariance of a normal law, as for the MCD.
        half = len(self.scale) / 2
        factor = USUAL / gammainc(half + 1, gammaincinv(half, USUAL))
        return torch.cat(parts) * float(factor)


def spread_of(
    covariance: Tensor, noise: Tensor, kept: Tensor, num_obs: int, trained: int
) -> Tensor:
    """Return U, `(B, d_s, d_s)`: of the calibration, and of observations that are missing.

    From S, V of N0 observations, the mass n of what is left `(B,)`, N and N0.
    """
    missing = (trained / kept.double().clamp(min=1) - 1).clamp(min=0)
    return trained / num_obs * covariance + missing[:, None, None] * noise


def moved_by(s_obs: Tensor, centre: Tensor, spread: Tensor, noise: Tensor) -> Tensor:
    """Return log(1 + H), `(B,)`: how far the observed summary is from where it should be."""
    A = spread + HARMLESS * noise
    size = A.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    size = torch.where(size > 0, size, 1.0)
    A = A / size[:, :, None] / size[:, None]
    A = A + COLLINEAR * torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
    r = ((s_obs - centre) / size)[..., None]
    length: Tensor = (r * torch.linalg.solve(A, r)).sum((1, 2))
    return length.clamp(min=0).log1p()


CHUNK_BYTES = 2**21  # of resampled data summarised at once, which stay in cache
REPLICATES = 16
# Of the bootstrap in all: about a second of summaries of images or of series of 365 values.
MAX_BYTES = 2**29
MAX_DATASETS, LEAST_DATASETS = 500, 8
# Datasets averaged: 5% error of a variance; of few datasets an eighth, and at least 16, 9% error.
MAX_NEIGHBOURS, LEAST_NEIGHBOURS = 50, 16
BLOCK_ELEMENTS = 2**24


def _bootstrapped(summarise: Summariser, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return summaries `(B, R, d_s)`, float64, of datasets drawn from each dataset's own data."""
    num_obs, parts = x.shape[1], []
    rows = torch.arange(len(x)).repeat_interleave(REPLICATES)
    for block in rows.split(max(1, CHUNK_BYTES // max(1, x[:1].nbytes))):
        drawn = torch.randint(num_obs, (len(block), num_obs), generator=generator)
        parts.append(summarise(x[block[:, None].to(x.device), drawn.to(x.device)]).double())
    return torch.cat(parts).view(len(x), REPLICATES, -1)


@dataclass(frozen=True)
class SummaryNoise:
    r"""The sampling covariance V(s) of a summary, learned from simulated datasets.

    Each dataset is bootstrapped; V(s) is the mean covariance of those whose summaries are nearest
    to s, in standard deviations.

    Example:
        >>> x = torch.randn(8_000, 100, 1, generator=torch.Generator().manual_seed(0))
        >>> summarise = Summariser(lambda x: x.mean(1))
        >>> generator = torch.Generator().manual_seed(1)
        >>> noise = SummaryNoise.of(summarise, x, x.mean(1), x.mean(1), generator)
        >>> (100 * noise.covariance(torch.zeros(1, 1))).round(decimals=1)  # V = 1 / N
        tensor([[[1.]]], dtype=torch.float64)
    """

    s: Annotated[Tensor, "B d"]  # summaries `(M, d_s)` of the datasets, float64
    # of R bootstrapped summaries from their mean, `(M, R, d_s)`, scaled so that the sum of their
    # squares over R is V
    deviation: Annotated[Tensor, "any B R d"]  # float32 in the first edition's files
    # standard deviations of all simulated summaries `(d_s,)`, float64; 1 where that is 0
    scale: Annotated[Tensor, "d"]
    low: Annotated[Tensor, "d"]  # their smallest values `(d_s,)`, float64
    high: Annotated[Tensor, "d"]  # their largest values `(d_s,)`, float64

    @classmethod
    def of(
        cls,
        summarise: Summariser,
        x: Tensor,
        s: Tensor,
        s_all: Tensor,
        generator: torch.Generator,
    ) -> "SummaryNoise | None":
        """Bootstrap some of the given simulations `(M, N, *event)` with summaries `(M, d_s)`.

        `s_all` are the summaries of all simulations. Returns None where the summary of resampled
        observations is not defined: where the function fails, or is not finite for most datasets.
        """
        num_obs, wanted = x.shape[1], min(MAX_DATASETS, max(100, len(s_all) // REPLICATES))
        affordable = MAX_BYTES // max(1, REPLICATES * x[:1].nbytes)
        x = x[: max(LEAST_DATASETS, min(wanted, affordable))]
        if num_obs < 2:
            return None
        try:
            drawn = _bootstrapped(summarise, x, generator)
        except Exception:  # anything that a user's function may raise on data with ties
            return None
        usable = torch.isfinite(drawn).all(2).all(1)
        if usable.sum() < max(2, len(x) / 2):
            return None
        drawn, s, s_all = drawn[usable], s[: len(x)][usable].double(), s_all.double()
        factor = (num_obs / (num_obs - 1) / (REPLICATES - 1)) ** 0.5
        deviation = factor * (drawn - drawn.mean(1, keepdim=True))
        return cls(s, deviation, scale_of(s_all), s_all.amin(0), s_all.amax(0))

    def covariance(self, s: Tensor) -> Tensor:
        """V(s), `(B, d_s, d_s)`, float64, of the simulations' number of observations."""
        most = min(MAX_NEIGHBOURS, max(LEAST_NEIGHBOURS, len(self.s) // 8), len(self.s))
        size = max(1, BLOCK_ELEMENTS // (most * self.deviation[0].numel()))
        parts = []
        for rows in s.double().split(size):
            near = torch.cdist(rows / self.scale, self.s / self.scale).topk(most, largest=False)
            deviation = self.deviation[near.indices].flatten(1, 2).double()
            parts.append(deviation.transpose(1, 2) @ deviation / most)
        return torch.cat(parts)


# A power of two, for which Sobol points are balanced. In one direction neighbours among 32 are
# mostly less than .15 standard deviations apart: less than the posterior's width until U is 40 V.
NUM_POINTS = 32


def standard_points(num: int, dim: int) -> Tensor:
    """Return points `(num, dim)`, float64, like a sample of a standard normal, and always the same.

    Their mean is 0 and their covariance (with divisor `num`) the identity, in the first `num - 1`
    dimensions at least.
    """
    uniform = SobolEngine(dim, scramble=True, seed=0).draw(num, dtype=torch.float64)
    edge = 1 / (4 * num)  # a draw may be 0, whose quantile is infinite
    q = torch.special.ndtri(uniform.clamp(edge, 1 - edge))
    q = q - q.mean(0)
    some = min(dim, num - 1)
    orthogonal, triangle = torch.linalg.qr(q[:, :some])
    sign = triangle.diagonal().sign()  # so that each dimension stays close to what it was
    return torch.cat([num**0.5 * sign * orthogonal, q[:, some:]], dim=1)


def spread(s_star: Tensor, excess: Tensor, noise: SummaryNoise, num: int = NUM_POINTS) -> Tensor:
    """Return summaries `(B, num, d_s)`, float64, with mean `s_star` and covariance U.

    None lies outside the range of simulated summaries, which `noise` knows and beyond which the
    posterior would extrapolate, unless `s_star` itself does.
    """
    s_star, scale = s_star.double()[:, None], noise.scale
    value, vector = torch.linalg.eigh(excess.double() / scale[:, None] / scale)
    root = (vector * value.clamp(min=0).sqrt()[:, None, :]) @ vector.transpose(1, 2)
    q = standard_points(num, s_star.shape[2]).to(s_star.device)
    s: Tensor = s_star + scale * (q @ root)
    return s.maximum(s_star.minimum(noise.low)).minimum(s_star.maximum(noise.high))
