"""Posterior samples of test datasets, as many for each as were asked for.

A posterior that is asked far outside its training data can have next to no mass inside the prior's
support, where rejection finds nothing. There, and only there, the density estimator's own draws
are used as they are: this is where NPE fails, and a table without these datasets would flatter it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindist.posteriors.backend import find_backend
from mindist.posteriors.guards import seeded
from mindist.posteriors.queries import Conditions, Queries
from mindist.posteriors.truncation import Budget
from mindist.tasks import Task
from mindist_paper.baselines.mds import MinimumDistanceMethod
from mindist_paper.baselines.rnpe import LatentSummaryPosterior

MAX_DRAWS = 100  # for each sample; a posterior with less than a hundredth inside is not one


@dataclass(frozen=True)
class Draws:
    """Posterior samples of B datasets.

    Arguments:
        samples: `(S, B, d_theta)`, float32.
        num_inside: How many samples rejection found inside the prior's support, `(B,)`: S, or less
            where the samples are the estimator's own draws instead.
    """

    samples: Tensor
    num_inside: Tensor


def draw(task: Task, method: Any, x: Tensor, num_samples: int, seed: int) -> Draws:
    """Samples of a method, or of the task's exact posterior if it is None.

    Arguments:
        task: Whose exact posterior may be asked for.
        method: A trained `Method`, or None.
        x: Datasets `(B, N, *event)`.
        num_samples: S.
        seed: Of the samples.
    """
    if method is None:
        return Draws(_exact(task, x, num_samples, seed), torch.full((len(x),), num_samples))
    if isinstance(method, LatentSummaryPosterior):  # asked at many summaries, not at one
        samples = method.sample_batched((num_samples,), x, seed=seed).float()
        return Draws(samples, torch.full((len(x),), len(samples)))
    if isinstance(method, MinimumDistanceMethod):
        robust = method.posterior
        return _at_summaries(robust.queries, robust.conditions(x), num_samples, seed)
    queries = Queries(find_backend(method.posterior), MAX_DRAWS)
    conditions = Conditions.certain(queries.checked(method.used_summary(x)))
    return _at_summaries(queries, conditions, num_samples, seed)


def _at_summaries(queries: Queries, s: Conditions, num_samples: int, seed: int) -> Draws:
    """Samples at the summaries of B datasets, unrejected where rejection comes to nothing."""
    budget = Budget(MAX_DRAWS)
    with seeded(seed, s.s.device):
        drawn = queries.draw(num_samples, s, budget)
    if drawn.complete:
        return Draws(drawn.samples.float(), drawn.obtained)  # TabPFN's are float64
    short, inside = drawn.obtained < num_samples, drawn.obtained.clone()
    keep = Budget(MAX_DRAWS, reject=False)
    free = queries.sample((num_samples,), s[short], keep, seed=seed).float()
    samples = free.new_empty(num_samples, len(s), free.shape[-1])
    samples[:, short] = free
    if not short.all():
        rest = _at_summaries(queries, s[~short], num_samples, seed)
        samples[:, ~short], inside[~short] = rest.samples, rest.num_inside
    return Draws(samples, inside)


def _exact(task: Any, x: Tensor, num_samples: int, seed: int) -> Tensor:
    if not hasattr(task, "posterior"):
        raise ValueError(
            f"method: 'exact' needs a task with an exact posterior (gaussian, gaussian_factor), "
            f"got {task.name}."
        )
    with seeded(seed):
        samples: Tensor = task.posterior(x).sample((num_samples,))
    return samples


__all__ = ["Draws", "draw"]
