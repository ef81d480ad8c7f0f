r"""Accept and reject, with an end.

A neural density :math:`q(\theta \mid s)` knows nothing of the prior's bounds: it leaks. Draws
outside the prior's support are rejected, which leaves draws from

.. math::
    p(\theta \mid s) = q(\theta \mid s)\, 1[\theta \in \mathrm{supp}] \,/\, Z(s) , \qquad
    Z(s) = \Pr_{q(\theta \mid s)}(\theta \in \mathrm{supp}) .

Far outside the training data :math:`Z(s)` can be practically zero, and a loop that waits for
enough accepted draws never ends. Here it ends after a number of draws, hence at the same place
under the same seed, and earlier for a dataset whose acceptance rate is so low that it would not
get there. Stopping depends on counts only, so what was accepted by then are still independent
draws from :math:`p(\theta \mid s)`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from mindist import checks
from mindist.posteriors.backend import Component

# Never give up before this many draws, however few samples are asked for: the size of sbi's
# sampling batch. One sample at an acceptance rate of .001 is then missed with probability e^-10.
MIN_DRAWS = 10_000

# Rows (draws x datasets) given to a network at once: sbi's own limit for batched sampling.
MAX_ROWS = 100_000

# Width of the upper limit on an acceptance rate, in standard errors: with no acceptance in n draws
# the limit is 9/n, which a dataset that could still make it exceeds with probability e^-9 = .0001.
GIVE_UP_ERRORS = 3.0


@dataclass(frozen=True)
class Budget:
    """When to stop drawing.

    Arguments:
        max_draws_per_sample: Draws allowed for each sample asked for.
        batch_size: Draws for each dataset given to the network at once.
        max_seconds: Time after which no new batch is begun.
        raise_on_timeout: Whether to raise after that time rather than return what there is.
        show_progress_bars: Whether to show a progress bar.
        started: When the time began, of `time.monotonic`.
    """

    max_draws_per_sample: int
    batch_size: int = 10_000
    max_seconds: float | None = None
    raise_on_timeout: bool = False
    show_progress_bars: bool = False
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        checks.positive(self.max_draws_per_sample, "max_draws_per_sample")
        checks.positive(self.batch_size, "max_sampling_batch_size")
        if self.max_seconds is not None:
            checks.seconds(self.max_seconds, "max_sampling_time")
        checks.flag(self.raise_on_timeout, "return_partial_on_timeout")
        checks.flag(self.show_progress_bars, "show_progress_bars")

    def max_draws(self, num_samples: int) -> int:
        """Draws allowed for each dataset."""
        return max(MIN_DRAWS, self.max_draws_per_sample * num_samples)

    def batch(self, num_datasets: int) -> int:
        """Draws for each of some datasets that fit into one batch."""
        rows = self.batch_size if num_datasets == 1 else MAX_ROWS // num_datasets
        return max(1, min(self.batch_size, rows))

    def expired(self) -> bool:
        """Whether the time has passed."""
        return self.max_seconds is not None and time.monotonic() > self.started + self.max_seconds


@dataclass(frozen=True)
class Drawn:
    """What came out of drawing for B datasets.

    Arguments:
        samples: Accepted draws, as many as every dataset has, `(k, B, d_theta)`.
        requested: How many were asked for each dataset.
        obtained: How many were accepted for each dataset, at most `requested`, `(B,)`.
        accepted: How many of `draws` were inside the prior's support, `(B,)`.
        draws: How many were drawn, `(B,)`.
        num_components: Of the mixture that was drawn from.
    """

    samples: Tensor
    requested: int
    obtained: Tensor
    accepted: Tensor
    draws: Tensor
    num_components: int = 1

    @property
    def complete(self) -> bool:
        """Whether every dataset got what was asked for."""
        return self.samples.shape[0] == self.requested

    @classmethod
    def joined(cls, parts: Sequence[Drawn], order: Tensor) -> Drawn:
        """One of several about different datasets, which are then put in the given order."""
        few = min(len(part.samples) for part in parts)
        columns = {
            name: torch.cat([getattr(part, name) for part in parts])[order]
            for name in ("obtained", "accepted", "draws")
        }
        return Drawn(
            samples=torch.cat([part.samples[:few] for part in parts], dim=1)[:, order],
            requested=parts[0].requested,
            num_components=parts[0].num_components,
            **columns,
        )


def draw_mixture(
    components: Sequence[Component],
    s: Tensor,
    num_samples: int,
    budget: Budget,
    options: Mapping[str, Any],
) -> Drawn:
    """Samples from a mixture of truncated densities, given summaries `(B, d_s)`.

    Each component is truncated on its own, so the weights are those of the normalised components,
    as in an sbi ensemble. The samples stand in the order of the components.
    """
    if len(components) == 1:
        return draw_truncated(components[0], s, num_samples, budget, options)
    weights = torch.tensor([component.weight for component in components])
    chosen = torch.multinomial(weights, num_samples, replacement=True)
    counts = chosen.bincount(minlength=len(components)).tolist()
    parts = [
        draw_truncated(component, s, count, budget, options)
        for component, count in zip(components, counts, strict=True)
        if count
    ]
    return Drawn(
        samples=torch.cat([part.samples for part in parts]),
        requested=num_samples,
        obtained=torch.stack([part.obtained for part in parts]).sum(0),
        accepted=torch.stack([part.accepted for part in parts]).sum(0),
        draws=torch.stack([part.draws for part in parts]).sum(0),
        num_components=len(components),
    )


@torch.no_grad()
def draw_truncated(
    component: Component,
    s: Tensor,
    num_samples: int,
    budget: Budget,
    options: Mapping[str, Any],
) -> Drawn:
    """At most `num_samples` (> 0) accepted draws for each summary of `(B, d_s)`, B > 0.

    A dataset that has enough, or never will, is not drawn for any more. The sizes of the batches
    follow sbi's, so that for one dataset the same seed gives the same samples as sbi.
    """
    num_datasets, max_draws = len(s), budget.max_draws(num_samples)
    accepted = torch.zeros(num_datasets, dtype=torch.long, device=s.device)
    draws = torch.zeros_like(accepted)
    active = torch.arange(num_datasets, device=s.device)
    samples, size, total = torch.empty(0, device=s.device), num_samples, 0
    progress = tqdm(total=num_samples, desc="sampling", disable=not budget.show_progress_bars)
    while len(active) and not (total and budget.expired()):
        size = min(size, budget.batch(len(active)), max_draws - total)
        theta = component.draw(
            size, s[active], show_progress_bars=budget.show_progress_bars, **options
        )
        if not total:
            samples = theta.new_empty(num_samples, *s.shape[:1], *theta.shape[2:])
        inside = component.in_support(theta)
        place = accepted[active] + inside.cumsum(0) - 1
        keep = inside & (place < num_samples)
        samples[place[keep], active.expand_as(place)[keep]] = theta[keep]
        accepted[active] += inside.sum(0)
        draws[active] += size
        total += size
        progress.update(min(num_samples, int(accepted.min())) - progress.n)
        active = active[_promising(accepted[active], total, num_samples, max_draws)]
        if len(active):
            rate = (accepted[active] / total).min().item()
            missing = num_samples - int(accepted[active].min())
            size = max(int(1.5 * missing / max(rate, 1e-12)), 100)
    progress.close()
    obtained = accepted.clamp(max=num_samples)
    return Drawn(samples[: int(obtained.min())], num_samples, obtained, accepted, draws)


def _promising(accepted: Tensor, draws: int, num_samples: int, max_draws: int) -> Tensor:
    """Which datasets lack samples and can still get them, at the upper limit of their rate."""
    z = GIVE_UP_ERRORS
    upper = (accepted + z * accepted.sqrt() + z**2) / draws
    within_reach = accepted + upper * (max_draws - draws) >= num_samples
    return (accepted < num_samples) & within_reach


def shortfall_message(drawn: Drawn, budget: Budget) -> str:
    """What to tell a user who got fewer samples than asked for."""
    num_datasets = len(drawn.obtained)
    worst = int(drawn.obtained.argmin())
    got, draws = int(drawn.obtained[worst]), int(drawn.draws[worst])
    rate = int(drawn.accepted[worst]) / max(draws, 1)
    where, returned = "", f"The {got} samples accepted are returned."
    if num_datasets > 1:
        short = (drawn.obtained < drawn.requested).nonzero().flatten().tolist()
        where = f" for dataset {worst}"
        returned = (
            f"Datasets that fell short, of {num_datasets}: {_enumerate(short)}. One tensor needs "
            f"equally many samples of each dataset, so {len(drawn.samples)} are returned; leave "
            "these datasets out to get all samples of the others."
        )
    if drawn.num_components > 1:
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


def _enumerate(indices: Sequence[int], most: int = 10) -> str:
    shown = ", ".join(map(str, indices[:most]))
    return shown if len(indices) <= most else f"{shown} and {len(indices) - most} more"


__all__ = ["Budget", "Drawn", "draw_mixture", "draw_truncated", "shortfall_message"]
