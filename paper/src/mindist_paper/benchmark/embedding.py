r"""Mean embeddings: against scikit-learn, against the bare multiply and cosine, and how exact.

.. math:: \bar z_b = \frac1N \sum_n z(x_{bn}), \qquad x \in \mathbb{R}^{B \times N \times D},
    \quad z \in \mathbb{R}^K, \quad K = 512 .
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mindist.features import FourierFeatures
from mindist_paper.benchmark import literal
from mindist_paper.benchmark.limit import best_limit
from mindist_paper.benchmark.material import NUM_FEATURES, Material
from mindist_paper.benchmark.row import Claim, Row, ratio_row
from mindist_paper.benchmark.timing import Contender, race

OURS, STOCK = "mindist", "RBFSampler"
LIMIT, PAIRED = "bare", "bare paired"
MULTIPLY_DOMINATES = 512  # coordinates of an observation from which on the claims are those
FREQUENCIES = ("random", "sobol", "orthogonal")
NUM_POINTS, NUM_DRAWS = 300, 10


def embedding_rows(material: Material, threads: int) -> list[Row]:
    """Ratios for each size, and on one thread the error of the kernel for the record."""
    rows: list[Row] = []
    for case in material.sizes.embedding:
        rows += _case(*case, material.sizes.rounds, threads)
    if threads == 1:
        rows += kernel_rows(material.sizes.embedding[0][2])
    return rows


def _case(num: int, num_obs: int, dim: int, rounds: int, threads: int) -> list[Row]:
    x = torch.randn(num, num_obs, dim, generator=torch.Generator().manual_seed(0))
    flat, stock = x.flatten(0, 1), literal.draw_features(x[:100])
    features = _draw(dim, stock.gamma, "sobol", seed=0)
    weight = torch.randn(dim, NUM_FEATURES, generator=torch.Generator().manual_seed(0))
    bare = best_limit(flat, weight, threads)
    half = weight[:, : NUM_FEATURES // 2].contiguous()
    paired = best_limit(flat, half, threads, paired=True)
    times = race(
        {
            OURS: Contender(lambda: features.mean(x), num),
            STOCK: Contender(lambda: literal.embed(stock, x), num),
            LIMIT: Contender(bare.run, num),
            PAIRED: Contender(paired.run, num),
        },
        rounds,
    )
    what = f"{num:,} x {num_obs} x {dim:,}, K = {NUM_FEATURES}"
    wide = dim >= MULTIPLY_DOMINATES
    return [
        ratio_row(
            what,
            times,
            STOCK,
            OURS,
            claim=None if wide else Claim("at least", 3),
            threads=threads,
            note="transform of all rows, then the mean of each dataset",
        ),
        ratio_row(
            what,
            times,
            OURS,
            LIMIT,
            claim=Claim("at most", 1.05 if wide else 1.3),
            threads=threads,
            note=f"K cosines; fastest with {bare.library} and {bare.chunk:,} rows at once",
        ),
        ratio_row(
            what,
            times,
            OURS,
            PAIRED,
            threads=threads,
            note=f"K/2 cosines and sines; fastest with {paired.library} and {paired.chunk:,} rows",
        ),
    ]


def _draw(dim: int, gamma: float, frequencies: str, seed: int) -> FourierFeatures:
    return FourierFeatures.draw(
        (dim,),
        NUM_FEATURES,
        bandwidth=1 / math.sqrt(2 * gamma),
        generator=torch.Generator().manual_seed(seed),
        frequencies=frequencies,
    )


def kernel_rows(dim: int) -> list[Row]:
    """Root mean squared error of the kernel of our features, relative to `RBFSampler`'s."""
    x = torch.randn(1, NUM_POINTS, dim, generator=torch.Generator().manual_seed(1))
    points = x[0]
    gamma = literal.draw_features(x).gamma
    stock = torch.tensor(
        [kernel_error(_stock_features(x, seed), points, gamma) for seed in range(NUM_DRAWS)]
    )
    rows = []
    for kind in FREQUENCIES:
        draws = [_draw(dim, gamma, kind, seed)(points) for seed in range(NUM_DRAWS)]
        ratio = torch.tensor([kernel_error(z, points, gamma) for z in draws]) / stock.mean()
        low, high = (float(ratio.quantile(q)) for q in (0.05, 0.95))
        what = f"kernel error in {dim} dimensions, K = {NUM_FEATURES}"
        measure = f"paired, {kind} frequencies / {STOCK}"
        note = f"{NUM_DRAWS} draws of the features; RMSE of RBFSampler {float(stock.mean()):.2g}"
        rows.append(Row(what, measure, float(ratio.mean()), low, high, note=note))
    return rows


def kernel_error(z: Tensor, points: Tensor, gamma: float) -> float:
    """Root mean squared error of inner products of features `(n, K)` as kernel of points `(n, D)`.

    Example:
        >>> kernel_error(torch.ones(3, 1), torch.zeros(3, 2), 1.0)
        0.0
    """
    exact = torch.exp(-gamma * torch.cdist(points, points).square())
    return float((z @ z.T - exact).square().mean().sqrt())


def _stock_features(x: Tensor, seed: int) -> Tensor:
    return torch.from_numpy(literal.draw_features(x, seed).transform(x[0].numpy()))


__all__ = ["embedding_rows", "kernel_error", "kernel_rows"]
