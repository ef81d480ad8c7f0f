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

from torch import Tensor

from mindist.features.embedding import Embedding
from mindist.minimum_distance import MinimumDistance
from mindist.simulation.bank import SimulationBank
from mindist.simulation.build import Request, build
from mindist.simulation.plan import Settings
from mindist.simulation.sources import Sources
from mindist.simulation.work import Embed


class MinimumDistanceEmbedder:
    """The embedding that an estimator chooses; see `mindist.simulation.build.Embedder`.

    Arguments:
        mds: Its settings decide.
    """

    def __init__(self, mds: MinimumDistance) -> None:
        self.mds = mds

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
        return Embedding.from_state(config, tensors, own).mean


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
    embedder = MinimumDistanceEmbedder(MinimumDistance(summary) if mds is None else mds)
    request = Request(Sources(prior, simulator, summary), settings, embedder, workers, progress)
    return build(request, Path(out).expanduser())


__all__ = ["MinimumDistanceEmbedder", "SimulationBank", "simulate"]
