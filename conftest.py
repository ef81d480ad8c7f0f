"""Start tests, docstring examples, README and docs from the same seed, on one thread.

One thread, because the numbers of a trained network depend on how many there are, and because
`make test` runs as many processes as there are cores. A browser is for the tests of both houses.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from browser import Browser, browser, find_chromium
from mindist.decoders.mlp import train
from mindist.solvers import adam

torch.set_num_threads(1)
os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports Keras


# Files that take longest, longest first: begun last, one would run while other processes idle.
LONGEST = """
test_experiments test_baselines test_tutorials test_robust_posterior test_paper_numbers test_runner
test_minimum_distance test_bridges test_simulation test_streaming test_fit_bank test_golden
test_procedure test_benchmark test_demo test_bayesflow_bridge test_command_line test_report_dataset
test_command_line_docs test_fuzz test_sbi_bridge README test_properties test_repeatable
test_recovery test_adapting test_observed test_simulation_cluster test_docs_site test_packaging
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
def briefly() -> Callable[..., AbstractContextManager[None]]:
    """Within it decoders are trained for at most so many passes, and Adam takes so many steps."""

    @contextmanager
    def patched(*, epochs: int, steps: int) -> Iterator[None]:
        def brief(decoder: Any, *args: Any, **options: Any) -> float:
            decoder.max_epochs = min(decoder.max_epochs, epochs)
            return train(decoder, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            for module in ("mlp", "flow"):
                patch.setattr(f"mindist.decoders.{module}.train", brief)
            patch.setattr("mindist.adaptation.search.adam", partial(adam, max_iterations=steps))
            yield

    return patched


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
