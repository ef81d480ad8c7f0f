r"""An epidemic with a fluctuating reproduction number (appendix "SIR Task").

.. math::
    (\beta, \gamma) \sim \mathrm{U}\{0 < \gamma < \beta < 0.5\}, \qquad
    \dot S = -\gamma R_0 S I, \quad \dot I = \gamma R_0 S I - \gamma I, \quad \dot R = \gamma I,
    \quad dR_0 = \eta (\beta / \gamma - R_0) \, dt + \sigma \sqrt{|R_0|} \, dW_t .

An observation is the number of infected people on each of T days, :math:`X_t = 10{,}000 \, I_t`,
from day 0 with :math:`(S, I, R) = (0.999, 0.001, 0)`. Stepping the transmission rate
:math:`b = \gamma R_0` instead of :math:`R_0`,

.. math:: db = \eta (\beta - b) \, dt + \sigma \sqrt{\gamma |b|} \, dW_t ,

is the same Euler-Maruyama scheme, and stays well scaled where :math:`\gamma` is tiny.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, biject_to, constraints
from torch.distributions.transforms import IndependentTransform, Transform
from torch.nn.functional import logsigmoid

from mindist import checks
from mindist.tasks.task import SetNetwork, Task, lag_correlation, long_enough

BOUND = 0.5  # of beta; the paper's prior
INFECTED = 1e-3  # fraction of the population on day 0; the paper's initial state
SATURDAY, MONDAY = 1, 3  # days of the first week, day 0 being a Friday as in Ward et al.'s code
TINY = 1e-37  # a floor under logarithms and roots, near the smallest positive float32
BLOCK = 20_000  # trajectories stepped at once: what one step touches stays in the cache
THREADED = 2**15  # values from which on torch splits an operation between threads


class InTriangle(constraints.Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        beta, gamma = value.unbind(-1)
        return (gamma > 0) & (gamma < beta) & (beta < BOUND)


class NestedSigmoids(Transform):
    r"""Map the plane onto the triangle, for samplers that want unbounded parameters.

    .. math:: (u, v) \mapsto (\beta, \gamma) = c \, (\varsigma(u), \varsigma(u) \varsigma(v)),
        \qquad \varsigma(u) = 1 / (1 + e^{-u}) .
    """

    domain = codomain = constraints.real
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        outer, inner = x.sigmoid().unbind(-1)
        return BOUND * torch.stack([outer, outer * inner], -1)

    def _inverse(self, y: Tensor) -> Tensor:
        beta, gamma = y.unbind(-1)
        return torch.stack([beta / BOUND, gamma / beta], -1).logit()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithms `(..., 2)` of d beta / du and d gamma / dv."""
        return y.log() + logsigmoid(-x)


biject_to.register(InTriangle, lambda _: IndependentTransform(NestedSigmoids(), 1))


