r"""Neural posterior estimation: plain (NPE), on noisy summaries (NNPE), without training (NPE-PFN).

.. math:: \min_\psi \mathbb{E}\left[-\log q_\psi(\theta \mid y)\right], \qquad
    y = f(x_{1:N}) \text{ (NPE)}, \quad y \sim p(y \mid f(x_{1:N})) \text{ (NNPE)}

with sbi's neural spline flow for q, or TabPFN with simulations as its context (NPE-PFN).
References: Ward et al., NeurIPS 2022 (NNPE); Vetter et al., NeurIPS 2025 (NPE-PFN).
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from sbi.inference import NPE_PFN
from sbi.inference.posteriors.posterior_parameters import FilteredDirectPosteriorParameters
from sbi.neural_nets import posterior_nn
from torch import Tensor, nn

from mindist.decoders.ridge import Standardiser
from mindist.posteriors.guards import quiet, seeded
from mindist.posteriors.sbi_bridge import split_embedding
from mindist.posteriors.sbi_training import HARMLESS, NoTracker, train_npe
from mindist.tasks import Task
from mindist_paper.baselines.method import Options, Simulations, SummaryQueries

# Where `make tabpfn` puts the weights; the environment variable MINDIST_TABPFN overrides it
CHECKPOINT = Path("~/.cache/mindist/tabpfn-v2-regressor-2noar4o2.ckpt")
CONTEXT_SIZE = 1_000  # simulations that a CPU takes as the context: about 1 s for each query


class NeuralPosterior(SummaryQueries):
    """A neural posterior, queried at the summary of the observed data, contaminated or not."""


def train_neural_posterior(task: Task, data: Simulations, options: Options) -> NeuralPosterior:
    """Train an NPE, or take the one of the options."""
    if options.npe is not None:
        return options.npe
    how: dict[str, Any] = {**vars(options.training), "seed": options.seed}
    if options.learned_summary:
        net = summary_network(task, options.seed)
        joint = train_npe(task.prior, data.theta, data.datasets(), embedding_net=net, **how)
        summary, posterior = split_embedding(joint)
        return NeuralPosterior(posterior, summary, task.event_shape)
    s = data.summaries(task.summary, task_summary=True)
    posterior = train_npe(task.prior, data.theta, s, **how)
    return NeuralPosterior(posterior, task.summary, task.event_shape)


def summary_network(task: Task, seed: int) -> nn.Module:
    """Return the task's untrained summary network, with initial weights from a seed."""
    with seeded(seed):
        return task.summary_network()


class Squash(nn.Module):
    r"""Put standardised summaries on a scale that a network can take, :math:`\mathrm{asinh}(s)`."""

    def __init__(self, standardise: Standardiser) -> None:
        super().__init__()
        # Constants, but sbi asks an embedding net for its first parameter.
        self.centre = nn.Parameter(standardise.centre.float(), requires_grad=False)
        self.scale = nn.Parameter(standardise.scale.float(), requires_grad=False)

    def forward(self, s: Tensor) -> Tensor:
        """Return squashed summaries `(B, d_s)`."""
        return torch.asinh((s - self.centre) / self.scale)


def train_noisy_posterior(task: Task, data: Simulations, options: Options) -> NeuralPosterior:
    """Train an NPE on noisy summaries: the task's, or those of a jointly trained network."""
    summary = task.summary
    if options.learned_summary or options.npe is not None:
        summary = train_neural_posterior(task, data, options).summary
    s = data.summaries(summary, task_summary=summary == task.summary)
    standardise = Standardiser.of(s)
    generator = torch.Generator().manual_seed(options.seed)
    noise = options.error_model.noise(tuple(s.shape), generator).to(s.device)
    y = (s.double() + standardise.scale * noise).float()
    with quiet("Data has extreme outliers"):  # which is what the slab is for
        how: dict[str, Any] = {**vars(options.training), "seed": options.seed, "z_score_x": "none"}
        posterior = train_npe(task.prior, data.theta, y, embedding_net=Squash(standardise), **how)
    return NeuralPosterior(posterior, summary, task.event_shape)


def train_pfn_posterior(task: Task, data: Simulations, options: Options) -> NeuralPosterior:
    """Return sbi's NPE-PFN on the task's summaries, or on those of a learned one in `npe`."""
    if importlib.util.find_spec("tabpfn") is None:
        raise ImportError("NPE-PFN needs TabPFN. Install it with: pip install 'mindist-paper[pfn]'")
    path = checkpoint_path(options).resolve()
    if not path.is_file():
        got = f"got {path}, which does not exist. `make tabpfn` obtains one and checks it"
        raise FileNotFoundError(f"checkpoint: expected a file with TabPFN's weights, {got}.")
    summary = task.summary if options.npe is None else options.npe.summary
    s = data.summaries(summary, task_summary=options.npe is None)
    device = str(s.device)
    regressor = {"model_path": str(path), "n_estimators": 1, "softmax_temperature": 1.0}
    regressor["device"] = device
    raw = {"z_score_theta": "none", "z_score_x": "none"}
    build: Any = posterior_nn("tabpfn", regressor_init_kwargs=regressor, **raw)
    own = {"device": device, "tracker": NoTracker(), "show_progress_bars": False}
    inference = NPE_PFN(task.prior, density_estimator=build, **own)
    with quiet(*HARMLESS, stdout=True):
        inference.append_simulations(data.theta.float(), s.float())
        posterior = inference.build_posterior(
            posterior_parameters=FilteredDirectPosteriorParameters(filter_size=CONTEXT_SIZE)
        )
    return NeuralPosterior(posterior, summary, task.event_shape)


def checkpoint_path(options: Options) -> Path:
    """Return the options' checkpoint, else the environment's, else the one of `make tabpfn`."""
    chosen = options.checkpoint or os.environ.get("MINDIST_TABPFN") or CHECKPOINT
    return Path(chosen).expanduser()
