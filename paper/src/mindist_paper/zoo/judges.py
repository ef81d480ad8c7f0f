"""The judges: kinds of simulators that `models` does not have, on which nothing was chosen.

No rule and no constant of the default may change because of what it does here. Parameters and
twists have the meaning that they have in `models`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.special import i0e, i1e
from torch import Tensor

from mindist_paper.zoo import models as zoo
from mindist_paper.zoo.cases import Array, Bad, Case, Draw, Generator, Model, constant, twists
from mindist_paper.zoo.models import LEAST, Curve, Statistic, least_squares, noise, normal, uniform

Respond = Callable[[Array, Generator, str], Array]  # means (B, N), generator, twist to responses


def curve(mean: Curve, sd: float, respond: Respond | None = None) -> tuple[Draw, tuple[Case, ...]]:
    """Return how to draw a covariate in (0, 3) and a response, and the cases of a regression.

    Parameters reach the mean as `(d_theta, B, 1)`; bad responses are shifted in units of `sd`.
    """

    def draw(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
        t = 3 * rng.random((len(theta), num_obs)) ** (2 if twist == "small covariates" else 1)
        centre = mean(theta.T[..., None], t)
        y = respond(centre, rng, twist) if respond else centre + sd * noise(rng, t.shape, twist)
        return np.stack([t, y], -1)

    cases = zoo.line_cases(sd, lambda theta, x: mean(theta.T[..., None], x[..., 0]))
    others = (*cases[:6], *twists("small covariates", "laplace", "variance"))
    return draw, (Case("no response", 0.2, changed(lambda y, rng: 0 * y)), *others)


def changed(change: Callable[[Array, Generator], Array]) -> Bad:
    """Replace the last number of observations: a response, or a choice."""
    return lambda model, x, theta, rng: np.append(x[..., :-1], change(x[..., -1:], rng), axis=-1)


def line(p: Array, t: Array) -> Array:
    """Return a line, given its height at 1.5 and its slope."""
    return np.asarray(p[0] + p[1] * (t - 1.5))


def unlikely_at_5(model: Model, x: Array, theta: Array, rng: Generator) -> Array:
    """Put the covariate at 5, with the less probable choice."""
    choice = np.broadcast_to(line(theta.T[..., None], np.array(5.0)) < 0, x.shape[:2])
    return np.stack([np.full(x.shape[:2], 5.0), choice], -1)


def counted(mean: Array, rng: Generator, twist: str) -> Array:
    """Draw Poisson counts, or negative binomial ones of shape 5."""
    shape = np.array(5.0 if twist == "overdispersed" else 1e9)
    return rng.poisson(mean * zoo.multiplier(shape, mean.shape, rng, ""))


def chosen(logit: Array, rng: Generator, twist: str) -> Array:
    """Draw choices, 0 or 1, of which a tenth may be made at random."""
    p = 1 / (1 + np.exp(-logit))
    return 1.0 * (rng.random(p.shape) < (0.05 + 0.9 * p if twist == "lapses" else p))


def fitted(*basis: Statistic, of: Statistic = torch.as_tensor) -> Statistic:
    """Return least-squares coefficients of a function of responses on functions of covariates."""
    return lambda x: least_squares(torch.cat([*(f(x[..., :1]) for f in basis), of(x[..., 1:])], -1))


def race(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw seconds, and which of two diffusions came first: log drifts, log threshold."""
    shape, threshold = (len(theta), num_obs, 2), np.exp(theta[:, None, 2:])
    vary = zoo.multiplier(np.array(10.0 if twist == "drifts vary" else 1e9), shape, rng, "")
    times = rng.wald(threshold / (np.exp(theta[:, None, :2]) * vary), threshold**2)
    late = 0.1 * rng.random(shape[:2]) * (twist == "late by up to .1")
    return np.stack([0.2 + late + times.min(-1), times.argmin(-1)], -1)


def of_times(x: Tensor) -> Tensor:
    """Return moments of log seconds, the share of choices, and how both go together."""
    log, choice = x[..., :1].clamp_min(LEAST).log(), x[..., 1:]
    together = ((log - log.mean(1, keepdim=True)) * choice).mean(1)
    return torch.cat([zoo.MOMENTS(log), choice.mean(1), together], 1)


