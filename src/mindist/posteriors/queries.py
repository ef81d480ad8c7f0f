r"""Queries of a posterior at summaries, some of them uncertain: samples, log-probabilities, modes.

.. math:: p(\theta) = p(\theta \mid s) \quad \text{or, around an uncertain } s, \quad
    p(\theta) = \tfrac1J \textstyle\sum_j p(\theta \mid s_j) .

The average is cut to the support of the prior as one density: a summary at which the posterior
leaks counts for less. Datasets whose summary is certain are asked for together and first, exactly
as if there were no others. Results are remembered by the content of what they were computed from,
so that none can outlive an input that was changed in place.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mindist import checks
from mindist.posteriors import truncation
from mindist.posteriors.backend import Backend, Component
from mindist.posteriors.guards import seeded
from mindist.posteriors.truncation import MAX_ROWS, NEAREST, Budget, Drawn, Leakage

MANY_OUTSIDE = 0.05  # share of draws outside the prior's support that deserves a warning: sbi's
CAPACITY = 4096  # datasets remembered: a coverage check asks for all together, then one by one
Value = TypeVar("Value")


@dataclass(frozen=True)
class Conditions:
    s: Tensor  # one for each dataset, (B, d_s)
    uncertain: Tensor  # which to average over `around` instead, (B,)
    around: Tensor  # the summaries to average over, (B, J, d_s)

    @classmethod
    def certain(cls, s: Tensor) -> "Conditions":
        return cls(s, torch.zeros(len(s), dtype=torch.bool, device=s.device), s[:, None][:, :0])

    def __len__(self) -> int:
        return len(self.s)

    def __getitem__(self, which: Tensor) -> "Conditions":
        return Conditions(self.s[which], self.uncertain[which], self.around[which])


# One density, averaged over J summaries, in one row `(J * d_s,)` for each dataset.
class AveragedComponent:
    def __init__(self, component: Component, num: int) -> None:
        self.component, self.num = component, num
        self.weight, self.bounded = component.weight, component.bounded
        self.corrects_leakage, self.in_support = component.corrects_leakage, component.in_support

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        """Draw `(num_samples, B, d_theta)` given `(B, J * d_s)`, equally many of each summary."""
        rounds, num_datasets = -(-num_samples // self.num), len(s)
        drawn = self.component.draw(rounds, s.reshape(num_datasets * self.num, -1), **options)
        drawn = drawn.unflatten(1, (num_datasets, self.num)).transpose(1, 2).flatten(0, 1)
        whole = (rounds - 1) * self.num
        last = torch.rand(self.num, num_datasets, device=s.device).argsort(0)
        first = torch.arange(whole, device=s.device)[:, None].expand(-1, num_datasets)
        chosen = torch.cat([first, whole + last[: num_samples - whole]])
        chosen = chosen.gather(0, torch.rand(chosen.shape, device=s.device).argsort(0))
        return drawn.gather(0, chosen[..., None].expand(-1, -1, drawn.shape[2]))

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """Return the log of the average, `(S, B)`, of parameters `(S, B, d_theta)`."""
        rows, parts = s.reshape(len(s) * self.num, -1), []  # one summary in each
        for block in theta.split(max(1, MAX_ROWS // max(1, len(rows)))):
            each = block.repeat_interleave(self.num, dim=1)
            log_q = self.component.log_density(each, rows, **options)
            parts.append(log_q.unflatten(1, (len(s), self.num)).logsumexp(2) - math.log(self.num))
        return torch.cat(parts)


def digest(x: Tensor) -> bytes:
    content = hashlib.blake2b(repr((tuple(x.shape), x.dtype)).encode(), digest_size=16)
    content.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.digest()


# The most recently used results, for any number of threads; empty after pickling.
class Recent(Generic[Value]):
    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()  # the last used at the end
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Remember a result; forget the one that was not asked for the longest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> "tuple[type[Recent[Value]], tuple[int]]":
        return type(self), (self.capacity,)


# Queries of a posterior at `Conditions`, each with an end: `max_draws` for each sample.
class Queries:
    def __init__(self, backend: Backend, max_draws: int) -> None:
        checks.positive(max_draws, "max_draws_per_sample")
        if len(backend.condition_shape) != 1:
            raise _trained_on_other("summaries (d_s,)", backend.condition_shape)
        self.backend, self.max_draws = backend, max_draws
        self._leakages: Recent[Leakage] = Recent()
        self._modes: Recent[Tensor] = Recent()

    def checked(self, s: Tensor) -> Tensor:
        """Return summaries `(B, d_s)` as the posterior takes them; raise if d_s is another."""
        if s.shape[1:] != self.backend.condition_shape:
            expected = f"summaries of shape {tuple(s.shape[1:])}"
            raise _trained_on_other(expected, self.backend.condition_shape)
        return s.to(self.backend.device, torch.float32)

    def draw(self, num: int, at: Conditions, budget: Budget) -> Drawn:
        """Draw at most `num` for each dataset, from torch's global generator."""
        if not num or not len(at):
            every = torch.full((len(at),), num, device=at.s.device)
            nothing = at.s.new_empty(num, len(at), self.backend.num_parameters)
            return Drawn(nothing, num, every, every, every)
        parts = [truncation.draw_mixture(own, s, num, budget) for own, s, _ in self._parts(at)]
        return Drawn.joined(parts, _order(at)) if len(parts) > 1 else parts[0]

    def sample(
        self, sample_shape: Any, at: Conditions, budget: Budget | None = None, *, seed: Any = None
    ) -> Tensor:
        """Return samples `(*sample_shape, B, d_theta)`, or `(k, B, d_theta)` and a warning."""
        if not isinstance(sample_shape, Sequence) or isinstance(sample_shape, str | bytes):
            said, got = "a shape, a tuple of whole numbers", checks.shown(sample_shape)
            one = sample_shape if isinstance(sample_shape, int) else 5
            then = f"One axis of {one} is ({one},)."
            raise checks.wrong("sample_shape", said, got, then, TypeError)
        sizes = tuple(checks.integer(size, "sample_shape") for size in sample_shape)
        if any(size < 0 for size in sizes):
            raise checks.wrong("sample_shape", "numbers of at least 0", sizes)
        shape = torch.Size(sizes)
        budget = Budget(self.max_draws) if budget is None else budget
        with seeded(seed, self.backend.device):
            drawn = self.draw(shape.numel(), at, budget)
            empty = drawn.obtained == 0
            if shape.numel() and empty.any() and not (budget.expired() and budget.raise_on_timeout):
                drawn = self._nearest(drawn, at, empty, budget)
        if not budget.reject and drawn.samples.numel():
            share = 1 - self.backend.components[0].in_support(drawn.samples).double().mean().item()
            if share > MANY_OUTSIDE:
                checks.warn_user(
                    f"{share:.0%} of the samples lie outside the support of the prior, because "
                    "reject_outside_prior=False keeps them. They are not draws from the posterior."
                )
        if drawn.complete:
            return drawn.samples.reshape(*shape, *drawn.samples.shape[1:])
        message = truncation.shortfall_message(drawn, budget)
        if budget.expired() and budget.raise_on_timeout:
            then = "To get what was accepted in time, pass return_partial_on_timeout=True."
            raise RuntimeError(f"{message} {then}")
        checks.warn_user(message)
        return drawn.samples

    def _nearest(self, drawn: Drawn, at: Conditions, empty: Tensor, budget: Budget) -> Drawn:
        """Give datasets without a draw inside the prior's support the nearest ones that are."""
        message = truncation.shortfall_message(drawn, budget)
        if not budget.nearest:
            raise RuntimeError(message)
        checks.warn_user(message)
        prior = self.backend.sample_prior(NEAREST).to(at.s)
        scale, free = prior.std(0).clamp(min=1e-30), replace(budget, reject=False, max_seconds=None)
        made = self.draw(drawn.requested, at[empty], free)
        index = torch.cdist(made.samples.flatten(0, 1) / scale, prior / scale).argmin(1)
        parts = [replace(made, samples=prior[index].view_as(made.samples))]
        if not empty.all():
            parts.append(self.draw(drawn.requested, at[~empty], budget))
        return Drawn.joined(parts, (~empty).long().argsort(stable=True).argsort())

    def log_prob(
        self,
        theta: Tensor,
        at: Conditions,
        *,
        norm_posterior: bool | None = None,
        leakage: Mapping[str, Any] | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Return log-probabilities `(S, B)` of parameters `(S, B, d_theta)`."""
        how, parts = truncation.leakage_options(leakage), []
        with seeded(None):  # one thread at a time
            for components, s, which in self._parts(at):
                leakages: list[Leakage | None] = []
                for index, part in enumerate(components):
                    norm = part.corrects_leakage if norm_posterior is None else norm_posterior
                    key = (digest(s), self.backend.version, index, how, seed)
                    known = self._leakages.get(key) if part.bounded and norm else None
                    if part.bounded and norm and known is None:
                        budget = Budget(self.max_draws, how[1])
                        with seeded(seed, s.device):
                            known = truncation.estimate_leakage(part, s, how[0], budget)
                        self._leakages.put(key, known)
                    if known is not None and not known.resolved.all():
                        checks.warn_user(truncation.leakage_message(known, which))
                    leakages.append(known)
                given = theta if len(which) == len(at) else theta[:, which]
                own = (components, given, s, leakages, options or {})
                parts.append(truncation.log_prob_mixture(*own))
        return torch.cat(parts, dim=1)[:, _order(at)] if len(parts) > 1 else parts[0]

    def mode(
        self, s: Tensor, start: Any, num_starts: int, seed: Any, force_update: bool, options: Any
    ) -> Tensor:
        """Return the mode `(1, d_theta)` given one summary `(1, d_s)`, remembered."""
        checks.positive(num_starts, "num_init_samples")
        how = digest(start) if isinstance(start, Tensor) else start
        asked = (how, num_starts, seed, tuple(sorted(options.items())))
        key = (digest(s), self.backend.version, *asked)
        mode = None if force_update else self._modes.get(key)
        if mode is not None:
            return mode.clone()
        dim = self.backend.num_parameters
        with seeded(seed, s.device):
            if isinstance(start, Tensor):
                if start.dim() != 2 or start.shape[1] != dim or not len(start):
                    said = f"parameters of shape (n, {dim}) with n at least 1"
                    then = "One parameter vector is theta[None]."
                    raise checks.wrong("init_method", said, f"shape {tuple(start.shape)}", then)
                theta = start.to(s.device, s.dtype)
            else:
                theta = s[:0]
                if checks.choice(start, ("posterior", "prior"), "init_method") == "posterior":
                    theta = self.sample((num_starts,), Conditions.certain(s))[:, 0]
                theta = theta if len(theta) else self.backend.sample_prior(num_starts)
            mode = self.backend.maximise(s, theta, **options)
        self._modes.put(key, mode)
        return mode.clone()

    def to(self, device: torch.device) -> None:
        self.backend.to(device)
        self._leakages.clear()
        self._modes.clear()

    def _parts(self, at: Conditions) -> list[tuple[Sequence[Component], Tensor, Tensor]]:
        """Return what to ask, at which rows, for which datasets; at least one, perhaps empty."""
        components, parts = self.backend.components, []
        uncertain, still = at.uncertain.nonzero()[:, 0], (~at.uncertain).nonzero()[:, 0]
        if len(still) or not len(uncertain):
            parts.append((components, at.s[still], still))
        if len(uncertain):
            averaged = [AveragedComponent(part, at.around.shape[1]) for part in components]
            parts.append((averaged, at.around[uncertain].flatten(1), uncertain))
        return parts


def _order(at: Conditions) -> Tensor:
    """Return where each dataset stands when the certain ones come first, `(B,)`."""
    return at.uncertain.long().argsort(stable=True).argsort()


def _trained_on_other(expected: str, shape: torch.Size) -> ValueError:
    return ValueError(
        f"posterior: expected one trained on {expected}, got one trained on shape {tuple(shape)}. "
        "One trained on raw data with an embedding net can be split: summary, posterior = "
        "split_embedding(posterior), from mindist.posteriors.sbi_bridge. Otherwise train it on "
        "the summaries that MinimumDistance uses."
    )
