r"""Densities cut to the support of the prior: accept and reject, and normalise, with an end.

A neural density leaks: it knows nothing of the prior's bounds. Rejecting draws outside leaves

.. math:: p(\theta \mid s) = q(\theta \mid s)\, 1[\theta \in \mathrm{supp}] \,/\, Z(s) , \qquad
    Z(s) = \Pr_{q(\theta \mid s)}(\theta \in \mathrm{supp}) .

Far outside the training data :math:`Z(s)` can be practically zero, and a loop that waits for enough
accepted draws never ends. Here it ends after a number of draws, and earlier where the acceptance
rate is too low to get there. Stopping depends on counts only: what was accepted are independent
draws. For log-probabilities :math:`Z(s)` is their acceptance rate.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from mindist import checks
from mindist.posteriors.backend import Component

# Never give up before this many draws, the size of sbi's sampling batch: one sample at a rate of
# .001 is then missed with probability e^-10.
MIN_DRAWS = 10_000
# Rows (draws x datasets) given to a network at once: sbi's own limit for batched sampling.
MAX_ROWS = 100_000
# Width of the upper limit on an acceptance rate, in standard errors: with no acceptance in n draws
# the limit is 9/n, which a dataset that could still make it exceeds with probability e^-9 = .0001.
GIVE_UP_ERRORS = 3.0
# Draws from the prior, the nearest of which stands for a draw where none is inside.
NEAREST = 10_000
MIN_ACCEPTED = 100  # which make Z(s) known to 10%, that is a log-probability to 0.1


@dataclass(frozen=True)
class Budget:  # how to draw and when to stop: the keywords of `RobustPosterior.sample`, and a clock
    max_draws_per_sample: int
    batch_size: int = 10_000
    max_seconds: float | None = None
    raise_on_timeout: bool = False
    show_progress_bars: bool = False
    reject: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    nearest: bool = True
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        checks.positive(self.max_draws_per_sample, "max_draws_per_sample")
        checks.positive(self.batch_size, "max_sampling_batch_size")
        if self.max_seconds is not None:
            said = "a number of seconds of at least 0, or None for no limit"
            checks.number(self.max_seconds, "max_sampling_time", said, lambda t: t >= 0)
        checks.flag(self.show_progress_bars, "show_progress_bars")
        checks.flag(self.reject, "reject_outside_prior")
        checks.flag(self.nearest, "nearest_if_none")

    def max_draws(self, num_samples: int) -> int:
        return max(MIN_DRAWS, self.max_draws_per_sample * num_samples)

    def batch(self, num_datasets: int) -> int:
        rows = self.batch_size if num_datasets == 1 else MAX_ROWS // num_datasets
        return max(1, min(self.batch_size, rows))

    def expired(self) -> bool:
        return self.max_seconds is not None and time.monotonic() > self.started + self.max_seconds


@dataclass(frozen=True)
class Drawn:
    samples: Tensor  # accepted, as many as every dataset has, (k, B, d_theta)
    requested: int
    obtained: Tensor  # accepted, at most `requested`, (B,)
    accepted: Tensor  # of `draws`, inside the prior's support, (B,)
    draws: Tensor  # (B,)
    num_components: int = 1

    @property
    def complete(self) -> bool:
        return self.samples.shape[0] == self.requested

    @classmethod
    def joined(cls, parts: "Sequence[Drawn]", order: Tensor) -> "Drawn":
        """Join outcomes about different datasets, and put these in the given order."""
        few, first = min(len(part.samples) for part in parts), parts[0]
        samples = torch.cat([part.samples[:few] for part in parts], dim=1)[:, order]
        obtained, accepted, draws = (torch.cat(column)[order] for column in _counts(parts))
        return cls(samples, first.requested, obtained, accepted, draws, first.num_components)


def _counts(parts: Sequence[Drawn]) -> Iterable[Any]:
    return zip(*((part.obtained, part.accepted, part.draws) for part in parts), strict=True)


def draw_mixture(components: Sequence[Component], s: Tensor, num: int, budget: Budget) -> Drawn:
    """Draw from densities, each truncated on its own as in an sbi ensemble, one after the other."""
    if len(components) == 1:
        return draw_truncated(components[0], s, num, budget)
    weights = torch.tensor([component.weight for component in components])
    chosen = torch.multinomial(weights, num, replacement=True)
    pairs = zip(components, chosen.bincount(minlength=len(components)).tolist(), strict=True)
    parts = [draw_truncated(component, s, count, budget) for component, count in pairs if count]
    samples = torch.cat([part.samples for part in parts])
    obtained, accepted, draws = (torch.stack(column).sum(0) for column in _counts(parts))
    return Drawn(samples, num, obtained, accepted, draws, len(components))


@torch.no_grad()
def draw_truncated(component: Component, s: Tensor, num_samples: int, budget: Budget) -> Drawn:
    """Draw until each summary of `(B, d_s)` has `num_samples` (> 0) accepted, or never will."""
    # The sizes of batches follow sbi's: for one dataset the same seed gives the same samples.
    num_datasets, max_draws = len(s), budget.max_draws(num_samples)
    accepted = torch.zeros(num_datasets, dtype=torch.long, device=s.device)
    draws = torch.zeros_like(accepted)
    active = torch.arange(num_datasets, device=s.device)
    samples, size, total = torch.empty(0, device=s.device), num_samples, 0
    progress = tqdm(total=num_samples, desc="sampling", disable=not budget.show_progress_bars)
    while len(active) and not (total and budget.expired()):
        size = min(size, budget.batch(len(active)), max_draws - total)
        theta = component.draw(size, s[active], **budget.options)
        if not total:
            samples = theta.new_empty(num_samples, num_datasets, *theta.shape[2:])
        inside = component.in_support(theta)
        inside |= not budget.reject
        place = accepted[active] + inside.cumsum(0) - 1
        keep = inside & (place < num_samples)
        samples[place[keep], active.expand_as(place)[keep]] = theta[keep]
        accepted[active] += inside.sum(0)
        draws[active] += size
        total += size
        progress.update(min(num_samples, int(accepted.min())) - progress.n)
        upper = (accepted + GIVE_UP_ERRORS * accepted.sqrt() + GIVE_UP_ERRORS**2) / total
        reachable = accepted + upper * (max_draws - total) >= num_samples
        active = active[((accepted < num_samples) & reachable)[active]]
        if len(active):
            rate = (accepted[active] / total).min().item()
            missing = num_samples - int(accepted[active].min())
            size = max(int(1.5 * missing / max(rate, 1e-12)), 100)
    progress.close()
    obtained = accepted.clamp(max=num_samples)
    return Drawn(samples[: int(obtained.min())], num_samples, obtained, accepted, draws)


def shortfall_message(drawn: Drawn, budget: Budget) -> str:
    num_datasets, worst = len(drawn.obtained), int(drawn.obtained.argmin())
    got, draws = int(drawn.obtained[worst]), int(drawn.draws[worst])
    rate = int(drawn.accepted[worst]) / max(draws, 1)
    where, returned = "", f"The {got} samples accepted are returned."
    if num_datasets > 1:
        least = drawn.requested if got or not budget.nearest else 1
        short = (drawn.obtained < least).nonzero().flatten().tolist()
        named = ", ".join(map(str, short[:10]))
        named += f" and {len(short) - 10} more" if len(short) > 10 else ""
        where = f" for dataset {worst}"
        returned = (
            f"Datasets that fell short, of {num_datasets}: {named}. One tensor needs "
            f"equally many samples of each dataset, so {len(drawn.samples)} are returned; leave "
            "these datasets out to get all samples of the others."
        )
    if not got and budget.nearest:
        whose = f" for {'datasets' if short[1:] else 'dataset'} {named}" if where else ""
        returned = (
            f"Each draw{whose} is replaced by the nearest of {NEAREST:,} draws from the prior: an "
            "answer at the edge of what the prior allows, no posterior (nearest_if_none=False "
            "raises an error instead)."
        )
    elif drawn.num_components > 1:
        returned += " The members of the ensemble are not represented by their weights in them."
    why = f"{budget.max_draws_per_sample} draws per sample, the limit, are not enough at this rate"
    return (
        f"Only {got} of {drawn.requested} requested samples were accepted{where} in {draws} draws "
        f"(acceptance rate {rate:.2g}): {'time is up' if budget.expired() else why}. The other "
        "draws lie outside the support of the prior: the query is far from the summaries that the "
        f"posterior was trained on, or the posterior leaks there. {returned} Look at adapt(x): "
        "s_star is what was queried, p_value how well the data agree with the simulations. Then "
        "train on more simulations or a wider prior, raise max_draws_per_sample, or pass "
        "reject_outside_prior=False for draws that ignore the prior's support."
    )


def leakage_options(given: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return draws for Z(s), and draws at once, from keywords of sbi, whose flags do nothing."""
    numbers = ("num_rejection_samples", "rejection_sampling_batch_size")
    flags = ("show_progress_bars", "force_update")
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not set(given) <= {*numbers, *flags}:
        said = f"a dict with any of {', '.join((*numbers, *flags))}"
        raise checks.wrong("leakage_correction_params", said, repr(given), kind=TypeError)
    for name in flags:
        checks.flag(given.get(name, False), name)
    return tuple(checks.positive(given.get(name, 10_000), name) for name in numbers)


