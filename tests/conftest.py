"""What several tests share: simulations and estimators of the Gaussian task."""

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
    """20,000 simulated datasets."""
    generator = torch.Generator().manual_seed(1)
    return task.simulate(task.sample_prior(20_000, generator), generator=generator)


@pytest.fixture(scope="session")
def mds(task: GaussianTask, x_train: Tensor) -> MinimumDistance:
    """The default preset."""
    return MinimumDistance(task.summary).fit(x_train)


@pytest.fixture(scope="session")
def mds_paper(task: GaussianTask, x_train: Tensor) -> MinimumDistance:
    """The paper's preset."""
    return MinimumDistance.paper(task.summary).fit(x_train)


@pytest.fixture(scope="session")
def mds_small(task: GaussianTask, x_train: Tensor) -> MinimumDistance:
    """A quickly fitted estimator for tests of behaviour rather than of accuracy."""
    return MinimumDistance(task.summary, num_features=64).fit(x_train[:600])
