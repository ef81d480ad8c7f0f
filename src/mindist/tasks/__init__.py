"""Three of the paper's simulators with their summaries and contaminations, one file each.

May import: torch, `mindist.checks`.
"""

from collections.abc import Callable
from typing import Any

from mindist import checks
from mindist.tasks.gaussian import GaussianTask
from mindist.tasks.ornstein_uhlenbeck import OrnsteinUhlenbeckTask
from mindist.tasks.sir import SIRTask
from mindist.tasks.task import Task

PAPERS: tuple[type[Task], ...] = (GaussianTask, OrnsteinUhlenbeckTask, SIRTask)
TASKS: dict[str, Callable[..., Task]] = {task.name: task for task in PAPERS}
"""The constructor of each task, by name; called without arguments it makes the paper's."""


def get_task(name: str, **options: Any) -> Task:
    """Return the task of that name, a key of `TASKS`, made with options such as `num_obs=50`.

    Example:
        >>> get_task("oup", num_obs=50)
        OrnsteinUhlenbeckTask(num_obs=50, num_times=25, step=0.2, variance=0.1, start=10.0)
    """
    return TASKS[checks.choice(name, tuple(TASKS), "task")](**options)


__all__ = ["TASKS", "GaussianTask", "OrnsteinUhlenbeckTask", "SIRTask", "Task", "get_task"]
