r"""Adapting contaminated Ornstein-Uhlenbeck datasets, against L-BFGS one dataset at a time.

First everything that either does: our default, from the data to the summary, weights, outliers and
covariance, against the paper's pipeline, from the data to the summary. Then the same problem,

.. math:: s^\star = \arg\min_s \|\mu(s) - \bar z\|^2 ,

with the same :math:`\mu` and :math:`\bar z` for both: batched Levenberg-Marquardt from simulated
summaries against torch's L-BFGS in float64 from the observed one, in time and in what is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from mindist.adaptation import Problem, Search, search
from mindist.minimum_distance import MinimumDistance
from mindist_paper.benchmark import literal
from mindist_paper.benchmark.material import EPSILON, Material
from mindist_paper.benchmark.row import Claim, Row, ratio_row
from mindist_paper.benchmark.timing import Contender, race

TASK = "oup"
DEFAULT, PRESET, STOCK = "default", "paper preset", "literal L-BFGS"
PLAIN, SEARCH = "Levenberg-Marquardt", "its search alone"
GIVEN = "its search alone is given the embeddings, and says nothing about the observations"
MANY, ALONE = Claim("at least", 50), Claim("at least", 5)
TOLERANCE = 1e-9  # relative: two solvers at one minimum differ by rounding


def adaptation_rows(material: Material, threads: int) -> list[Row]:
    """Whole pipelines, then the same objective with either decoder."""
    rows = _pipelines(material, threads)
    for name, mds in (
        ("MLP", plain(material.paper(TASK))),
        ("ridge", plain(material.default(TASK))),
    ):
        rows += _same_objective(material, threads, name, mds)
    return rows


def plain(mds: MinimumDistance) -> MinimumDistance:
    """The same fit with the plain distance as the objective, searched by Levenberg-Marquardt."""
    other = copy(mds)
    other.search = Search(stay=0, reweight=0)
    return other


def _pipelines(material: Material, threads: int) -> list[Row]:
    sizes, x = material.sizes, material.observed(TASK).x_obs
    default, preset, stock = (
        material.default(TASK),
        material.paper(TASK),
        material.literal(TASK),
    )
    few, one = x[: sizes.one_by_one], x[: sizes.alone]

    def contenders(many: Tensor, some: Tensor) -> dict[str, Contender]:
        return {
            DEFAULT: _contender(lambda x: default.adapt(x, force=True), many),
            PRESET: _contender(lambda x: preset.adapt(x, force=True), some),
            STOCK: _one_by_one(lambda x: stock.adapt(x, force=True), some),
        }

    together = race(contenders(x, few), sizes.slow_rounds)
    single = contenders(one, one) | {
        DEFAULT: _one_by_one(lambda x: default.adapt(x, force=True), one),
        PRESET: _one_by_one(lambda x: preset.adapt(x, force=True), one),
    }
    alone = race(single, sizes.slow_rounds)
    what = f"{len(x):,} OUP datasets, epsilon {EPSILON:g}"
    note = f"per dataset; {DEFAULT} on all at once, the others on {len(few)}"
    return [
        ratio_row(what, together, STOCK, DEFAULT, claim=MANY, threads=threads, note=note),
        ratio_row(what, together, PRESET, DEFAULT, threads=threads, note=note),
        ratio_row("one OUP dataset alone", alone, STOCK, DEFAULT, claim=ALONE, threads=threads),
        ratio_row("one OUP dataset alone", alone, PRESET, DEFAULT, threads=threads),
    ]


def _same_objective(
    material: Material, threads: int, decoder: str, mds: MinimumDistance
) -> list[Row]:
    """The same decoder and embedding for both solvers; each embeds the data itself."""
    sizes, x = material.sizes, material.observed(TASK).x_obs
    fitted = mds.fitted_

    def stock(one: Tensor) -> Tensor:
        s, z_bar = fitted.summarise(one[None]), fitted.embedding.mean(one[None])
        z_bar = fitted.embedding.split(z_bar.double())[0]
        return literal.minimise(fitted.decoder, s[0].double(), z_bar[0])

    few, one = x[: sizes.one_by_one], x[: sizes.alone]
    s_obs, z_bar = fitted.summarise(x), fitted.embedding.split(fitted.embedding.mean(x))[0].double()

    def search_alone() -> None:
        generator = torch.Generator().manual_seed(0)
        search(fitted.wide, mds.search, Problem(x, s_obs, z_bar), generator)

    together = race(
        {
            PLAIN: _contender(lambda x: mds.adapt(x, force=True), x),
            SEARCH: Contender(search_alone, len(x)),
            STOCK: _one_by_one(stock, few),
        },
        sizes.slow_rounds,
    )
    alone = race(
        {
            PLAIN: _one_by_one(lambda x: mds.adapt(x, force=True), one),
            STOCK: _one_by_one(stock, one),
        },
        sizes.slow_rounds,
    )
    what = f"same objective, {decoder} decoder"
    note = f"per dataset; {PLAIN} on {len(x):,} at once, {STOCK} on {len(few)}"
    return [
        ratio_row(what, together, STOCK, PLAIN, claim=MANY, threads=threads, note=note),
        ratio_row(what, together, STOCK, SEARCH, threads=threads, note=f"{note}; {GIVEN}"),
        ratio_row(f"{what}, one alone", alone, STOCK, PLAIN, claim=ALONE, threads=threads),
        *([_objective_row(what, mds, x, stock)] if threads == 1 else []),
    ]


def _objective_row(
    what: str, mds: MinimumDistance, x: Tensor, stock: Callable[[Tensor], Tensor]
) -> Row:
    """In how many datasets our objective is at least as low."""
    fitted, result = mds.fitted_, mds.adapt(x, force=True)
    z_bar = fitted.embedding.split(fitted.embedding.mean(x).double())[0]
    theirs = fitted.distance(torch.stack([stock(one) for one in x]), z_bar)
    share = (result.distance_star <= theirs * (1 + TOLERANCE)).double().mean()
    error = float((share * (1 - share) / len(x)).sqrt())
    return Row(
        what,
        f"share of datasets with an objective at least as low as {STOCK}'s",
        float(share),
        float(share) - 2 * error,
        min(1.0, float(share) + 2 * error),
        Claim("at least", 0.99),
        note=f"all {len(x):,} datasets, to a relative {TOLERANCE:g}; median objective "
        f"{float(result.distance_star.median()):.3g} against {float(theirs.median()):.3g}",
    )


def _contender(adapt: Callable[[Tensor], object], x: Tensor) -> Contender:
    return Contender(lambda: adapt(x), len(x))


def _one_by_one(adapt: Callable[[Tensor], object], x: Tensor) -> Contender:
    def run() -> None:
        for one in x:
            adapt(one)

    return Contender(run, len(x))


__all__ = ["adaptation_rows", "plain"]
