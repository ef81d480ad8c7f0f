"""Start tests, docstring examples, README and docs from the same seed, on one thread.

One thread, because the numbers of a trained network depend on how many there are, and because
`make test` runs as many processes as there are cores. A browser is for the tests of both houses.
"""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from browser import Browser, browser, find_chromium

torch.set_num_threads(1)
os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports Keras


# Files that take longest, longest first: begun last, one would run while other processes idle.
LONGEST = """
test_baselines test_experiments test_runner test_tutorials test_golden test_paper_numbers
test_robust_posterior test_streaming test_simulation test_detection README test_docs_site
test_fuzz test_minimum_distance test_efficiency test_command_line_docs test_bayesflow_bridge
test_repeatable test_benchmark test_demo
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.suffix == ".md":  # pages fit estimators and train posteriors
            item.add_marker(pytest.mark.slow)
    place = {name: index for index, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    torch.set_grad_enabled(True)  # which importing BayesFlow, as some tests do, turns off


# Of the docs site, where Sphinx may be missing; the site has a test of its own.
collect_ignore = ["docs/conf.py", "docs/links.py", "docs/mathml.py"]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (sbi and SciPy draw from the global state)


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
