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

from mindist.baselines import Method
from mindist.baselines.mds import MinimumDistanceMethod
from mindist.posteriors.backend import find_backend
from mindist.posteriors.query import BoundedQueries
from mindist.posteriors.rejection import Budget
from mindist.posteriors.robust import MAX_DRAWS_PER_SAMPLE
from mindist.posteriors.seeding import seeded
from mindist.tasks import Task


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


def draw(task: Task, method: Method | None, x: Tensor, num_samples: int, seed: int) -> Draws:
    """Samples of a method, or of the task's exact posterior if it is None.

    Arguments:
        task: Whose exact posterior may be asked for.
        method: A trained method.
        x: Datasets `(B, N, *event)`.
        num_samples: S.
        seed: Of the samples.
    """
    all_inside = torch.full((len(x),), num_samples)
    if method is None:
        return Draws(_exact(task, x, num_samples, seed), all_inside)
    samples = method.sample_batched((num_samples,), x, seed=seed)
    if len(samples) == num_samples:
        return Draws(samples.float(), all_inside)  # TabPFN's are float64
    # Somewhere rejection came to nothing: find out where, dataset by dataset.
    each = [method.sample((num_samples,), one, seed=seed) for one in x]
    inside = torch.tensor([len(samples) for samples in each])
    short = inside < num_samples
    free = iter(_unrejected(method, x[short], num_samples, seed).unbind(1))
    kept = [next(free) if short[i] else found for i, found in enumerate(each)]
    return Draws(torch.stack(kept, 1).float(), inside)


def _exact(task: Any, x: Tensor, num_samples: int, seed: int) -> Tensor:
    if not hasattr(task, "posterior"):
        raise ValueError(
            f"method: 'exact' needs a task with an exact posterior (gaussian, gaussian_factor), "
            f"got {task.name}."
        )
    with seeded(seed):
        samples: Tensor = task.posterior(x).sample((num_samples,))
    return samples


def _unrejected(method: Any, x: Tensor, num_samples: int, seed: int) -> Tensor:
    """Draws `(S, B, d_theta)` of the density estimator behind a method, inside or outside."""
    posterior = method.posterior
    if isinstance(method, MinimumDistanceMethod):
        posterior = posterior.posterior
    queries = BoundedQueries(find_backend(posterior), MAX_DRAWS_PER_SAMPLE)
    s = queries.checked(method.used_summary(x).float())
    budget = Budget(MAX_DRAWS_PER_SAMPLE)
    return queries.sample((num_samples,), s, budget, seed=seed, reject=False)


__all__ = ["Draws", "draw"]