def covariance(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw pairs about 0: two log sd and the inverse hyperbolic tangent of the correlation."""
    return np.exp(theta[:, None, :2]) * zoo.correlated(theta[:, 2:], num_obs, rng, twist)


def angles(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw cosine and sine of von Mises angles: mean direction, log concentration."""
    kappa = np.broadcast_to(np.exp(theta[:, 1:]), (len(theta), num_obs))
    around = rng.vonmises(0, kappa)
    if twist == "wrapped normal":  # of the same mean resultant length
        around = np.sqrt(-2 * np.log(i1e(kappa) / i0e(kappa))) * rng.standard_normal(kappa.shape)
    return turned(theta[:, :1] + around)


def turned(angle: Array) -> Array:
    """Return cosine and sine beside each other."""
    return np.stack([np.cos(angle), np.sin(angle)], -1)


def at_angle(low: float, high: float) -> Bad:
    """Replace angles by uniform ones, counted from the mean direction."""
    return lambda model, x, theta, rng: turned(theta[:, :1] + rng.uniform(low, high, x.shape[:2]))


def prices(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw paths of 10 log prices that begin at 0: drift in a step, log volatility."""
    steps = noise(rng, (len(theta), num_obs, 10), twist)
    return (theta[:, None, :1] + np.exp(theta[:, None, 1:]) * steps).cumsum(-1)


def ricker(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw series of 20 counts of a population: log growth rate, log share that is counted."""
    population, series = np.ones((len(theta), num_obs)), []
    for e in noise(rng, (30, len(theta), num_obs), twist):
        population = population * np.exp(theta[:, :1] - population + 0.3 * e)
        series.append(rng.poisson(np.exp(theta[:, 1:]) * population))
    return np.stack(series[10:], -1)


def of_counts(x: Tensor) -> Tensor:
    """Return log mean, share of zeros, lag-1 autocorrelation and log sd over all series."""
    mean = x.mean((1, 2), keepdim=True)
    level = torch.cat([mean.clamp_min(0.01).log(), (x == 0).to(x).mean((1, 2), keepdim=True)], 1)
    return torch.cat([level[..., 0], zoo.autocovariances(x - mean)], 1)


def weibull(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw lifetimes with a log scale and a log shape; or lognormal ones, moments of logs equal."""
    log = np.log(rng.exponential(size=(len(theta), num_obs, 1)))
    if twist == "lognormal":
        log = -np.euler_gamma + np.pi / np.sqrt(6) * rng.standard_normal(log.shape)
    return np.exp(theta[:, None, :1] + np.exp(-theta[:, None, 1:]) * log)


def beta(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw beta proportions with the logit of their mean and a log precision."""
    p, precision = 1 / (1 + np.exp(-theta[:, None, :1])), np.exp(theta[:, None, 1:])
    precision = precision * (0.7 if twist == "overdispersed" else 1)
    x = rng.beta(p * precision, (1 - p) * precision, (len(theta), num_obs, 1))
    return x.round(1) if twist == "rounded to .1" else x


def mixture(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw from two groups of sd 1: the lower mean, the log gap, the logit of the upper share."""
    upper = rng.random((len(theta), num_obs, 1)) < 1 / (1 + np.exp(-theta[:, None, 2:]))
    return theta[:, None, :1] + np.exp(theta[:, None, 1:2]) * upper + noise(rng, upper.shape, twist)


def zeros(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw counts or 0: the logit of how often 0 takes their place, their log mean."""
    counts = zoo.counts(theta[:, 1:], num_obs, rng, twist)
    return counts * (rng.random(counts.shape) >= 1 / (1 + np.exp(-theta[:, None, :1])))


def student(theta: Array, num_obs: int, rng: Generator, twist: str) -> Array:
    """Draw Student observations of 4 degrees of freedom with a location and a log sd."""
    return zoo.location_scale(theta, num_obs, rng, twist or "t4")


def median_and_mad(x: Tensor) -> Tensor:
    """Return the median and the log median absolute deviation."""
    centre = x.quantile(0.5, 1)
    deviation = (x - centre[:, None]).abs().quantile(0.5, 1)
    return torch.cat([centre, deviation.clamp_min(LEAST).log()], 1)


def of_steps(x: Tensor) -> Tensor:
    """Return the mean step and the log sd of steps of series."""
    return zoo.MOMENTS(x.diff(dim=2, prepend=0 * x[..., :1]).flatten(1)[..., None])


CHOICES = (
    Case("reversed", 0.2, changed(lambda y, rng: 1 - y)),
    Case("guesses", 0.3, changed(lambda y, rng: rng.integers(0, 2, y.shape))),
    Case("always 1", 0.2, changed(lambda y, rng: np.ones_like(y))),
    *(zoo.COPIES, *twists("lapses")),
)
LABELS = (Case("unlikely, at 5", 0.1, unlikely_at_5), *CHOICES, *twists("small covariates"))
TIMES = (
    Case("5 to 20 times", 0.05, lambda m, x, theta, rng: x * rng.uniform((5, 1), (20, 1), x.shape)),
    Case("guesses at .2", 0.1, lambda m, x, t, rng: rng.integers(0, (1, 2), x.shape) + (0.2, 0)),
    *(*CHOICES[:4], *twists("drifts vary", "late by up to .1")),
)
ANGLES = (
    *(Case("opposite", 0.1, at_angle(3, 3.3)), Case("aside", 0.2, at_angle(1.4, 1.6))),
    Case("all directions", 0.3, at_angle(-np.pi, np.pi)),
    Case("clump at the centre", 0.2, at_angle(-0.01, 0.01)),
    *(zoo.ZEROS, zoo.COPIES, *twists("wrapped normal")),
)
PARTS = (
    *(Case("ones", 0.05, constant(1)), zoo.ZEROS, zoo.NEAR, zoo.ASIDE, zoo.CENTRE, zoo.COPIES),
    Case("uniform", 0.3, lambda model, x, theta, rng: rng.random(x.shape)),
    *twists("overdispersed", "rounded to .1"),
)
SERIES = (*zoo.SERIES[:-1], *twists("laplace"))  # exp(t3) has no mean
LIFETIMES = (*zoo.TAIL, zoo.COPIES, *twists("lognormal"))
GROUPS = (*zoo.CLUSTERS, zoo.MANY, zoo.CENTRE, zoo.COPIES, *twists("t3"))
COUNTS = (*zoo.COUNT, zoo.COPIES, *twists("overdispersed"))
OF_ZEROS = zoo.joined(lambda x: (x == 0).to(x).mean(1), zoo.COUNT_MOMENTS)
PRODUCTS = zoo.joined(zoo.log_sd, zoo.correlation)
LINE, SQUARES = fitted(torch.as_tensor), fitted(torch.as_tensor, torch.square)
LOG_LINE = fitted(torch.as_tensor, of=lambda y: (y + 0.5).clamp_min(LEAST).log())
LOGS = fitted(lambda t: t.clamp_min(0.05).log(), lambda t: t.clamp_min(0.05).log().square())
LABELLED = curve(line, 0.5, chosen)[0]
COUNTED = curve(lambda p, t: np.exp(line(p, t)), 2.0, counted)
COUNTED_CASES = (*COUNTED[1][:-3], *twists("small covariates", "overdispersed"))
PARABOLA = curve(lambda p, t: line(p, t) + p[2] * (t - 1.5) ** 2, 0.5)
SATURATION = curve(lambda p, t: np.exp(p[0]) * t / (np.exp(p[1]) + t), 0.1)
DECAY = curve(lambda p, t: np.exp(p[0] - np.exp(p[1]) * t), 0.1)
_ALL = (
    Model("logistic-regression", normal([0, 1], [1, 0.7]), LABELLED, LINE, LABELS, 200),
    Model(
        *("poisson-regression", normal([1.5, 0], [0.5, 0.5]), COUNTED[0], LOG_LINE, COUNTED_CASES),
        possible=lambda x: np.append(x[..., :1], zoo.whole(x[..., 1:]), axis=-1),
    ),
    Model("quadratic", normal([0] * 3, [1] * 3), PARABOLA[0], SQUARES, PARABOLA[1], 50),
    Model("michaelis-menten", normal([1, 0], [0.5, 0.5]), SATURATION[0], LOGS, SATURATION[1]),
    Model("decay", normal([1, 0], [0.5, 0.5]), DECAY[0], SQUARES, DECAY[1]),
    Model("race", normal([0.7, 0.3, 0], [0.4, 0.4, 0.3]), race, of_times, TIMES, 200),
    Model("covariance", normal([0, 0, 0.3], [0.7, 0.7, 0.5]), covariance, PRODUCTS, zoo.PAIRS),
    Model("von-mises", normal([0, 1], [1, 0.5]), angles, zoo.mean, ANGLES),
    Model("prices", normal([0, -1], [0.2, 0.5]), prices, of_steps, zoo.SERIES, 50),
    Model("ricker", uniform([1.5, 0.5], [3.5, 2.5]), ricker, of_counts, SERIES, 50, zoo.whole),
    Model("weibull", normal([0, 0.4], [0.7, 0.4]), weibull, zoo.LOG_MOMENTS, LIFETIMES),
    Model("beta", normal([0, 2], [1, 0.6]), beta, zoo.MOMENTS, PARTS, 100, lambda x: x.clip(0, 1)),
    Model("mixture", normal([0, 1.2, 0], [2, 0.3, 0.7]), mixture, zoo.quantiles(10), GROUPS, 200),
    Model("zero-inflated", normal([-1, 1.5], [0.7, 0.6]), zeros, OF_ZEROS, COUNTS, 100, zoo.whole),
    Model("student-mad", zoo.BOTH, student, median_and_mad, zoo.SCALE, 50),
)
JUDGES = {model.name: model for model in _ALL}
