"""The numbers of the paper's preset stay what they were when the second edition began.

`fixtures/golden/` was made by the first edition's tensor code, in float64, so that another order of
a sum changes the twelfth digit and another method the first. Each file holds what `golden` returns.

    PYTHONPATH=tests python -c "import test_golden; test_golden.write()"  # to make them again
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mindist
from mindist import MinimumDistance, RobustPosterior
from mindist.tasks import GaussianTask, OrnsteinUhlenbeckTask, SIRTask

FOLDER = Path(__file__).parent / "fixtures" / "golden"
TASKS = {"gaussian": GaussianTask(), "oup": OrnsteinUhlenbeckTask(), "sir": SIRTask()}
NUM_TRAINED, NUM_EACH = 1_000, 12
EPSILONS = (0.0, 0.2, 0.4)
FIELDS = ("s_obs", "s_star", "p_value", "distance_obs")


def golden(task_name: str) -> dict[str, np.ndarray]:
    """Adaptations and posterior means of 36 datasets, clean and contaminated."""
    task, generator = TASKS[task_name], torch.Generator().manual_seed(17)
    theta = task.sample_prior(NUM_TRAINED, generator)
    x = task.simulate(theta, generator=generator).double()
    mds = MinimumDistance.paper(task.summary).fit(x)
    clean = task.simulate(task.sample_prior(NUM_EACH, generator), generator=generator)
    observed = [task.contaminate(clean, e, generator=generator) for e in EPSILONS]
    x_obs = torch.cat(observed).double()
    result = mds.adapt(x_obs)
    found = {name: getattr(result, name) for name in FIELDS}
    posterior = RobustPosterior(regression_posterior(task.summary(x), theta.double()), mds)
    means = []
    for i, one in enumerate(x_obs):
        torch.manual_seed(i)
        means.append(posterior.sample((100,), x=one, show_progress_bars=False).mean(0))
    found["posterior_mean"] = torch.stack(means)
    return {name: value.double().numpy() for name, value in found.items()}


def regression_posterior(s: Tensor, theta: Tensor) -> Callable[[Tensor, int], Tensor]:
    """theta given s as a Gaussian around a line fitted to the simulations."""
    design = torch.cat([s, torch.ones_like(s[:, :1])], 1)
    line = torch.linalg.lstsq(design, theta).solution
    scale = (design @ line - theta).std(0)

    def draw(at: Tensor, num: int) -> Tensor:
        mean = at.reshape(1, -1).double() @ line[:-1] + line[-1]
        return mean + scale * torch.randn(num, theta.shape[1], dtype=torch.float64)

    return draw


def write() -> None:
    """Make the files again."""
    torch.set_num_threads(1)
    for task_name in TASKS:
        np.savez_compressed(FOLDER / f"{task_name}-paper.npz", **golden(task_name))
    names = sorted(mindist.__all__)
    (FOLDER / "names.json").write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("task_name", TASKS)
def test_the_papers_preset_gives_its_numbers(task_name: str) -> None:
    with np.load(FOLDER / f"{task_name}-paper.npz", allow_pickle=False) as file:
        expected = dict(file)
    for name, value in golden(task_name).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-8, err_msg=name)


def test_public_names_only_grow() -> None:
    before = json.loads((FOLDER / "names.json").read_text(encoding="utf-8"))
    assert set(before) <= set(mindist.__all__)
