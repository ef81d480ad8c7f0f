"""The models of the zoo: priors, simulators, summaries, and the cases of each.

Scales, rates and shapes are parameters on the log scale. A twist changes one assumption for all
observations and keeps the meaning of the parameters: noise of another family has the same variance,
counts and waiting times have the same mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

from mindist_paper.zoo.cases import Array, Bad, Case, Draw, Model, away, constant, copies, twists

Statistic = Callable[[Tensor], Tensor]
Curve = Callable[[Array, Array], Array]  # parameters and covariates to means, or to a part of them
LEAST = 1e-6  # variances and positive observations below this count as this, so that logs exist

# ------------------------------------------------------------------------ priors, noise, summaries


def normal(mean: Sequence[float], sd: Sequence[float]) -> Callable[[int, Generator], Array]:
    """Return an independent normal prior."""
    return lambda n, rng: rng.normal(mean, sd, (n, len(mean)))


def uniform(low: Sequence[float], high: Sequence[float]) -> Callable[[int, Generator], Array]:
    """Return an independent uniform prior."""
    return lambda n, rng: rng.uniform(low, high, (n, len(low)))


def noise(rng: Generator, shape: tuple[int, ...], family: str) -> Array:
    """Draw noise of variance 1, normal unless the family is named here; or of variance 1.5."""
    if family in ("t3", "t4"):
        freedom = int(family[1])
        return np.sqrt(1 - 2 / freedom) * rng.standard_t(freedom, shape)
    if family == "laplace":
        return rng.laplace(0, np.sqrt(0.5), shape)
    if family == "logistic":
        return rng.logistic(0, np.sqrt(3) / np.pi, shape)
    return rng.normal(0, np.sqrt(1.5) if family == "variance" else 1, shape)


def mean(x: Tensor) -> Tensor:
    """Return the sample mean of each coordinate."""
    return x.mean(1)


def log_sd(x: Tensor) -> Tensor:
    """Return the log standard deviation of each coordinate."""
    return 0.5 * x.var(1, correction=0).clamp_min(LEAST).log()


def of_logs(statistic: Statistic) -> Statistic:
    """Return a statistic of the logarithms of positive observations."""
    return lambda x: statistic(x.clamp_min(LEAST).log())


def joined(*statistics: Statistic) -> Statistic:
    """Return several statistics beside each other."""
    return lambda x: torch.cat([statistic(x) for statistic in statistics], 1)


def quantiles(num: int) -> Statistic:
    """Return equally spaced sample quantiles."""
    levels = (torch.arange(num) + 0.5) / num
    return lambda x: torch.quantile(x[..., 0], levels.to(x), dim=1).T


def line(sd: float | None = None, num_covariates: int = 1) -> Draw:
    """Draw covariates and a response; the log noise sd is the last parameter where sd is None."""

    def draw(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
        shape = (len(theta), num_obs, num_covariates)
        covariates = rng.standard_normal(shape) + (twist == "covariates + 1")
        y = theta[:, :1] + slope(theta, covariates)
        y = y + noise_sd(theta, sd) * noise(rng, shape[:2], twist)
        return np.concatenate([covariates, y[..., None]], -1)

    return draw


def slope(theta: Array, covariates: Array) -> Array:
    """Return what covariates `(B, N, d)` add to the intercept, the first parameter."""
    added: Array = (covariates * theta[:, None, 1 : 1 + covariates.shape[2]]).sum(-1)
    return added


def noise_sd(theta: Array, sd: float | None) -> Array:
    """Return the noise's sd of each dataset, `(B, 1)`."""
    return np.exp(theta[:, -1:]) if sd is None else np.full((len(theta), 1), sd)


def least_squares(x: Tensor, *, scale: bool = False) -> Tensor:
    """Return intercept and slopes, and perhaps the log residual sd; a tiny ridge for copies."""
    x, y = x[..., :-1].double(), x[..., -1:].double()
    design = torch.cat([torch.ones_like(y), x], -1)
    gram = design.mT @ design + LEAST * torch.eye(design.shape[-1])
    slopes = torch.linalg.solve(gram, design.mT @ y)
    rest = (y - design @ slopes).square().sum(1) / max(1, y.shape[1] - design.shape[-1])
    parts = [slopes[..., 0]] + [0.5 * rest.clamp_min(LEAST).log()] * scale
    return torch.cat(parts, 1).float()


