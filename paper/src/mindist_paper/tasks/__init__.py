"""The paper's other simulators."""

from collections.abc import Callable
from typing import Any

from mindist import checks
from mindist import tasks as small
from mindist.tasks import Task
from mindist_paper.tasks.cryo_em import CryoEMTask
from mindist_paper.tasks.gaussian_factor import GaussianFactorTask

# The constructor of each task, by name; called without arguments it makes the paper's
TASKS: dict[str, Callable[..., Task]] = {
    "gaussian": small.GaussianTask,
    "gaussian_factor": GaussianFactorTask,
    "oup": small.OrnsteinUhlenbeckTask,
    "sir": small.SIRTask,
    "cryo_em": CryoEMTask,
}


def get_task(name: str, **options: Any) -> Task:
    """Return the task of that name."""
    return TASKS[checks.choice(name, tuple(TASKS), "task")](**options)
