r"""The data of a cell: simulations to train on, datasets to test on.

.. math:: (\theta_i, x^{(i)})_{i \le M}, \qquad
    \theta_b^*, \; x^{(b)} \sim p_{\theta_b^*}, \; \tilde x^{(b)} \sim C_\epsilon(x^{(b)})

Every draw has a seed that is derived from what is drawn, never from an order or a clock: a dataset
is the same whoever asks for it, however many are asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from mindist import checks
from mindist.tasks import Task
from mindist_paper.baselines.method import Simulations
from mindist_paper.evaluation.cell import BankSpec, TestSpec, canonical
from mindist_paper.tasks import get_task
from mindist_paper.tasks.contaminations import Population, Setting, contaminate
from mindist_paper.tasks.molecule import Molecule, hsp90, synthetic_chain

MAX_BYTES = 2 * 2**30
"""Simulations that take more are not kept in memory, but simulated again for each pass."""

TEST_BLOCK = 25  # test datasets that are simulated together
REFERENCE_DATASETS = 200  # for the bandwidth of the predictive MMD

MOLECULES: Mapping[str, Any] = {"synthetic": synthetic_chain, "hsp90": hsp90}
"""What the option "molecule" of the cryo-EM task may be, besides a path."""


def derived_seed(purpose: str, **content: Any) -> int:
    """A seed that depends on nothing but its arguments, which are JSON values.

    Example:
        >>> derived_seed("test", task="oup", seed=0) == derived_seed("test", seed=0, task="oup")
        True
        >>> derived_seed("test", task="oup", seed=0) == derived_seed("bank", task="oup", seed=0)
        False
    """
    text = json.dumps([purpose, content], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def generator(purpose: str, **content: Any) -> torch.Generator:
    """A generator with a derived seed."""
    return torch.Generator().manual_seed(derived_seed(purpose, **content))


def make_task(spec: BankSpec) -> Task:
    """The task of a bank; the same object for equal names and options."""
    return _task(spec.task, canonical(replace(spec, num=0, seed=0)))


@cache
def _task(name: str, key: str) -> Task:
    options = json.loads(key)["options"]
    molecule = options.get("molecule")
    if isinstance(molecule, str):
        known = MOLECULES.get(molecule)
        options["molecule"] = Molecule.load(molecule) if known is None else known()
    return get_task(name, **options)


class Chunks:
    """Datasets that are simulated anew in every pass, a chunk at a time.

    Arguments:
        spec: Which datasets.
    """

    def __init__(self, spec: BankSpec) -> None:
        self.spec = spec

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of parameters `(b, d_theta)` and datasets `(b, N, *event)`."""
        spec = self.spec
        task = make_task(spec)
        # M is no part of the seed: a larger bank goes on where a smaller one ends.
        source = generator("bank", task=spec.task, options=_options(spec), seed=spec.seed)
        return task.simulate_chunks(spec.num, generator=source)

    def __iter__(self) -> Iterator[Tensor]:
        return (x for _, x in self.pairs())


def simulate_bank(spec: BankSpec) -> Simulations:
    """The simulations of a bank, with the task's summaries; the last bank is remembered.

    Example:
        >>> simulations = simulate_bank(BankSpec("gaussian", 50))
        >>> simulations.theta.shape, simulations.datasets().shape
        (torch.Size([50, 2]), torch.Size([50, 100, 2]))
    """
    return _bank(canonical(spec), MAX_BYTES)


@lru_cache(maxsize=1)
def _bank(key: str, max_bytes: int) -> Simulations:
    spec = BankSpec(**json.loads(key))
    task, chunks = make_task(spec), Chunks(spec)
    shape = (checks.positive(spec.num, "num"), task.num_obs, *task.event_shape)
    in_memory = 4 * torch.Size(shape).numel() <= max_bytes
    x = torch.empty(shape if in_memory else (0,))
    thetas, summaries, first = [], [], 0
    for theta, data in chunks.pairs():
        thetas.append(theta)
        summaries.append(task.summary(data))
        if in_memory:
            x[first : first + len(data)] = data
        first += len(data)
    return Simulations(torch.cat(thetas), x if in_memory else chunks, torch.cat(summaries))