class UniformTriangle(Distribution):
    """The uniform distribution on 0 < gamma < beta < 0.5, for torch and for sbi."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = InTriangle()
    mean = torch.tensor([2 / 3, 1 / 3]) * BOUND
    variance = torch.full((2,), BOUND**2 / 18)

    def __init__(self) -> None:
        super().__init__(event_shape=Size((2,)), validate_args=False)

    def draw(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*shape, 2)` from a generator: two uniform numbers, the larger one first."""
        uniform = torch.rand((*shape, 2), generator=generator)
        theta = BOUND * uniform.sort(-1, descending=True).values
        outside = ~self.support.check(theta)  # an edge, about once in 10 million draws
        if outside.any():
            theta[outside] = self.draw((int(outside.sum()),), generator)
        return theta

    def sample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  (torch's own signature)
        return self.draw(Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:  # no error outside the support, as of torch's
        return torch.where(self.support.check(value), math.log(2 / BOUND**2), -math.inf)


# The inverse hyperbolic sine as a layer, a logarithm for large values of either sign.
class Asinh(nn.Module):
    forward = staticmethod(torch.asinh)


@dataclass(frozen=True)
class SIRTask(Task):
    """Infection and recovery rate of an epidemic, from daily counts of the infected.

    A dataset has by default `num_obs` trajectories of `num_days` counts, day 0 included, among
    `population` people. R_0 returns to beta / gamma at the speed `reversion` (eta), with
    `volatility` (sigma), in `steps_per_day` Euler-Maruyama steps.

    Example:
        >>> task, generator = SIRTask(), torch.Generator().manual_seed(0)
        >>> x = task.simulate(torch.tensor([[0.4, 0.1]]), generator=generator)
        >>> x.shape, task.summary(x).shape
        (torch.Size([1, 100, 365]), torch.Size([1, 6]))
        >>> (task.contaminate(x, 1.0, generator=generator) / x)[0, 0, :5]
        tensor([1.0000, 0.9500, 0.9500, 1.0684, 1.0000])
    """

    num_obs: int = 100
    num_days: int = 365
    population: float = 10_000.0
    reversion: float = 0.05
    volatility: float = 0.05
    steps_per_day: int = 1

    name: ClassVar[str] = "sir"
    dim_summary: ClassVar[int] = 6
    num_simulations: ClassVar[int] = 10_000
    card: ClassVar[str] = """\
SIR with stochastic reproduction number
  prior          (beta, gamma) uniform on the triangle 0 < gamma < beta < 0.5
  simulator      dS = -gamma R0 S I dt, dI = gamma R0 S I dt - gamma I dt, dR = gamma I dt,
                 dR0 = eta (beta / gamma - R0) dt + sigma sqrt|R0| dW; counts 10,000 I, daily
  summary        log mean, log median, log peak, log day of the peak, log day of half the total,
                 lag-1 correlation, of each trajectory, averaged over trajectories
  contamination  with probability epsilon, 5% of weekend counts are reported on the Monday after
  defaults       N = 100, T = 365, eta = sigma = 0.05, I = 0.001 on day 0; 10,000 simulations
  reference      Ward et al., Robust neural posterior estimation and statistical model criticism,
                 NeurIPS 2022"""

    def __post_init__(self) -> None:
        checks.positive(self.num_obs, "num_obs")
        checks.positive(self.steps_per_day, "steps_per_day")
        long_enough(self.num_days, "num_days", "daily counts")

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self.num_days,)

    @property
    def prior(self) -> UniformTriangle:
        return UniformTriangle()

    def sample_prior(self, num: int, generator: torch.Generator) -> Tensor:
        """Draw parameters `(num, 2)`, beta and gamma, from the prior."""
        return self.prior.draw((num,), generator)

    def simulate(
        self, theta: Tensor, num_observations: int | None = None, *, generator: torch.Generator
    ) -> Tensor:
        """Simulate daily counts `(B, N, T)` given parameters `(B, 2)`, beta and gamma."""
        theta = checks.parameters(theta, self.prior, f"0 < gamma < beta < {BOUND}").float()
        N = checks.size(num_observations, self.num_obs)
        x = torch.empty(len(theta), N, self.num_days)
        rows = max(1, BLOCK // N)
        for part, out in zip(theta.split(rows), x.split(rows), strict=True):
            beta, gamma = (column.repeat_interleave(N) for column in part.T)
            infected = self._infected(beta, gamma, generator)
            torch.mul(infected.T.unflatten(0, out.shape[:2]), self.population, out=out)
        return x

    def _infected(self, beta: Tensor, gamma: Tensor, generator: torch.Generator) -> Tensor:
        """Simulate infected fractions `(T, M)`, time first to write memory in order."""
        dt = 1 / self.steps_per_day
        decay, drift = 1 - self.reversion * dt, self.reversion * dt * beta
        noise, recovery = self.volatility * (dt * gamma).sqrt(), gamma * dt
        I = torch.empty(self.num_days, len(beta))  # noqa: E741
        I[0] = INFECTED
        S, b = torch.full_like(beta, 1 - INFECTED), beta
        for today, tomorrow in pairwise(I):
            tomorrow.copy_(today)
            for _ in range(self.steps_per_day):
                new = b * S * tomorrow * dt
                S -= new
                tomorrow.addcmul_(tomorrow, recovery, value=-1).add_(new)
                shock = noise * torch.randn(len(b), generator=generator)
                # sqrt|b| as |b| / sqrt|b|: torch's sqrt hands even short vectors to MKL's threads,
                # which is 100 times slower where the other cores are busy.
                b = b * decay + drift + shock * b.abs() * (b.abs() + TINY).rsqrt()
        return I

    @staticmethod
    def summary(x: Tensor) -> Tensor:
        """Return six statistics of each trajectory, averaged over `(B, N, T)` to `(B, 6)`.

        Log mean, log median (the lower one) and log peak of the counts, log day of the peak, log
        day on which half of the year's sum is passed, and lag-1 correlation. Days count from 1. A
        mean, median or peak of zero, which an observation may have, counts as 1e-37 people.
        """
        x = checks.datasets(x, x.shape[-1:])
        rows = max(1, (THREADED - 1) // x.shape[-1])
        statistics = torch.cat([_statistics(part) for part in x.flatten(0, 1).split(rows)])
        statistics[:, :5] = statistics[:, :5].clamp_min(TINY).log()
        return statistics.reshape(*x.shape[:2], 6).mean(1)

    def contaminate(
        self, x: Tensor, epsilon: float, *, withheld: float = 0.05, generator: torch.Generator
    ) -> Tensor:
        """Report a fraction of weekend counts on Monday; drop it where the series ends before."""
        x, rate = checks.datasets(x, self.event_shape), checks.fraction(withheld, "withheld")
        late = torch.rand(x.shape[:2], generator=generator) < checks.fraction(epsilon)
        result = x.clone()
        counts = result[late]
        for day in (SATURDAY, SATURDAY + 1):
            lacking = rate * counts[:, day::7]
            counts[:, day::7] -= lacking
            mondays = counts[:, MONDAY::7]
            mondays += lacking[:, : mondays.shape[1]]
        result[late] = counts
        return result

    def summary_network(self, width: int = 64) -> nn.Module:
        """Build a network `(B, N, T)` to `(B, 6)` on counts compressed by an inverse sinh."""
        return SetNetwork(self.num_days, width, self.dim_summary, Asinh())


def _statistics(x: Tensor) -> Tensor:
    """Return mean, median, peak, its day, half day, correlation of `(M, T)`, `(M, 6)`."""
    # Like all of a step, these operations stay on one thread; x.max(-1) or a logarithm would not.
    total = x.cumsum(-1)
    half_day = torch.searchsorted(total, total[:, -1:] / 2, right=True)[:, 0]
    half_day.clamp_max_(x.shape[-1] - 1)  # a total of zero has no half to pass
    sizes = (x.mean(-1), x.median(-1).values, x.amax(-1))
    columns = (*sizes, x.argmax(-1) + 1, half_day + 1, lag_correlation(x[:, :-1], x[:, 1:]))
    return torch.stack([column.to(x.dtype) for column in columns], -1)
