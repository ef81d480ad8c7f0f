"""Compare rules that `fit(x, choose=True)` chose with the default, on fresh contaminated data.

    python scripts/choice_agreement.py OUT.md --models line gamma von-mises --num-obs 50

For each model of the zoo or of its judges: fit with and without the choice, and contaminate fresh
simulations by the panel of the self-test, with other seeds. A loss is the geometric mean of the
errors of the worst quarter of the panel's cells; beside it that of all cells, and the clean cost.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from mindist import MinimumDistance, selftest
from mindist_paper.zoo.judges import JUDGES
from mindist_paper.zoo.models import MODELS

HEAD = (
    "| model | chosen | best alternative | predicted loss, default and alternative | log ratio | "
    "measured loss, default and chosen | log ratio | all cells | clean | fits |\n"
    + "|---" * 10
    + "|\n"
)


def compare(name: str, num_simulations: int, num_obs: int, seed: int) -> str:
    """Return the row of one model."""
    model = MODELS[name] if name in MODELS else JUDGES[name]
    rng = np.random.default_rng(seed)

    def simulated(num: int) -> torch.Tensor:
        return torch.from_numpy(model.simulate(model.sample_prior(num, rng), num_obs, rng))

    x, fresh = simulated(num_simulations), simulated(1_000)
    start = time.process_time()
    default = MinimumDistance(model.summary).fit(x)
    once = time.process_time()
    chosen = MinimumDistance(model.summary).fit(x, choose=True)
    times = (time.process_time() - once) / (once - start)
    rules = chosen.rules_
    assert rules is not None
    both = [measured(default, fresh, seed)]
    both.append(both[0] if rules.chosen == selftest.DEFAULT else measured(chosen, fresh, seed))
    squared, every, clean = zip(*both, strict=True)
    loss, lower, error = selftest._judge(list(squared), len(fresh), seed)
    said = [", ".join(f"{part:.2f}" for part in parts) for parts in (loss, every, clean)]
    return (
        f"| {name} | {rules.chosen} | {rules.picked} | {rules.judged[0]:.2f}, "
        f"{rules.judged[1]:.2f} | {rules.lower:.3f} ({rules.error:.3f}) | {said[0]} | "
        f"{lower:.3f} ({error:.3f}) | {said[1]} | {said[2]} | {times:.0f} |\n"
    )


def measured(mds: MinimumDistance, x: torch.Tensor, seed: int) -> tuple[torch.Tensor, float, float]:
    """Return squared errors, the geometric mean of the errors of all cells, and the clean cost."""
    pairs = selftest._panel(x, torch.Generator().manual_seed(seed + 1_000))
    squared = torch.stack([selftest._cell(mds, *pair).squared for pair in pairs])
    cells = squared.nanmean(1).log1p().mean() / 2
    return squared, float(cells.exp()), selftest._clean(mds, x)[0]


def main() -> None:
    """Write the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--simulations", type=int, default=2_000)
    parser.add_argument("--num-obs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=101)
    given = parser.parse_args()
    given.out.write_text(HEAD)
    for name in given.models:
        with given.out.open("a") as file:
            file.write(compare(name, given.simulations, given.num_obs, given.seed))


if __name__ == "__main__":
    main()