def leading_datasets(spec: BankSpec) -> Tensor:
    """The first datasets `(n, N, *event)` of a bank, at most 200."""
    return next(iter(Chunks(replace(spec, num=min(spec.num, REFERENCE_DATASETS)))))


@dataclass(frozen=True)
class Datasets:
    """The datasets that a method is tested on.

    Arguments:
        theta: True parameters `(B, d_theta)`.
        x_clean: Datasets `(B, N, *event)` before contamination.
        x_obs: The same datasets with some observations contaminated.
    """

    theta: Tensor
    x_clean: Tensor
    x_obs: Tensor


def make_datasets(bank: BankSpec, test: TestSpec) -> Datasets:
    """The test datasets of a setting.

    Clean ones depend on the task, its options, N and the seed only, so that methods, fractions and
    contaminations are compared on the same datasets, and fewer are the first of more.

    Example:
        >>> bank, test = BankSpec("gaussian", 50), TestSpec(0.2, num=3)
        >>> few, more = make_datasets(bank, test), make_datasets(bank, TestSpec(0.5, num=30))
        >>> torch.equal(few.x_clean, more.x_clean[:3]), torch.equal(few.x_obs, few.x_clean)
        (True, False)
    """
    task = make_task(bank)
    num_obs = task.num_obs if test.num_obs is None else test.num_obs
    theta, x_clean = _clean(replace(bank, num=0), num_obs, -(-test.num // TEST_BLOCK))
    what = {
        "task": bank.task,
        "options": _options(bank),
        "seed": bank.seed,
        "num_obs": num_obs,
        "epsilon": float(test.epsilon),
        "contamination": json.loads(canonical(test))["contamination"],
    }
    x_obs = torch.cat(
        [
            _contaminated(bank, test, *block, generator("contamination", block=index, **what))
            for index, block in enumerate(
                zip(theta.split(TEST_BLOCK), x_clean.split(TEST_BLOCK), strict=True)
            )
        ]
    )
    return Datasets(theta[: test.num], x_clean[: test.num], x_obs[: test.num])


def _contaminated(
    bank: BankSpec, test: TestSpec, theta: Tensor, x: Tensor, source: torch.Generator
) -> Tensor:
    """The task's own contamination of datasets `(b, N, *event)`, or one of another kind."""
    if "kind" not in test.contamination:
        return make_task(bank).contaminate(x, test.epsilon, generator=source, **test.contamination)
    population = _population(canonical(replace(bank, num=0, seed=0)))
    setting = Setting(population, theta, source)
    return contaminate(x, test.epsilon, setting, task=bank.task, **test.contamination)


@cache
def _population(key: str) -> Population:
    """Of all observations of a task, the same for every bank."""
    return Population.of_task(make_task(BankSpec(**json.loads(key))))


def _clean(bank: BankSpec, num_obs: int, num_blocks: int) -> tuple[Tensor, Tensor]:
    return _clean_blocks(canonical(bank), num_obs, num_blocks)


@lru_cache(maxsize=2)
def _clean_blocks(key: str, num_obs: int, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Parameters and clean datasets of whole blocks, each with a generator of its own."""
    bank = BankSpec(**json.loads(key))
    task, blocks = make_task(bank), []
    for index in range(num_blocks):
        what = {"task": bank.task, "options": _options(bank), "seed": bank.seed}
        source = generator("test", block=index, num_obs=num_obs, **what)
        theta = task.sample_prior(TEST_BLOCK, source)
        blocks.append((theta, task.simulate(theta, num_obs, generator=source)))
    theta, x = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return theta, x


def _options(spec: BankSpec) -> Any:
    return json.loads(canonical(spec))["options"]


__all__ = [
    "MOLECULES",
    "Chunks",
    "Datasets",
    "derived_seed",
    "generator",
    "leading_datasets",
    "make_datasets",
    "make_task",
    "simulate_bank",
]
