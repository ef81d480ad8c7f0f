"""Rivals: the paper's pipeline written from stock parts, sbi's test, the bare multiply and cosine.

The pipeline (Section 3.2 of the paper) is scikit-learn's `RBFSampler`, a torch network fitted with
Adam, and torch's L-BFGS from the observed summary, one dataset at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from sbi.diagnostics.misspecification import calc_misspecification_mmd
from sklearn.kernel_approximation import RBFSampler
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from mindist_paper.benchmark.timing import seconds_of

NUM_FEATURES = 512
WIDTH, LEARNING_RATE, BATCH_SIZE, PATIENCE = 256, 1e-3, 256, 10
HELD_OUT, MAX_ITERATIONS = 0.1, 100
PAIRS_OF = 2_000  # pooled observations whose distances give the median
CHUNKS = (256, 1_024, 4_096, 16_384)
Summary = Callable[[Tensor], Tensor]
Decoder = Callable[[Tensor], Tensor]
Run = Callable[[], Tensor]


def draw_features(x: Tensor) -> RBFSampler:
    """Draw features of the Gaussian kernel at the median distance in datasets `(M, N, *event)`."""
    rows = x.flatten(0, 1).flatten(1)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:PAIRS_OF]
    bandwidth = float(torch.nn.functional.pdist(rows[chosen]).median())
    features = RBFSampler(gamma=1 / (2 * bandwidth**2), n_components=NUM_FEATURES, random_state=0)
    return features.fit(rows[:1].numpy())


def embed(features: RBFSampler, x: Tensor) -> Tensor:
    """Return mean embeddings `(B, K)` of datasets `(B, N, *event)`: transform, then average."""
    rows = x.flatten(0, 1).flatten(1).numpy()
    return torch.from_numpy(features.transform(rows)).view(*x.shape[:2], -1).mean(1)


def fit_network(s: Tensor, z_bar: Tensor, epochs: int = 200) -> Decoder:
    """Fit a network from summaries `(M, d_s)` to mean embeddings `(M, K)` with Adam."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        centre, scale, held_out = s.mean(0), s.std(0), round(HELD_OUT * len(s))
        layers = nn.Sequential(
            *(nn.Linear(s.shape[1], WIDTH), nn.SiLU()),
            *(nn.Linear(WIDTH, WIDTH), nn.SiLU()),
            nn.Linear(WIDTH, z_bar.shape[1]),
        )
        order = torch.randperm(len(s))
        inputs, targets = ((s - centre) / scale)[order], z_bar[order]
        optimiser = torch.optim.Adam(layers.parameters(), lr=LEARNING_RATE)

        def error(rows: Tensor | slice) -> Tensor:
            return cast(Tensor, (layers(inputs[rows]) - targets[rows]).square().sum(-1).mean())

        best, best_state, waited = float("inf"), copy.deepcopy(layers.state_dict()), 0
        for _ in range(epochs):
            for batch in (held_out + torch.randperm(len(s) - held_out)).split(BATCH_SIZE):
                optimiser.zero_grad()
                error(batch).backward()
                optimiser.step()
            with torch.no_grad():
                now = error(slice(held_out)).item()
            waited = 0 if now < best else waited + 1
            if now < best:
                best, best_state = now, copy.deepcopy(layers.state_dict())
            if waited >= PATIENCE:
                break
        layers.load_state_dict(best_state)
    layers.requires_grad_(False)
    return lambda s: cast(Tensor, layers((s - centre) / scale))


def minimise(decoder: Decoder, s_obs: Tensor, z_bar: Tensor) -> Tensor:
    """Return the summary `(d_s,)` whose decoded embedding is nearest to an observed one `(K,)`."""
    s = s_obs[None].clone().requires_grad_(True)
    optimiser = torch.optim.LBFGS([s], max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        distance = (decoder(s) - z_bar).square().sum()
        distance.backward()
        return distance

    optimiser.step(closure)
    return s.detach()[0]


@dataclass(frozen=True)
class LiteralPipeline:
    """All of it, fitted; it adapts every dataset."""

    summary: Summary
    features: RBFSampler
    network: Decoder

    @classmethod
    def fit(cls, summary: Summary, x: Tensor, epochs: int = 200) -> LiteralPipeline:
        """Fit to simulated datasets `(M, N, *event)`."""
        features = draw_features(x)
        return cls(summary, features, fit_network(summary(x), embed(features, x), epochs))

    def adapt(self, x_obs: Tensor) -> Tensor:
        """Return the summary `(d_s,)` to use for one dataset `(N, *event)`."""
        s_obs, z_bar = self.summary(x_obs[None]), embed(self.features, x_obs[None])
        return minimise(self.network, s_obs[0], z_bar[0])


def sbi_p_value(x_obs: Tensor, x: Tensor, num_shuffles: int = 1_000) -> float:
    """Return the p-value of sbi's MMD test of observations `(N, D)` against simulated `(n, D)`."""
    return float(calc_misspecification_mmd(x_obs, x, n_shuffle=num_shuffles)[0])


def best_bare(rows: Tensor, weight: Tensor, threads: int) -> tuple[Run, str]:
    """Return the fastest multiply and cosine of rows `(n, D)` with `(D, K)`, and its name."""
    chunks = [chunk for chunk in CHUNKS if chunk < 2 * len(rows)]
    ways = {f"{n:,} rows at once": _bare(rows, weight, n, threads) for n in chunks}
    best = {name: min(seconds_of(run) for _ in range(3)) for name, run in ways.items()}
    name = min(best, key=best.__getitem__)
    return ways[name], name


def _bare(rows: Tensor, weight: Tensor, chunk: int, threads: int) -> Run:
    data, matrix = rows.numpy(), weight.numpy()
    buffers = np.empty((threads, chunk, weight.shape[1]), data.dtype)
    firsts = range(0, len(data), chunk)

    def work(worker: int) -> None:
        for first in firsts[worker::threads]:
            part = data[first : first + chunk]
            waves = np.matmul(part, matrix, out=buffers[worker, : len(part)])
            np.cos(waves, out=waves)

    def run() -> Tensor:
        with controller.limit(limits=1, user_api="blas"):
            list(pool.map(work, range(threads)))
        last = len(firsts) - 1
        return torch.from_numpy(buffers[last % threads, : len(data) - firsts[last]])

    pool, controller = ThreadPoolExecutor(threads), ThreadpoolController()
    return run
