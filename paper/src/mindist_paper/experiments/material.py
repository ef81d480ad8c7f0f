"""What figures show besides rows: posteriors of a few datasets, sample images, time series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from mindist.demo import Sizes, draw_figure, train
from mindist.tasks import GaussianTask
from mindist_paper.evaluation.bank import make_datasets, make_task
from mindist_paper.evaluation.cell import Cell
from mindist_paper.evaluation.store import Store
from mindist_paper.experiments.grid import SHOWN_EPSILON
from mindist_paper.experiments.profiles import SIZES
from mindist_paper.report.figures import Material
from mindist_paper.report.kept import Images, Posteriors, Trajectories
from mindist_paper.report.panel import Panel

SHOWN_METHODS = ("npe", "mds-rf", "mds", "oracle")
NAMES = {
    "gaussian": (r"$\theta_1$", r"$\theta_2$"),
    "oup": (r"$\theta_1$", r"$\theta_2$"),
    "sir": (r"$\beta$", r"$\gamma$"),
    "cryo_em": ("conformation",),
}
NUM_IMAGES = 8
NUM_TRAJECTORIES = 12


def material(cells: Sequence[Cell], store: Store) -> Callable[[Panel], Material | None]:
    """For the panels of an experiment, what they draw."""
    shown = [c for c in cells if c.test.epsilon == SHOWN_EPSILON and c.bank.seed == 0]

    def of(panel: Panel) -> Material | None:
        if not shown:
            return None
        if panel.metric == "posterior":
            return posteriors([c for c in shown if _is_plain(c)], store)
        if panel.metric == "images":
            return images(shown[0])
        return trajectories(shown[0])

    return of


def _is_plain(cell: Cell) -> bool:
    return cell.recipe.method in SHOWN_METHODS and cell.test.contamination.get("delta", 3.0) == 3.0


def posteriors(cells: Sequence[Cell], store: Store) -> Posteriors | None:
    """The posteriors of the first datasets by several methods."""
    kept = {cell.recipe.method: store.read_samples(cell) for cell in cells}
    kept = {method: frame for method, frame in kept.items() if len(frame)}
    if not kept:
        return None
    first = next(iter(kept.values()))
    samples = {method: list(frame.samples) for method, frame in kept.items()}
    return Posteriors(samples, list(first.theta), NAMES.get(cells[0].bank.task, ()))


def images(cell: Cell) -> Images:
    """Clean images of one dataset, and the noise that takes the place of some."""
    data = make_datasets(cell.bank, cell.test)
    replaced = (data.x_obs != data.x_clean).flatten(2).any(-1)
    clean = data.x_clean[~replaced][:NUM_IMAGES]
    noise = data.x_obs[replaced][:NUM_IMAGES]
    name = {"hsp90": "HSP90"}.get(str(cell.bank.options.get("molecule")), "synthetic chain")
    rows = {name: clean, "contamination": noise}
    return Images({label: pictures for label, pictures in rows.items() if len(pictures)})


def trajectories(cell: Cell) -> Trajectories:
    """Clean and contaminated trajectories of one dataset."""
    data = make_datasets(cell.bank, cell.test)
    replaced = (data.x_obs != data.x_clean).any(-1)
    which = int(replaced.sum(1).argmax())  # a dataset that has both, where few are contaminated
    clean = data.x_clean[which][~replaced[which]][:NUM_TRAJECTORIES]
    wrong = data.x_obs[which][replaced[which]][:NUM_TRAJECTORIES]
    series = {"clean": clean, "contaminated": wrong}
    step = getattr(make_task(cell.bank), "step", 1.0)
    return Trajectories({k: v for k, v in series.items() if len(v)}, step)


def draw_figure1(profile: str, stem: Path) -> tuple[Path, Path]:
    """The paper's Figure 1 as PNG and SVG."""
    size = SIZES[profile]["gaussian"].simulations
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = GaussianTask()
        methods = train(task, Sizes(simulations=size))
        png = draw_figure(task, methods, stem.with_suffix(".png"))
        return png, draw_figure(task, methods, stem.with_suffix(".svg"))
    finally:
        torch.set_num_threads(before)


__all__ = ["draw_figure1", "images", "material", "posteriors", "trajectories"]
