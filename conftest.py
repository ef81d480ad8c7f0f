"""The one fixture of tests, docstring examples, README and docs: each starts from the same seed."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (sbi and SciPy draw from the global state)