# An estimate of Z(s) for B datasets: draws inside the prior's support, and all, `(B,)`.
class Leakage(NamedTuple):
    accepted: Tensor
    draws: Tensor

    @property
    def log_mass(self) -> Tensor:
        """log Z(s), `(B,)`; where nothing was accepted, an upper limit."""
        return (self.accepted.clamp(min=1) / self.draws).log()

    @property
    def resolved(self) -> Tensor:
        """Return whether Z(s) is known to about 10%, `(B,)`."""
        return self.accepted >= self.draws.clamp(max=MIN_ACCEPTED)


@torch.no_grad()
def estimate_leakage(component: Component, s: Tensor, num_draws: int, budget: Budget) -> Leakage:
    """Estimate Z(s) at summaries `(B, d_s)` from `num_draws` draws, and more where it is small."""
    max_draws = max(num_draws, budget.max_draws(MIN_ACCEPTED))
    accepted = torch.zeros(len(s), dtype=torch.long, device=s.device)
    draws = torch.zeros_like(accepted)
    active, total = torch.arange(len(s), device=s.device), 0
    while len(active):
        wanted = num_draws if total < num_draws else max_draws
        size = min(budget.batch(len(active)), wanted - total)
        accepted[active] += component.in_support(component.draw(size, s[active])).sum(0)
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
    r"""Return :math:`\log \sum_i w_i q_i / Z_i`, `(S, B)`; without Z where that is None."""
    terms = []
    for component, leakage in zip(components, leakages, strict=True):
        log_q = component.log_density(theta, s, **options)
        log_q = log_q if leakage is None else log_q - leakage.log_mass
        terms.append(log_q.masked_fill(~component.in_support(theta), -torch.inf))
    if len(terms) == 1:
        return terms[0]
    log_w = terms[0].new_tensor([component.weight for component in components]).log()
    return torch.logsumexp(torch.stack(terms, -1) + log_w, -1)


def leakage_message(leakage: Leakage, datasets: Tensor) -> str:
    worst = int(leakage.accepted.argmin())
    accepted, draws, place = (int(a[worst]) for a in (leakage.accepted, leakage.draws, datasets))
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
