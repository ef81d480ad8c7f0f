"""The paper's other simulators, and contaminations that it does not have.

May import: torch, `mindist.checks`, `mindist.tasks`.
"""

from collections.abc import Callable
from typing import Any

from mindist import checks
from mindist import tasks as small
from mindist.tasks import Task
from mindist_paper.tasks.cryo_em import CryoEMTask
from mindist_paper.tasks.gaussian_factor import GaussianFactorTask

TASKS: dict[str, Callable[..., Task]] = {
    "gaussian": small.GaussianTask,
    "gaussian_factor": GaussianFactorTask,
    "oup": small.OrnsteinUhlenbeckTask,
    "sir": small.SIRTask,
    "cryo_em": CryoEMTask,
}
"""The constructor of each task, by name; called without arguments it makes the paper's."""


def get_task(name: str, **options: Any) -> Task:
    """Return the task of that name.

    Arguments:
        name: A key of `TASKS`.
        options: Of the task's constructor, such as `num_obs=50`.

    Example:
        >>> get_task("cryo_em", num_obs=50).event_shape
        (32, 32)
    """
    return TASKS[checks.choice(name, tuple(TASKS), "task")](**options)


__all__ = ["TASKS", "CryoEMTask", "GaussianFactorTask", "get_task"]
