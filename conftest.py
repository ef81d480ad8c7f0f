"""Of tests, docstring examples, README and docs: each starts from the same seed, on one thread.

One thread, because the numbers of a trained network depend on how many there are, and because
`make test` runs as many processes as there are cores.
"""

import os

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("KERAS_BACKEND", "torch")  # before anything imports Keras


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    torch.set_grad_enabled(True)  # which importing BayesFlow, as some tests do, turns off


# Of the docs site, where Sphinx may be missing; the site has a test of its own.
collect_ignore = ["docs/conf.py", "docs/links.py", "docs/mathml.py"]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (sbi and SciPy draw from the global state)
