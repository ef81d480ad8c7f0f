r"""NPE-PFN: a tabular foundation model as the posterior, with simulations as its context.

.. math:: p(\theta \mid s) \approx \prod_j q(\theta_j \mid \theta_{<j}, s;\,
    \{(\theta_i, s_i)\}_{i=1}^{m})

with TabPFN for q: nothing is trained, so there is nothing to retrain robustly, and adapting the
summary at test time is what is left (appendix "NPE with Tabular Foundation Models").

Reference: Vetter et al., Effortless, Simulation-Efficient Bayesian Inference using Tabular
Foundation Models, NeurIPS 2025. Weights: Prior Labs (Hollmann et al., Nature 637, 2025), obtained
by scripts/fetch_tabpfn.py; their licence is not ours.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbi.inference import NPE_PFN
from sbi.inference.posteriors.posterior_parameters import FilteredDirectPosteriorParameters
from sbi.neural_nets import posterior_nn
from torch import Tensor

from mindist.posteriors.guards import quiet
from mindist.posteriors.sbi_training import HARMLESS, NoTracker
from mindist.tasks.task import Task
from mindist_paper.baselines.mds import MinimumDistanceMethod, robust_method, unfitted
from mindist_paper.baselines.method import Options, Simulations
from mindist_paper.baselines.npe import NeuralPosterior

CHECKPOINT = Path("~/.cache/mindist/tabpfn-v2-regressor-2noar4o2.ckpt")
"""Where `make tabpfn` puts the weights; the environment variable MINDIST_TABPFN overrides it."""

CONTEXT_SIZE = (
    1_000  # simulations in the context, as many as a CPU takes (about 1 s for each query)
)


def train_pfn(
    prior: Any,
    theta: Tensor,
    s: Tensor,
    *,
    checkpoint: str | os.PathLike[str],
    context_size: int = CONTEXT_SIZE,
) -> Any:
    """Return sbi's NPE-PFN: TabPFN with simulations as its context; nothing is trained.

    Arguments:
        prior: A torch distribution.
        theta: Parameters `(M, d_theta)`.
        s: Summaries `(M, d_s)`.
        checkpoint: A file with the weights of a TabPFN regressor. No model hub is asked for it.
        context_size: Simulations in the context. With more simulations than that, each query takes
            the nearest ones (sbi's "knn" filter).
    """
    path = Path(checkpoint).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint: expected a file with TabPFN's weights, got {path}, which does not exist. "
            "`make tabpfn` (scripts/fetch_tabpfn.py) obtains one and checks it."
        )
    device = str(theta.device)
    regressor = {"model_path": str(path), "n_estimators": 1, "softmax_temperature": 1.0}
    build: Callable[..., Any] = posterior_nn(
        "tabpfn",
        z_score_theta="none",
        z_score_x="none",
        regressor_init_kwargs={**regressor, "device": device},
    )
    own = {"device": device, "tracker": NoTracker(), "show_progress_bars": False}
    inference = NPE_PFN(prior, density_estimator=build, **own)
    with quiet(*HARMLESS, stdout=True):
        inference.append_simulations(theta.float(), s.float())
        return inference.build_posterior(
            posterior_parameters=FilteredDirectPosteriorParameters(filter_size=context_size)
        )


def train_pfn_posterior(task: Task, simulations: Simulations, options: Options) -> NeuralPosterior:
    """NPE-PFN on the task's summaries, or on those of a jointly learned network in `npe`."""
    if importlib.util.find_spec("tabpfn") is None:
        raise ImportError("NPE-PFN needs TabPFN. Install it with: pip install 'mindist[pfn]'")
    summary = task.summary if options.npe is None else options.npe.summary
    s = simulations.summaries(summary, task_summary=options.npe is None)
    posterior = train_pfn(
        task.prior,
        simulations.theta,
        s,
        checkpoint=checkpoint_path(options),
        context_size=CONTEXT_SIZE,
    )
    return NeuralPosterior(posterior, summary, task.event_shape)


def train_pfn_minimum_distance(
    task: Task, simulations: Simulations, options: Options
) -> MinimumDistanceMethod:
    """NPE-PFN queried at minimum-distance summaries (the paper's variant, MDS-RF)."""
    pfn = train_pfn_posterior(task, simulations, options)
    mds = unfitted("rf", pfn.summary, options).fit(simulations.x)
    return robust_method(pfn.posterior, mds, options)


def checkpoint_path(options: Options) -> Path:
    """The options' checkpoint, else the environment's, else the one of `make tabpfn`."""
    chosen = options.checkpoint or os.environ.get("MINDIST_TABPFN") or CHECKPOINT
    return Path(chosen).expanduser()


__all__ = ["CHECKPOINT", "checkpoint_path", "train_pfn_minimum_distance", "train_pfn_posterior"]
