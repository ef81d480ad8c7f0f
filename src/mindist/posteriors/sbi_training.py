r"""Training with sbi: conditional and marginal density estimators, and TabPFN, which needs none.

.. math::
    \min_\psi -\textstyle\sum_i \log q_\psi(\theta_i \mid s_i), \qquad
    \min_\psi -\textstyle\sum_i \log q_\psi(s_i) .

Like `sbi_bridge.py`, from which these functions can be imported as well, this file imports sbi.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sbi.inference import NPE, NPE_PFN, MarginalTrainer
from sbi.inference.posteriors.posterior_parameters import FilteredDirectPosteriorParameters
from sbi.neural_nets import posterior_nn
from torch import Tensor, nn

from mindist.posteriors.guards import NoTracker, quiet
from mindist.posteriors.sbi_streaming import StreamedNPE, material
from mindist.posteriors.seeding import seeded
from mindist.protocols import StoredSimulations

# Warnings of sbi and its libraries that our own calls cause and that say nothing to our users.
HARMLESS: tuple[str, ...] = (
    "torch.triangular_solve is deprecated",  # nflows' LU layer, when a spline flow is inverted
    ".*samples drawn with reject_outside_prior",  # we draw without rejection to reject ourselves
    "Capping max_sampling_batch_size",  # our batches are already within sbi's cap
    "Maximum number of epochs",  # the caller of train_npe chose the number
    "Running on CPU with more than",  # TabPFN, whose context our caller has limited
)


@torch.enable_grad()  # which importing BayesFlow turns off
def train_npe(
    prior: Any,
    theta: Tensor | StoredSimulations,
    x: Tensor | None = None,
    *,
    density_estimator: str = "nsf",
    embedding_net: nn.Module | None = None,
    z_score_x: str | None = None,
    learning_rate: float = 5e-4,
    max_num_epochs: int = 2**31 - 1,
    batch_size: int = 200,
    stop_after_epochs: int = 20,
    seed: int | None = None,
    show_progress: bool = False,
) -> Any:
    """Train sbi's NPE, printing and writing nothing.

    The defaults are the paper's (appendix, Further Experimental Details): a neural spline flow as
    sbi configures it, Adam at 5e-4, until convergence by sbi's early stopping.

    Arguments:
        prior: A torch distribution, or any prior that sbi takes.
        theta: Parameters `(M, d_theta)`; or a bank of simulations (`mindist.simulate`), alone. Of a
            bank, without an embedding net, parameters and summaries are read into memory. With
            one, its data are: whole up to 256 MB, otherwise in each epoch in random blocks, from
            which batches are drawn; the last tenth is for validation, and the first 64 MB of the
            data give the scales for sbi's standardisation.
        x: What to condition on: summaries `(M, d_s)`, or datasets `(M, N, *event)` together with
            an embedding net.
        density_estimator: One of sbi's, such as "nsf", "maf", "mdn" or "zuko_nsf".
        embedding_net: Maps datasets `(B, N, *event)` to summaries; a copy is trained jointly.
        z_score_x: sbi's standardisation of x: "independent", "structured" or "none". By default
            "independent" for summaries, and "structured" before an embedding net, where
            "independent" would break permutation invariance.
        learning_rate: Of Adam.
        max_num_epochs: At most this many epochs.
        batch_size: Of training; sbi's default.
        stop_after_epochs: Epochs without improvement before stopping; sbi's default.
        seed: For initial weights and batches; None draws from the global generator.
        show_progress: Let sbi print the number of epochs.

    Returns:
        A `DirectPosterior`.

    Example:
        >>> import torch
        >>> theta = torch.randn(200, 1)
        >>> s = theta + 0.1 * torch.randn(200, 1)
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        >>> short = {"density_estimator": "mdn", "max_num_epochs": 1, "seed": 0}
        >>> posterior = train_npe(prior, theta, s, **short)
        >>> posterior.sample((5,), x=s[:1], show_progress_bars=False).shape
        torch.Size([5, 1])
    """
    default = "independent" if embedding_net is None else "structured"
    net = nn.Identity() if embedding_net is None else copy.deepcopy(embedding_net)
    theta, x, kept = material(theta, x, embedding_net)
    device, method = theta.device, NPE if kept is None else partial(StreamedNPE, kept)
    with seeded(seed, device), quiet(*HARMLESS, stdout=not show_progress):
        build: Callable[..., Any] = posterior_nn(
            density_estimator, z_score_x=z_score_x or default, embedding_net=net
        )
        inference = method(
            prior,
            density_estimator=build,
            device=str(device),
            tracker=NoTracker(),
            show_progress_bars=show_progress,
        )
        inference.append_simulations(theta.float(), x.float()).train(
            training_batch_size=batch_size,
            learning_rate=learning_rate,
            stop_after_epochs=stop_after_epochs,
            max_num_epochs=max_num_epochs,
        )
        return inference.build_posterior()


@torch.enable_grad()
def train_marginal(
    s: Tensor,
    *,
    learning_rate: float = 5e-4,
    max_num_epochs: int = 2**31 - 1,
    batch_size: int = 200,
    stop_after_epochs: int = 20,
    seed: int | None = None,
) -> Any:
    """Train sbi's neural spline flow on the distribution of summaries `(M, d_s)`.

    Arguments:
        s: Summaries.
        learning_rate: Of Adam.
        max_num_epochs: At most this many epochs.
        batch_size: Of training.
        stop_after_epochs: Epochs without improvement before stopping.
        seed: For initial weights and batches.

    Returns:
        An estimator with `log_prob(s)` of summaries `(n, d_s)` and `sample((n,))`, frozen.

    Example:
        >>> import torch
        >>> s = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> train_marginal(s, max_num_epochs=1, seed=0).log_prob(s[:3]).shape
        torch.Size([3])
    """
    with seeded(seed, s.device), quiet(*HARMLESS, stdout=True):
        trainer = MarginalTrainer(
            "nsf", device=str(s.device), tracker=NoTracker(), show_progress_bars=False
        )
        flow = trainer.append_samples(s.float()).train(
            training_batch_size=batch_size,
            learning_rate=learning_rate,
            stop_after_epochs=stop_after_epochs,
            max_num_epochs=max_num_epochs,
        )
        return flow.requires_grad_(False).eval()


def train_pfn(
    prior: Any,
    theta: Tensor,
    s: Tensor,
    *,
    checkpoint: str | os.PathLike[str],
    context_size: int = 1_000,
) -> Any:
    """NPE-PFN: TabPFN with simulations as its context; nothing is trained.

    Arguments:
        prior: A torch distribution.
        theta: Parameters `(M, d_theta)`.
        s: Summaries `(M, d_s)`.
        checkpoint: A file with the weights of a TabPFN regressor. No model hub is asked for it.
        context_size: Simulations in the context. With more simulations than that, each query takes
            the nearest ones (sbi's "knn" filter).

    Returns:
        A `FilteredDirectPosterior`.

    Example:
        >>> import torch
        >>> train_pfn(None, torch.zeros(9, 1), torch.zeros(9, 1), checkpoint="no such file")
        Traceback (most recent call last):
            ...
        FileNotFoundError: checkpoint: expected a file with TabPFN's weights, got ...
    """
    path = Path(checkpoint).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint: expected a file with TabPFN's weights, got {path}, which does not exist. "
            "`make tabpfn` (scripts/fetch_tabpfn.py) obtains one and checks it."
        )
    regressor = {"model_path": str(path), "n_estimators": 1, "softmax_temperature": 1.0}
    build: Callable[..., Any] = posterior_nn(
        "tabpfn",
        z_score_theta="none",
        z_score_x="none",
        regressor_init_kwargs={**regressor, "device": str(theta.device)},
    )
    inference = NPE_PFN(
        prior,
        density_estimator=build,
        device=str(theta.device),
        tracker=NoTracker(),
        show_progress_bars=False,
    )
    with quiet(*HARMLESS, stdout=True):
        inference.append_simulations(theta.float(), s.float())
        return inference.build_posterior(
            posterior_parameters=FilteredDirectPosteriorParameters(filter_size=context_size)
        )


__all__ = ["HARMLESS", "train_marginal", "train_npe", "train_pfn"]
