"""What several tests share: simulations and estimators of the Gaussian task, and a browser."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from browser import Browser, browser, find_chromium
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
    return MinimumDistance(task.summary, num_features=64).fit(x_train[:1_000])


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; where there is none the test fails, unless MINDIST_NO_BROWSER=1 says so."""
    if os.environ.get("MINDIST_NO_BROWSER", "") not in ("", "0"):
        pytest.skip("MINDIST_NO_BROWSER says that there is no browser here")
    if find_chromium() is None:
        pytest.fail(
            "no chromium: install it (apt-get install chromium) or set MINDIST_NO_BROWSER=1"
        )
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
