"""What several tests share: simulations and estimators of the Gaussian task."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mindist import MinimumDistance
from mindist.tasks import GaussianTask


@pytest.fixture(scope="session")
def task() -> GaussianTask:
    return GaussianTask()


@pytest.fixture(scope="session")
def generator() -> Callable[[int], torch.Generator]:
    return lambda seed: torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def x_train(task: GaussianTask) -> Tensor:
    """10,000 simulated datasets."""
    generator = torch.Generator().manual_seed(1)
    return task.simulate(task.sample_prior(10_000, generator), generator=generator)


def once(
    name: str, factory: pytest.TempPathFactory, unfitted: MinimumDistance, x: Tensor
) -> MinimumDistance:
    """Fit in one process; the others of this run read what it saved."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return unfitted.fit(x)
    path = factory.getbasetemp().parent / name
    if not path.exists():
        unfitted.fit(x).save(path)
    return MinimumDistance.load(path, unfitted.summary)


@pytest.fixture(scope="session")
def mds(task: GaussianTask, x_train: Tensor, tmp_path_factory) -> MinimumDistance:
    """The default preset; more simulations than its null and references need change little."""
    return once("mds", tmp_path_factory, MinimumDistance(task.summary), x_train[:5_000])


@pytest.fixture(scope="session")
def mds_paper(task: GaussianTask, x_train: Tensor, tmp_path_factory) -> MinimumDistance:
    """The paper's preset."""
    return once("mds_paper", tmp_path_factory, MinimumDistance.paper(task.summary), x_train)


@pytest.fixture(scope="session")
def mds_small(task: GaussianTask, x_train: Tensor) -> MinimumDistance:
    """A quickly fitted estimator for tests of behaviour rather than of accuracy."""
    return MinimumDistance(task.summary, num_features=64).fit(x_train[:600])
