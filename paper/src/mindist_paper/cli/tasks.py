"""`mindist tasks`: the paper's simulators."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mindist.cli.errors import check_choice
from mindist.cli.options import Json
from mindist.cli.output import print_json, print_table, waiting


def tasks(
    name: Annotated[str | None, typer.Argument(help="One of them: show all about it.")] = None,
    json: Json = False,
) -> None:
    """List the paper's tasks, each a simulator with prior, summary and contamination."""
    with waiting("Loading"):
        from mindist_paper.tasks import TASKS
    if name is not None:
        check_choice(name, tuple(TASKS), "task")
    made = [TASKS[key]() for key in ([name] if name else TASKS)]
    if json:
        print_json("tasks", tasks=[values(task) for task in made])
    elif name is not None:
        print(made[0].card)
    else:
        print_table(("name", *COLUMNS), [row(task) for task in made])
        print("All about one: mindist tasks NAME")


COLUMNS = ("parameters", "summaries", "observation", "observations", "simulations")


def row(task: Any) -> list[str]:
    """Return name and sizes of a task, as text."""
    sizes = (task.dim_theta, task.dim_summary, tuple(task.event_shape), task.num_obs)
    return [task.name, *map(str, sizes), f"{task.num_simulations:,}"]


def values(task: Any) -> dict[str, Any]:
    """Return the same as JSON values, with the task's card."""
    sizes = {name: getattr(task, name) for name in ("dim_theta", "dim_summary", "num_simulations")}
    shape = {"event_shape": list(task.event_shape), "n_obs": task.num_obs}
    title = task.card.splitlines()[0]
    return {"name": task.name, "title": title, **sizes, **shape, "card": task.card}
