"""The data of a cell: simulations to train on, datasets to test on.

Seeds are derived from what is drawn: a dataset is the same whoever asks, and for how many.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

from mindist import checks
from mindist.tasks import Task
from mindist_paper.baselines.method import Simulations
from mindist_paper.evaluation.cell import BankSpec, TestSpec, canonical
from mindist_paper.tasks import get_task
from mindist_paper.tasks.molecule import Molecule, hsp90, synthetic_chain

# Simulations that take more are not kept in memory, but simulated again for each pass
MAX_BYTES = 2 * 2**30
TEST_BLOCK = 25  # test datasets that are simulated together
REFERENCE_DATASETS = 200  # for the bandwidth of the predictive MMD
# Values of the option "molecule" of the cryo-EM task, besides a path
MOLECULES: Mapping[str, Any] = {"synthetic": synthetic_chain, "hsp90": hsp90}


def derived_seed(purpose: str, **content: Any) -> int:
    """Return a seed that depends on nothing but the arguments, which are JSON values."""
    text = json.dumps([purpose, content], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def generator(purpose: str, **content: Any) -> Generator:
    """Return a generator with a derived seed."""
    return Generator().manual_seed(derived_seed(purpose, **content))


def seeded_by(spec: BankSpec) -> dict[str, Any]:
    """Return what draws of a bank's task depend on: M is no part of it, nor is the method."""
    plain = json.loads(canonical(spec))
    return {name: plain[name] for name in ("task", "options", "seed")}


def make_task(spec: BankSpec) -> Task:
    """Return the task of a bank; the same object for equal names and options."""
    return _task(canonical(replace(spec, num=0, seed=0)))


@cache
def _task(key: str) -> Task:
    spec = BankSpec(**json.loads(key))
    options = dict(spec.options)
    molecule = options.get("molecule")
    if isinstance(molecule, str):
        known = MOLECULES.get(molecule)
        options["molecule"] = Molecule.load(molecule) if known is None else known()
    return get_task(spec.task, **options)


class Chunks:
    """Datasets that are simulated anew in every pass, a chunk at a time."""

    def __init__(self, spec: BankSpec) -> None:
        self.spec = spec

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield chunks of parameters `(b, d_theta)` and datasets `(b, N, *event)`."""
        # A larger bank goes on where a smaller one ends.
        source = generator("bank", **seeded_by(self.spec))
        return make_task(self.spec).simulate_chunks(self.spec.num, generator=source)

    def __iter__(self) -> Iterator[Tensor]:
        return (x for _, x in self.pairs())


def simulate_bank(spec: BankSpec) -> Simulations:
    """Return the simulations of a bank, with the task's summaries; remember the last bank."""
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
    """Return the first datasets `(n, N, *event)` of a bank, at most 200."""
    return next(iter(Chunks(replace(spec, num=min(spec.num, REFERENCE_DATASETS)))))


@dataclass(frozen=True)
class Datasets:
    """The datasets that a method is tested on."""

    theta: Tensor  # True parameters `(B, d_theta)`
    x_clean: Tensor  # Datasets `(B, N, *event)` before contamination
    x_obs: Tensor  # The same datasets with some observations contaminated


def make_datasets(bank: BankSpec, test: TestSpec) -> Datasets:
    """Return the test datasets of a setting."""
    num_obs = make_task(bank).num_obs if test.num_obs is None else test.num_obs
    blocks = -(-test.num // TEST_BLOCK)
    theta, x_clean = _clean_blocks(canonical(replace(bank, num=0)), num_obs, blocks)
    contamination = json.loads(canonical(test))["contamination"]
    what = {"num_obs": num_obs, "epsilon": float(test.epsilon), "contamination": contamination}
    task, parts = make_task(bank), []
    for index, x in enumerate(x_clean.split(TEST_BLOCK)):
        source = generator("contamination", block=index, **seeded_by(bank), **what)
        parts.append(task.contaminate(x, test.epsilon, generator=source, **test.contamination))
    x_obs = torch.cat(parts)
    return Datasets(theta[: test.num], x_clean[: test.num], x_obs[: test.num])


@lru_cache(maxsize=2)
def _clean_blocks(key: str, num_obs: int, num_blocks: int) -> tuple[Tensor, Tensor]:
    bank = BankSpec(**json.loads(key))
    task, blocks = make_task(bank), []
    for index in range(num_blocks):
        source = generator("test", block=index, num_obs=num_obs, **seeded_by(bank))
        theta = task.sample_prior(TEST_BLOCK, source)
        blocks.append((theta, task.simulate(theta, num_obs, generator=source)))
    theta, x = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return theta, x
