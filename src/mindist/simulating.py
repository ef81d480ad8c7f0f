r"""Simulate to disk: `mindist.simulate`, the public side of the simulation bank.

.. math:: \theta_i \sim p(\theta), \quad x^{(i)}_{1:N} \sim p_{\theta_i}, \quad
    s_i = f(x^{(i)}), \quad \bar z_i = \tfrac1N \textstyle\sum_n z(x^{(i)}_n), \qquad i \le M
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindist.features import FourierFeatures
from mindist.features.embedding import Embedding
from mindist.features.embedding_layout import check_embedding
from mindist.minimum_distance import MinimumDistance
from mindist.simulation.bank import SimulationBank
from mindist.simulation.build import Request, build
from mindist.simulation.estimate import Estimate
from mindist.simulation.estimate import estimate as estimate_bank
from mindist.simulation.plan import Settings
from mindist.simulation.sources import Sources
from mindist.simulation.work import Embed


class MinimumDistanceEmbedder:
    """The embedding that an estimator chooses; see `mindist.simulation.build.Embedder`.

    Arguments:
        mds: Its settings decide.
        bank: The bank that it is for.
    """

    def __init__(self, mds: MinimumDistance, bank: Path = Path()) -> None:
        self.mds, self.bank = mds, bank

    @property
    def settings(self) -> dict[str, Any]:
        """Bandwidth, representation and so on; of a function its name."""
        rule = self.mds._rule
        own = rule.representation
        named = own if isinstance(own, str) else getattr(own, "__qualname__", type(own).__name__)
        return {**{f.name: getattr(rule, f.name) for f in fields(rule)}, "representation": named}

    def choose(self, x: Tensor, s: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of the embedding that suits datasets `(P, N, *event)`."""
        config, tensors = self.mds.choose_embedding(x, s).state()
        return config, {name: value.cpu() for name, value in tensors.items()}

    def make(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Embed:
        """Mean embeddings of datasets, by these values and tensors."""
        own = self.mds.representation if callable(self.mds.representation) else None
        check_embedding(self.bank / "embedding", config, tensors)
        return Embedding.from_state(config, tensors, own).mean

    def rough(self, x: Tensor) -> Tensor:
        """Mean embeddings that take as long, before any was chosen; nothing else is right of them.

        Of the observations as they are: what a representation costs is not counted.
        """

        def draw() -> FourierFeatures:
            source, shape = torch.Generator().manual_seed(0), tuple(x.shape[2:])
            size, rule = self.mds.num_features, "random"
            return FourierFeatures.draw(
                shape, size, bandwidth=1.0, generator=source, frequencies=rule
            )

        return Embedding(draw(), draw() if self.mds.local else None, None).mean(x)


def simulate(
    prior: Any,
    simulator: Callable[..., Any],
    summary: Callable[[Any], Any],
    num: int,
    *,
    n_obs: int,
    out: str | os.PathLike[str],
    workers: int = 1,
    seed: int = 0,
    keep: str = "embedding",
    mds: MinimumDistance | None = None,
    chunk: int | None = None,
    time_limit: float | None = None,
    failures: str = "redraw",
    vectorised: bool | None = None,
    progress: bool | None = None,
) -> SimulationBank:
    """Simulate datasets into a bank on disk, or go on with one.

    The bank's arrays depend on the arguments alone: not on the number of workers, their order, or
    how often the call was interrupted, by whatever. The same call goes on where it was; nothing
    that was complete is simulated again. Under `joblib.parallel_config("dask")` or `"ray"` the
    chunks are simulated on that cluster. See docs/simulations.md.

    Arguments:
        prior: An object with `.sample((n,))`, as of torch or sbi, or a function of n; gives
            parameters `(n, d_theta)`.
        simulator: A function of one theta `(d_theta,)` that gives a dataset `(N, *event)`, or of
            `(B, d_theta)` that gives `(B, N, *event)`. It draws from the global generators of
            torch, NumPy or Python, which are seeded for each call, or from `generator` (torch) or
            `rng` (NumPy), if it names such an argument. An argument `n_obs` gets N.
        summary: Datasets `(B, N, *event)` to summaries `(B, d_s)`.
        num: M, the number of datasets.
        n_obs: N, the number of observations of each.
        out: Folder of the bank; new, empty, or a bank that the same call began.
        workers: Processes of this machine, where no cluster is chosen.
        seed: Of everything random.
        keep: `"embedding"`: parameters, summaries and mean embeddings, and the data of the first
            1,000 datasets; `"data"`: the data of all as well.
        mds: The estimator that the bank is for: its settings decide how data are embedded. By
            default `MinimumDistance(summary)`.
        chunk: Datasets that are simulated, written and, after an interruption, lost together. By
            default a hundredth of the bank, at most 16 MB.
        time_limit: Seconds that one simulation may take; with it the simulator runs in a process of
            its own, so that it ends whatever it does.
        failures: What becomes of draws that raise, take too long, or give NaN or another shape:
            `"redraw"` (new parameters, so that the bank follows the prior given success),
            `"report"` (the row is left out: NaN, not `valid`), or `"raise"`. All are kept in
            `bank.failures`.
        vectorised: Whether the simulator takes a batch; by default it is tried on one.
        progress: Whether to show a bar; by default on a terminal.

    Returns:
        The complete bank, to be read or given to `MinimumDistance.fit`.

    Example:
        >>> import tempfile, torch
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> simulator = lambda theta, n_obs: theta + torch.randn(n_obs, 2)
        >>> path, mean = tempfile.mkdtemp() + "/bank", lambda x: x.mean(1)
        >>> bank = simulate(prior, simulator, mean, 50, n_obs=9, out=path, chunk=25)
        >>> bank.theta.shape, bank.s.shape, bank.z_bar.shape, bank.x is None
        ((50, 2), (50, 2), (50, 1024), True)
    """
    settings = Settings(num, n_obs, seed, keep, failures, chunk, time_limit, vectorised)
    bank = Path(out).expanduser()
    embedder = MinimumDistanceEmbedder(MinimumDistance(summary) if mds is None else mds, bank)
    request = Request(Sources(prior, simulator, summary), settings, embedder, workers, progress)
    return build(request, bank)


def estimate(
    prior: Any,
    simulator: Callable[..., Any],
    summary: Callable[[Any], Any],
    num: int,
    *,
    n_obs: int,
    workers: int = 1,
    mds: MinimumDistance | None = None,
    **settings: Any,
) -> Estimate:
    """What `simulate` would take: simulates for a few seconds and writes nothing.

    Arguments:
        prior: As for `simulate`, as all others.
        simulator: One theta to one dataset, or a batch to a batch.
        summary: Datasets to summaries.
        num: M.
        n_obs: N.
        workers: Processes.
        mds: The estimator that the bank is for.
        settings: `seed`, `keep`, `failures`, `chunk`, `time_limit` and `vectorised`.

    Example:
        >>> import numpy as np
        >>> prior = lambda n, rng: rng.normal(size=(n, 1))
        >>> simulator = lambda theta, rng: rng.normal(theta, size=(9, 1))
        >>> print(estimate(prior, simulator, lambda x: x.mean(1), 1_000, n_obs=9))
        1,000 datasets of 9 observations, simulated one by one, 100 chunks of 10, 1 worker:
        time    ... s (... ms for a dataset, timed on ...)
        memory  401 MB
        disk    5 MB at most
    """
    mds = MinimumDistance(summary) if mds is None else mds
    sources = Sources(prior, simulator, summary)
    wanted = Settings(num, n_obs, **settings)
    return estimate_bank(sources, wanted, MinimumDistanceEmbedder(mds).rough, workers)


__all__ = ["MinimumDistanceEmbedder", "SimulationBank", "estimate", "simulate"]
