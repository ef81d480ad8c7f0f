"""Leave out one part of the default at a time, on models of the zoo: errors with and without it.

    python scripts/ablation.py OUT.md [--models location-scale,ar1] [--datasets 40] [--seed 13]

Needs both houses. Each row is a new fit to 5,000 simulations of each model. Errors are root mean
squares over datasets and parameters, relative to plain NPE's on clean data, in a geometric mean
over contaminated cells; "covers" is the mean coverage of 90% intervals over all cells. The seed is
none of those that docs/results shows.
"""

import argparse
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from mindist import MinimumDistance, RobustPosterior
from mindist.adaptation import calibration, procedure, sorting, speaking
from mindist.detection import CombinedTest
from mindist.features import residuals
from mindist_paper.zoo.cases import contaminate
from mindist_paper.zoo.evaluate import asked, score, train
from mindist_paper.zoo.models import MODELS
from mindist_paper.zoo.published import BENCHMARKS

CHOSEN = "location-scale,location-scale-n30,line,exponential,lognormal,poisson,ar1,mean-20"
CLUMPS, SORT = sorting._clumps, sorting.Sorter.__call__
FIXED = speaking.FixedPoints.__call__


class Nothing:
    """A regression that always says 0."""

    def __init__(self, num: int) -> None:
        self.num = num

    @classmethod
    def of(cls, s: Tensor, y: Tensor, num: int, wider: float = 0) -> tuple["Nothing", Tensor]:
        """Return it, and predictions of 0."""
        return cls(y.shape[1]), torch.zeros_like(y)

    def __call__(self, s: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros(len(s), self.num, dtype=torch.float64)


def one_width(kernel: Tensor, own: Tensor, kept: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield clumps at the first width, and none at the second."""
    ratio, excess = next(CLUMPS(kernel, own, kept))
    yield ratio, excess
    yield ratio, torch.zeros_like(excess)


def no_clumps(self: sorting.Sorter, seen: Tensor, s: Tensor, **how: Any) -> Any:
    """Sort by (a) alone."""
    return SORT(self, seen, s, **how | {"clumps": False})


def on_paths(self: speaking.FixedPoints, x: Tensor, seen: Tensor, s: Tensor, near: Tensor) -> Any:
    """Choose among the ends of paths alone."""
    return FIXED(self, x, seen, s, torch.full_like(near, torch.nan))


def unasked(seen: Tensor, s: Tensor) -> Tensor:
    """Do not ask whether regressions follow."""
    return torch.zeros(seen.shape[2], dtype=torch.float64)


def as_it_is(seen: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Transform no number."""
    return torch.zeros(seen.shape[2]).double(), torch.ones(seen.shape[2]).double()


def nowhere(rho: Tensor) -> Tensor:
    """Look at no number alone."""
    return rho.new_zeros(len(rho), 0, rho.shape[1])


PARTS: dict[str, list[tuple[Any, str, Any]]] = {
    "everything": [],
    "without b(s)": [(procedure, "Regression", Nothing)],
    "without (b), the clumps": [(sorting.Sorter, "__call__", no_clumps)],
    "without the second width of (b)": [(sorting, "_clumps", one_width)],
    "without numbers alone": [(sorting, "_place", nowhere)],
    "without random subsets": [(speaking, "SUBSETS", 0)],
    "without a price of minorities": [(speaking, "MINORITY", 0.0)],
    "one explanation": [(speaking, "TEMPERATURE", 1e-9)],
    "without going on from the best": [(speaking, "FURTHER", 0)],
    "without projections to start from": [(speaking.FixedPoints, "__call__", on_paths)],
    "labels as residuals": [(residuals, "LABELS", 0)],
    "covariance of all clean ones": [(calibration, "USUAL", 1.0)],
    "transforms that nothing follows": [(residuals, "_unfollowed", unasked)],
    "without transforms": [(residuals, "_choose_transform", as_it_is)],
    "price u + u² instead of u + 10 u²": [(speaking, "LEFT_OUT", 1.0)],
}
FAR = "without 'moved farther than any clean one'"
TESTS = {"1, 2, 3": [0, 1, 2], "1, 2": [0, 1], "1, 3": [0, 2], "2, 3": [1, 2]}


def measure(name: str, part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return relative errors of a model's cells, and rejection rates by the statistics used."""
    model = BENCHMARKS[name].model if name in BENCHMARKS else MODELS[name]

    def source(*key: int) -> np.random.Generator:
        return np.random.default_rng([args.seed, zlib.crc32(name.encode()), *key])

    theta = model.sample_prior(5_000, rng := source(0))
    x = torch.from_numpy(model.simulate(theta, model.num_obs, rng))
    centre, scale = theta.mean(0), theta.std(0)
    targets = torch.from_numpy((theta - centre) / scale).float()
    net = train(model.summary(x).float(), targets, args.seed)
    theta = model.sample_prior(args.datasets, rng := source(1))
    clean = model.simulate(theta, model.num_obs, rng)
    truth = torch.from_numpy((theta - centre) / scale).float()
    with ExitStack() as stack:
        for where, what, by in PARTS.get(part, []):
            stack.enter_context(patch.object(where, what, by))
        mds = MinimumDistance(model.summary, seed=args.seed).fit(x)
        own = mds.fitted_.procedure
        assert own is not None
        if part == FAR:
            own = replace(own, limits=replace(own.limits, moved=float("inf")))
            mds.fitted_ = replace(mds.fitted_, procedure=own)
        posterior = RobustPosterior(lambda s, num: torch.zeros(num, 1), mds)
        base = score(net, model.summary(torch.from_numpy(clean))[:, None], truth)[0].mean()
        found: dict[str, Any] = {"cells": {}, "rates": {}, "covers": []}
        for index, case in enumerate((None, *model.cases)):
            if case is not None and case.epsilon == 1:
                continue
            x_obs = (
                clean if case is None else contaminate(model, case, clean, theta, source(2, index))
            )
            data = torch.from_numpy(np.asarray(x_obs))
            error, covered = (part.mean() for part in score(net, asked(posterior, data), truth))
            label = "clean" if case is None else f"{case.name} {case.epsilon}"
            found["cells"][label] = float(np.sqrt(error / base))
            found["covers"].append(float(covered))
            statistics = mds.fitted_.statistics(data, model.summary(data))
            found["rates"][label] = {
                key: float(
                    (only(own, columns).p_value(statistics[:, columns]) <= 0.05).double().mean()
                )
                for key, columns in TESTS.items()
            }
    return found


def only(own: procedure.Procedure, columns: list[int]) -> CombinedTest:
    """Return the test by some of the statistics."""
    return CombinedTest(own.test.null[:, columns], tuple(own.test.names[i] for i in columns))


def main() -> None:
    """Measure all parts on all models; write a table after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default=CHOSEN)
    parser.add_argument("--parts", default="", help="separated by commas; else all of them")
    parser.add_argument("--datasets", type=int, default=40)
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.models.split(",")
    columns = ("clean, mean", "clean, worst", "contaminated, mean", "worst", "covers", "where")
    rows = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    power = [f"| statistics | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for part in args.parts.split(",") if args.parts else (*PARTS, FAR):
        found = {name: measure(name, part, args) for name in names}
        clean = [one["cells"].pop("clean") for one in found.values()]
        cells = {f"{n}, {c}": v for n, one in found.items() for c, v in one["cells"].items()}
        worst = max(cells, key=lambda cell: cells[cell])
        mean = np.exp(np.log(list(cells.values())).mean())
        covers = np.mean([value for one in found.values() for value in one["covers"]])
        numbers = (np.mean(clean), max(clean), mean, cells[worst], covers)
        rows.append(f"| {part} | {' | '.join(f'{v:.2f}' for v in numbers)} | {worst} |")
        if not PARTS.get(part, [1]):
            for key in TESTS:
                rates = [
                    np.mean([r[key] for cell, r in one["rates"].items() if cell != "clean"])
                    for one in found.values()
                ]
                power.append(f"| {key} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")
        args.out.write_text("\n".join([*rows, "", "Power:", "", *power, ""]))
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
