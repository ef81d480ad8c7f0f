"""Ward et al.'s four tasks with summaries alone: plain NPE and `Entrywise` beside what they print.

    python scripts/ward.py OUT.md [--simulations 20000] [--observations 500]

One vector of summaries is observed for each parameter, from the wrong model. Simulators, summaries
and misspecification are those of Ward et al. 2022 (code of our own; SIR is that of `mindist.tasks`,
one trajectory). The squared error of the posterior mean is in prior standard deviations, averaged
over parameters. The posterior is a Gaussian regression network instead of their spline flow.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mindist import Entrywise
from mindist.tasks import SIRTask
from mindist_paper.zoo.evaluate import score, train

Array = np.ndarray
Generator = np.random.Generator


@dataclass(frozen=True)
class Task:
    """A prior, and summaries of one observation from the model or from the wrong one."""

    sample_prior: Callable[[int, Generator], Array]
    simulate: Callable[[Array, bool, Generator], Array]
    published: str


def gaussian(theta: Array, wrong: bool, rng: Generator) -> Array:
    """Return mean and variance of 100 normal values of variance 1, or 2."""
    x = theta + np.sqrt(1 + wrong) * rng.standard_normal((len(theta), 100))
    return np.stack([x.mean(1), x.var(1)], 1)


def linear(theta: Array, wrong: bool, rng: Generator) -> Array:
    """Return ten values with noise of variance .1, or .2."""
    return theta + np.sqrt(0.1 * (1 + wrong)) * rng.standard_normal(theta.shape)


def epidemic(theta: Array, wrong: bool, rng: Generator) -> Array:
    """Return six summaries of a year's infections; 5% of a weekend's may be told on Monday."""
    task, generator = SIRTask(), torch.Generator().manual_seed(int(rng.integers(2**31)))
    x = task.simulate(torch.from_numpy(theta).float(), 1, generator=generator)
    x = task.contaminate(x, float(wrong), generator=generator)
    return task.summary(x).double().numpy()


def tumour(theta: Array, wrong: bool, rng: Generator) -> Array:
    """Return counts of stromal and cancer cells, and mean and largest distance to a cancer cell.

    Cells are uniform on a square; each parent makes its nearest ones cancerous. If `wrong`, the
    core of three tumours in four has died: cells within .8 of the radius are gone.
    """
    found = np.full((len(theta), 4), np.nan)
    for row, (cells, parents, daughters) in zip(found, theta, strict=True):
        place = rng.uniform(size=(rng.poisson(cells), 2))
        centre = rng.uniform(size=(rng.poisson(parents) + 1, 2))
        size = rng.poisson(daughters, len(centre)) + 1
        far = np.linalg.norm(place[:, None] - centre, axis=2)
        radius = np.sort(far, 0)[np.minimum(size, len(place) - 1), np.arange(len(centre))]
        cancer = (far <= radius).any(1)
        if wrong:
            dead = rng.uniform(size=len(centre)) < 0.75
            alive = ~(far[:, dead] < 0.8 * radius[dead]).any(1)
            place, cancer = place[alive], cancer[alive]
        if cancer.any() and not cancer.all():
            near = np.linalg.norm(place[~cancer][:50, None] - place[cancer], axis=2).min(1)
            row[:] = (~cancer).sum(), cancer.sum(), near.mean(), near.max()
    return found


def triangle(num: int, rng: Generator) -> Array:
    """Draw rates, the second below the first."""
    beta = np.sqrt(rng.uniform(size=num)) / 2
    return np.stack([beta, beta * rng.uniform(size=num)], 1)


TASKS = {
    "Gaussian": Task(lambda n, r: 5 * r.standard_normal((n, 1)), gaussian, ".160 | .038 | .024"),
    "GaussianLinear": Task(
        lambda n, r: np.sqrt(0.1) * r.standard_normal((n, 10)), linear, ".748 | .699 | .700"
    ),
    "SIR": Task(triangle, epidemic, ".852 | .155 | .124"),
    "CS": Task(
        lambda n, r: r.uniform((200, 3, 10), (1500, 20, 20), (n, 3)), tumour, "1.05 | .709 | .695"
    ),
}


def measure(task: Task, simulations: int, observations: int, seed: int) -> str:
    """Return the row of one task."""
    rng = np.random.default_rng(seed)
    theta = task.sample_prior(simulations, rng)
    s = task.simulate(theta, False, rng)
    fine = np.isfinite(s).all(1)
    theta, s = theta[fine], torch.from_numpy(s[fine])
    centre, scale = theta.mean(0), theta.std(0)
    net = train(s.float(), torch.from_numpy((theta - centre) / scale).float(), seed)
    entries = Entrywise().fit(s)
    theta = task.sample_prior(observations, rng)
    truth = torch.from_numpy((theta - centre) / scale).float()
    cells: list[str] = []
    for wrong in (False, True):
        seen = torch.from_numpy(task.simulate(theta, wrong, rng))
        rows = torch.isfinite(seen).all(1)
        result = entries.adapt(seen[rows])

        def shown(points: Tensor, rows: Tensor = rows) -> str:
            squares, covered = score(net, points, truth[rows])
            error = np.std(squares) / np.sqrt(len(squares))
            return f"{squares.mean():.3g} ± {error:.1g} ({covered.mean():.2f})"

        cells += [shown(seen[rows][:, None].float()), shown(result.completed.float())]
        if wrong:
            cells += [f"{result.misspecified.double().mean():.2f}", task.published]
            aside = result.outliers.double().mean(0).tolist()
            cells.append(" ".join(f"{share:.2f}" for share in aside))
    return " | ".join(cells)


def main() -> None:
    """Measure the tasks; write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--simulations", type=int, default=20_000)
    parser.add_argument("--observations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["clean, plain", "clean, Entrywise", "wrong, plain", "wrong, Entrywise", "detected"]
    columns += ["NPE", "NNPE", "RNPE", "set aside, by summary"]
    rows = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name, task in TASKS.items():
        rows.append(f"| {name} | {measure(task, args.simulations, args.observations, args.seed)} |")
        args.out.write_text("\n".join(rows) + "\n", encoding="utf-8")
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