def line_cases(sd: float | None = None, mean: Curve = slope) -> tuple[Case, ...]:
    """Return responses shifted in units of the noise, leverage points, copies, and twists."""

    def moved(low: float, high: float, covariate: float | None = None, sign: int = 1) -> Bad:
        def bad(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
            y = x.copy()
            if covariate is not None:
                y[..., :-1] = rng.normal(covariate, 0.2, y[..., :-1].shape)
                y[..., -1] += mean(theta, y[..., :-1]) - mean(theta, x[..., :-1])
            shift = rng.uniform(low, high, x.shape[:2]) * rng.choice((sign, 1), x.shape[:2])
            y[..., -1] += noise_sd(theta, sd) * shift
            return y

        return bad

    return (
        Case("shifted by 10 to 50 sd", 0.05, moved(10, 50)),
        Case("shifted by 10 sd", 0.1, moved(10, 10)),
        Case("shifted by 3 sd", 0.2, moved(3, 3)),
        Case("shifted by ±4 sd", 0.3, moved(4, 4, sign=-1)),
        Case("leverage at 5, off by 20 sd", 0.1, moved(20, 20, 5)),
        Case("copies of one", 0.15, copies),
        *twists("covariates + 1", "laplace", *["variance"] * (sd is not None)),
    )


def location(sd: float = 1.0, family: str = "normal") -> Draw:
    """Draw vectors with the parameters as their mean."""

    def draw(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
        shape = (len(theta), num_obs, theta.shape[1])
        return theta[:, None] + sd * noise(rng, shape, twist or family)

    return draw


def location_scale(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw normal observations with a log sd, the last parameter, about the first or about 0."""
    centre = theta[:, None, :1] * (theta.shape[1] > 1)
    return centre + np.exp(theta[:, None, -1:]) * noise(rng, (len(theta), num_obs, 1), twist)


def correlated(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw pairs of variance 1, given the inverse hyperbolic tangent of their correlation."""
    rho, z = np.tanh(theta), noise(rng, (len(theta), num_obs, 2), twist)
    return np.stack([z[..., 0], rho * z[..., 0] + np.sqrt(1 - rho**2) * z[..., 1]], -1)


def correlation(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent of the sample correlation."""
    x = x - x.mean(1, keepdim=True)
    squares = x.square().sum(1).prod(-1).clamp_min(LEAST)
    rho = x.prod(-1).sum(1) / squares.sqrt()
    return torch.atanh(rho.clamp(-0.999, 0.999))[:, None]


def multiplier(shape: Array, size: tuple[int, ...], rng: Generator, twist: str) -> Array:
    """Draw gamma variables of mean 1, or lognormal ones of the same variance."""
    if twist == "lognormal":
        variance = np.log1p(1 / shape)
        return np.exp(np.sqrt(variance) * rng.standard_normal(size) - variance / 2)
    return rng.gamma(shape, 1 / shape, size)


def waiting(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw gamma waiting times with a log mean and a log shape; exponential without a shape."""
    shape = np.exp(theta[:, None, 1:].sum(-1, keepdims=True))
    shape = shape * (0.7 if twist == "overdispersed" else 1)
    return np.exp(theta[:, None, :1]) * multiplier(shape, (len(theta), num_obs, 1), rng, twist)


def pareto(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw sizes above 1 with a log tail index, or with gamma logarithms of the same mean."""
    shape = 2.0 if twist == "curved tail" else 1.0
    return np.exp(rng.gamma(shape, 1 / shape, (len(theta), num_obs, 1)) / np.exp(theta[:, None]))


def lognormal(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw observations whose logarithms have a location and a log sd."""
    return np.exp(location_scale(theta, num_obs, rng, twist))


def counts(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw negative binomial counts with log mean and log shape, Poisson ones without a shape."""
    rate, shape = np.exp(theta[:, None, :1]), np.exp(theta[:, None, 1:])
    if theta.shape[1] == 1:
        shape = np.full_like(rate, 5.0 if twist == "overdispersed" else 1e9)
    return rng.poisson(rate * multiplier(shape, (len(theta), num_obs, 1), rng, twist))


def whole(x: Array) -> Array:
    """Return the nearest counts."""
    return np.maximum(np.round(x), 0)


def items(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw answers to 8 questions with the respondents' mean ability and a log discrimination."""
    ability = theta[:, :1] + noise(rng, (len(theta), num_obs), twist)
    logit = np.exp(theta[:, 1:, None]) * (ability[..., None] - np.linspace(-1.5, 1.5, 8))
    return rng.random(logit.shape) < 1 / (1 + np.exp(-logit))


UNITS = 10 ** np.linspace(-2, 2, 20)


def mixed_units(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw 20 coordinates of correlation .5 in units of .01 to 100: level, trend, log noise sd."""
    level, trend, log_sd = theta.T[:, :, None, None]
    common = noise(rng, (len(theta), num_obs, 1), twist)
    z = np.sqrt(0.5) * (common + noise(rng, (len(theta), num_obs, 20), twist))
    return UNITS * (level + trend * np.linspace(-1, 1, 20) + np.exp(log_sd) * z)


def in_units(x: Tensor) -> Tensor:
    """Return the means of all coordinates, and the mean of their log sd in their units."""
    return torch.cat([x.mean(1), log_sd(x / torch.tensor(UNITS).to(x)).mean(1, keepdim=True)], 1)


def autoregression(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw stationary AR(1) series of length 20 with a coefficient and a log innovation sd."""
    phi, sd = theta[:, :1], np.exp(theta[:, 1:])
    z = sd * noise(rng, (20, len(theta), num_obs), twist)
    series = [z[0] / np.sqrt(1 - phi**2)]
    for innovation in z[1:]:
        series.append(phi * series[-1] + innovation)
    return np.stack(series, -1)


def autocovariances(x: Tensor) -> Tensor:
    """Return the lag-1 autocorrelation and the log sd over all series."""
    c0 = x.square().mean((1, 2)).clamp_min(LEAST)
    return torch.stack([(x[..., 1:] * x[..., :-1]).mean((1, 2)) / c0, 0.5 * c0.log()], 1)


def spikes(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
    """Add a spike of 10 sd of the series at one time of each."""
    hit = rng.integers(0, x.shape[2], x.shape[:2])[..., None] == np.arange(x.shape[2])
    return x + 10 * hit * x.std((1, 2), keepdims=True)


LEARNED_PRIOR = normal([0, -0.3], [1, 0.7])  # of a location and a log sd
NUM_STEPS = 1_000


@lru_cache
def deep_sets() -> nn.ModuleList:
    """Train a DeepSets regression of location and log sd on 4,000 simulations in a few seconds."""
    rng = np.random.default_rng(0)
    theta = LEARNED_PRIOR(4_000, rng)
    x = torch.tensor(location_scale(theta, 100, rng, "")).float()
    target = torch.tensor(theta / theta.std(0)).float()
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        each = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 32))
        nets = nn.ModuleList([each, nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 2))])
        optimiser = torch.optim.Adam(nets.parameters())
        for step in range(NUM_STEPS):
            optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / NUM_STEPS)
            optimiser.zero_grad()
            rows = torch.randint(len(x), (64,))
            (nets[1](nets[0](x[rows]).mean(1)) - target[rows]).square().mean().backward()
            optimiser.step()
    return nets.requires_grad_(False)


def learned(x: Tensor) -> Tensor:
    """Return the output of the trained network, which sees the mean of observations' features."""
    each, every = deep_sets()
    s: Tensor = every(each(x.float()).mean(1))
    return s


# ------------------------------------------------------------------------ the registry

GROSS = Case("gross, 10 to 50 sd", 0.05, away(10, 50))
FAR = Case("cluster at 6 sd", 0.1, away(6))
NEAR = Case("cluster at 3 sd", 0.2, away(3))
ASIDE = Case("clump at 1 sd", 0.15, away(1, width=0.02))
CENTRE = Case("clump at the centre", 0.2, away(0, width=0.02))
ZEROS = Case("zeros", 0.2, constant(0))
COPIES = Case("copies of one", 0.15, copies)
LOW = Case("-3 sd of logs", 0.1, away(-3, log=True))
MANY, MORE = replace(GROSS, epsilon=0.3), replace(FAR, epsilon=0.2)
CLUSTERS = (GROSS, FAR, NEAR, Case("symmetric at 4 sd", 0.2, away(4, both=True)))
LOCATION = (*CLUSTERS, MANY, ASIDE, *twists("t3", "variance"))
SCALE = (*CLUSTERS, MANY, CENTRE, *twists("laplace"))
SMALL = (replace(GROSS, epsilon=0.1), MORE, *SCALE[2:])
PAIRS = (*CLUSTERS, CENTRE, *twists("t3"))
VECTORS = (*CLUSTERS, replace(FAR, epsilon=0.3), MANY, ASIDE, *twists("t3"))
POSITIVE = (GROSS, FAR, NEAR, replace(GROSS, epsilon=0.2), CENTRE)
TAIL = (
    GROSS,
    Case("cluster at 6 sd of logs", 0.1, away(6, log=True)),
    Case("cluster at 3 sd of logs", 0.2, away(3, log=True)),
    Case("clump at the centre", 0.2, away(0, width=0.02, log=True)),
    Case("clump at -.8 sd of logs", 0.15, away(-0.8, width=0.02, log=True)),
)
COUNT = (GROSS, MORE, NEAR, ZEROS, CENTRE)
ITEMS = (
    Case("all ones", 0.1, constant(1)),
    Case("all ones", 0.3, constant(1)),
    Case("guesses", 0.3, lambda model, x, theta, rng: rng.integers(0, 2, x.shape)),
    Case("reversed", 0.2, lambda model, x, theta, rng: 1 - x),
    *(ZEROS, COPIES, *twists("t3", "variance")),
)
SERIES = (
    Case("ten times as large", 0.05, lambda model, x, theta, rng: 10 * x),
    Case("spikes of 10 sd", 0.2, spikes),
    Case("level + 3 sd", 0.1, lambda m, x, theta, rng: x + 3 * x.std((1, 2), keepdims=True)),
    Case("order lost", 0.2, lambda model, x, theta, rng: rng.permuted(x, axis=2)),
    *(ZEROS, COPIES, *twists("t3")),
)
EXPONENTIAL = (*POSITIVE, ZEROS, *twists("overdispersed", "lognormal"))
LOGNORMAL = (*TAIL, *twists("laplace"))
GAMMA = (*POSITIVE, LOW, *twists("lognormal"))
POISSON = (*COUNT, *twists("overdispersed"))
NEGATIVE_BINOMIAL = (*COUNT, *twists("lognormal"))
BOTH = normal([0, -0.3], [3, 0.7])  # a location and a log sd
RATES = normal([2, 0.7], [0.7, 0.5])  # a log mean and a log shape
T4, LOGISTIC = location(2**0.5, "t4"), location(np.pi / 3**0.5, "logistic")
MOMENTS = joined(mean, log_sd)
MEANS = joined(mean, of_logs(mean))
LOG_MOMENTS = of_logs(joined(mean, lambda x: x.std(1, correction=0)))
COUNT_MOMENTS = joined(lambda x: x.mean(1).clamp_min(0.01).log(), log_sd)
LINE_SCALE = partial(least_squares, scale=True)
_ALL = (
    Model("line", normal([0, 0], [1, 1]), line(0.1), least_squares, line_cases(0.1)),
    Model("line-scale", normal([0, 0, -1], [1, 1, 0.5]), line(), LINE_SCALE, line_cases()),
    Model("line-two", normal([0] * 3, [1] * 3), line(0.3, 2), least_squares, line_cases(0.3)),
    Model("location", normal([0], [3]), location(), mean, LOCATION),
    Model("location-10", normal([0], [10]), location(), mean, LOCATION),
    Model("location-30", normal([0], [30]), location(), mean, LOCATION),
    Model("student", normal([0], [3]), T4, mean, LOCATION),
    Model("logistic-median", normal([0], [5]), LOGISTIC, lambda x: x.quantile(0.5, 1), LOCATION),
    Model("scale", normal([0], [1]), location_scale, log_sd, SCALE),
    Model("location-scale", BOTH, location_scale, MOMENTS, SCALE),
    Model("location-scale-n10", BOTH, location_scale, MOMENTS, SMALL, num_obs=10),
    Model("location-scale-n30", BOTH, location_scale, MOMENTS, SMALL, num_obs=30),
    Model("location-scale-n300", BOTH, location_scale, MOMENTS, SCALE, num_obs=300),
    Model("quantiles-10", BOTH, location_scale, quantiles(10), SCALE),
    Model("quantiles-50", BOTH, location_scale, quantiles(50), SCALE),
    Model("learned", LEARNED_PRIOR, location_scale, learned, SCALE),
    Model("correlation", normal([0.3], [0.6]), correlated, correlation, PAIRS),
    Model("exponential", normal([0], [0.7]), waiting, mean, EXPONENTIAL),
    Model("gamma", normal([0, 0.7], [0.7, 0.5]), waiting, MEANS, GAMMA),
    Model("pareto", normal([0.7], [0.4]), pareto, of_logs(mean), TAIL + twists("curved tail")),
    Model("lognormal", normal([0, -0.5], [1, 0.4]), lognormal, LOG_MOMENTS, LOGNORMAL),
    Model("poisson", uniform([0], [3]), counts, mean, POISSON, possible=whole),
    Model("negative-binomial", RATES, counts, COUNT_MOMENTS, NEGATIVE_BINOMIAL, possible=whole),
    Model("binary-items", normal([0, 0], [1, 0.4]), items, mean, ITEMS),
    Model("mixed-units", normal([0] * 3, [1, 1, 0.5]), mixed_units, in_units, VECTORS),
    Model("mean-20", normal([0] * 20, [1] * 20), location(), mean, VECTORS),
    Model("mean-50", normal([0] * 50, [1] * 50), location(), mean, VECTORS),
    Model("ar1", uniform([-0.9, -1], [0.9, 1]), autoregression, autocovariances, SERIES),
)
MODELS = {model.name: model for model in _ALL}
