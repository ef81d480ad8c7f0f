r"""Log-probabilities of a mixture whose components leak outside the prior's support.

.. math::
    \log p(\theta \mid s) = \log \sum_i w_i\, q_i(\theta \mid s) / Z_i(s)
    \quad \text{inside the support, } -\infty \text{ outside,} \qquad
    Z_i(s) = \Pr_{q_i(\theta \mid s)}(\theta \in \mathrm{supp}) .

:math:`Z_i(s)` is the acceptance rate of a fixed number of draws. The draws come from a seed, so a
log-probability is a function of its arguments and remembering :math:`Z_i(s)` changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors.backend import Component
from mindist.posteriors.rejection import Budget

# Acceptances that make Z(s) known to 10%, that is a log-probability to 0.1.
MIN_ACCEPTED = 100


@dataclass(frozen=True)
class LeakageOptions:
    """The keywords of sbi's `leakage_correction`.

    Arguments:
        num_rejection_samples: Draws from which Z(s) is estimated; the standard error of log Z(s)
            is `sqrt((1 - Z) / (Z * num_rejection_samples))`.
        rejection_sampling_batch_size: Draws given to the network at once.
        show_progress_bars: Whether the library shows its progress bars.
        force_update: Accepted and without effect: the estimate is a function of its seed.
    """

    num_rejection_samples: int = 10_000
    rejection_sampling_batch_size: int = 10_000
    show_progress_bars: bool = False
    force_update: bool = False

    def __post_init__(self) -> None:
        checks.positive(self.num_rejection_samples, "num_rejection_samples")
        checks.positive(self.rejection_sampling_batch_size, "rejection_sampling_batch_size")
        checks.flag(self.show_progress_bars, "show_progress_bars")
        checks.flag(self.force_update, "force_update")

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> LeakageOptions:
        """From sbi's keywords, or None for the defaults."""
        allowed = [field.name for field in fields(cls)]
        if given is not None and not (isinstance(given, Mapping) and set(given) <= set(allowed)):
            raise TypeError(
                f"leakage_correction_params: expected a dict with any of {', '.join(allowed)}, got "
                f"{given!r}."
            )
        return cls(**(given or {}))


@dataclass(frozen=True)
class Leakage:
    """An estimate of Z(s), the mass inside the prior's support, for B datasets.

    Arguments:
        accepted: How many draws were inside, `(B,)`.
        draws: How many were drawn, `(B,)`.
    """

    accepted: Tensor
    draws: Tensor

    @property
    def log_mass(self) -> Tensor:
        """log Z(s), `(B,)`; where nothing was accepted, an upper limit."""
        return (self.accepted.clamp(min=1) / self.draws).log()

    @property
    def resolved(self) -> Tensor:
        """Whether Z(s) is known to about 10%, `(B,)`."""
        return self.accepted >= self.draws.clamp(max=MIN_ACCEPTED)


@torch.no_grad()
def estimate_leakage(component: Component, s: Tensor, num_draws: int, budget: Budget) -> Leakage:
    """Z(s) for each summary of `(B, d_s)` from `num_draws` draws, and more where it is small."""
    max_draws = max(num_draws, budget.max_draws(MIN_ACCEPTED))
    accepted = torch.zeros(len(s), dtype=torch.long, device=s.device)
    draws = torch.zeros_like(accepted)
    active, total = torch.arange(len(s), device=s.device), 0
    while len(active):
        wanted = num_draws if total < num_draws else max_draws
        size = min(budget.batch(len(active)), wanted - total)
        theta = component.draw(size, s[active], show_progress_bars=budget.show_progress_bars)
        accepted[active] += component.in_support(theta).sum(0)
        draws[active] += size
        total += size
        if total >= num_draws:
            active = active[(accepted[active] < MIN_ACCEPTED) & (draws[active] < max_draws)]
    return Leakage(accepted, draws)


def log_prob_mixture(
    components: Sequence[Component],
    theta: Tensor,
    s: Tensor,
    leakages: Sequence[Leakage | None],
    options: Mapping[str, Any],
) -> Tensor:
    """log p, `(S, B)`, of parameters `(S, B, d_theta)` given summaries `(B, d_s)`.

    Arguments:
        components: The mixture.
        theta: Parameters.
        s: Summaries.
        leakages: For each component Z(s), or None to leave its density as it is.
        options: Passed to `Component.log_density`.
    """
    terms = []
    for component, leakage in zip(components, leakages, strict=True):
        log_q = component.log_density(theta, s, **options)
        log_q = log_q if leakage is None else log_q - leakage.log_mass
        inside = component.in_support(theta)
        terms.append(log_q.masked_fill(~inside, -torch.inf))
    if len(terms) == 1:
        return terms[0]
    log_w = terms[0].new_tensor([component.weight for component in components]).log()
    return torch.logsumexp(torch.stack(terms, -1) + log_w, -1)


def leakage_message(leakage: Leakage, datasets: Tensor | None = None) -> str:
    """What to tell a user whose log-probabilities could not be normalised well.

    Arguments:
        leakage: Of B datasets.
        datasets: Their places `(B,)` in what the user asked about; by default the first B.
    """
    worst = int(leakage.accepted.argmin())
    accepted, draws = int(leakage.accepted[worst]), int(leakage.draws[worst])
    place = worst if datasets is None else int(datasets[worst])
    where = f" for dataset {place}" if len(leakage.draws) > 1 or place else ""
    effect = "log_prob is a lower bound, right up to one constant"
    if accepted:
        effect = f"log_prob has a standard error of {accepted**-0.5:.2f}, the same for all theta"
    return (
        f"Only {accepted} of {draws} draws lie inside the support of the prior{where}: {effect}. "
        "The query is far from the summaries that the posterior was trained on, or the posterior "
        "leaks there. Look at adapt(x), raise num_rejection_samples in leakage_correction_params, "
        "or pass norm_posterior=False for densities that are not normalised."
    )


__all__ = [
    "Leakage",
    "LeakageOptions",
    "estimate_leakage",
    "leakage_message",
    "log_prob_mixture",
]
