r"""Trained sbi posteriors on disk, as tensors and JSON.

sbi builds the network anew, from its name and shapes; stored tensors, standardisation among them,
are loaded into it. Prior and embedding net are given again.
"""

import math
import os
from pathlib import Path
from typing import Any

import torch
from sbi.inference.posteriors import DirectPosterior
from sbi.neural_nets import posterior_nn
from sbi.utils.sbiutils import Standardize
from torch import Tensor, nn

from mindist import checks, storage
from mindist.posteriors.flow_bridge import fill, with_prefix
from mindist.posteriors.guards import quiet, seeded
from mindist.posteriors.sbi_bridge import EmbeddingSummary, owner_of_net, standardised
from mindist.posteriors.sbi_training import HARMLESS, check_prior
from mindist.schema import Record

KIND = "NeuralPosterior"
ESTIMATORS = ("mdn", "made", "maf", "maf_rqs", "nsf") + tuple(
    f"zuko_{name}" for name in ("nice", "maf", "nsf", "ncsf", "sospf", "naf", "unaf", "gf", "bpf")
)
MAX_INPUT = 2**24  # numbers of a dataset; more are believed of a file with as many weights


def save_posterior(
    path: str | os.PathLike[str],
    posterior: Any,
    *,
    density_estimator: str,
    summary: EmbeddingSummary | None = None,
) -> None:
    """Write a trained NPE, and the learned summary that it is queried at, to a folder.

    Arguments:
        path: A folder that does not exist yet, is empty, or holds an older artefact.
        posterior: A `DirectPosterior`, with or without an embedding net.
        density_estimator: Which one of sbi's it was trained with, such as "nsf" or "mdn".
        summary: The other half of `split_embedding`, to be stored beside the posterior.

    Example:
        >>> import tempfile
        >>> from mindist.posteriors.sbi_bridge import train_npe
        >>> theta, how = torch.randn(200, 1), {"density_estimator": "mdn"}
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1))
        >>> posterior = train_npe(prior, theta, theta, max_num_epochs=1, **how)
        >>> save_posterior(folder := tempfile.mkdtemp(), posterior, **how)
        >>> again, _ = load_posterior(folder, prior)
        >>> bool(again.log_prob(theta[:1], theta[:1]) == posterior.log_prob(theta[:1], theta[:1]))
        True
    """
    if type(posterior) is not DirectPosterior:
        got = f"{type(posterior).__name__}, which mindist could not rebuild"
        raise checks.wrong("posterior", "a DirectPosterior (NPE)", got, kind=TypeError)
    estimator = posterior.posterior_estimator
    config: dict[str, Any] = {"density_estimator": density_estimator}
    config |= {name: list(getattr(estimator, name)) for name in ("input_shape", "condition_shape")}
    config["standardised"] = standardised(owner_of_net(estimator)._embedding_net)
    config["summary"] = None
    tensors = {f"estimator.{name}": value for name, value in estimator.state_dict().items()}
    if summary is not None:
        shape, fixed = list(summary.condition_shape), summary.fixed_size
        config["summary"] = {"condition_shape": shape, "fixed_size": fixed}
        config["summary"]["standardised"] = standardised(summary.net)
        tensors |= {f"summary.{name}": value for name, value in summary.net.state_dict().items()}
    storage.write_artefact(path, KIND, config, tensors)


def load_posterior(
    path: str | os.PathLike[str],
    prior: Any,
    *,
    embedding_net: nn.Module | None = None,
    summary_net: nn.Module | None = None,
) -> tuple[Any, EmbeddingSummary | None]:
    """Read what `save_posterior` wrote: a `DirectPosterior`, and the stored summary or None.

    Equal seeds give the samples of what was saved, bit by bit.

    Arguments:
        path: The folder that was passed to `save_posterior`.
        prior: The prior that the posterior was trained with.
        embedding_net: A network like the posterior's embedding net, with any weights, if it has
            one; it becomes part of the posterior.
        summary_net: A network like the one behind the stored summary, if there is one.

    Example:
        >>> load_posterior("no such folder", prior=None)
        Traceback (most recent call last):
            ...
        FileNotFoundError: ...
    """
    config, tensors = storage.read_artefact(path, KIND)
    settings = Record(Path(path) / storage.JSON_NAME, config)
    settings.word("density_estimator", ESTIMATORS)
    settings.flag("standardised")
    shapes = [(settings, "input_shape"), (settings, "condition_shape")]
    if settings.values.get("summary", settings) is not None:
        own = settings.part("summary")
        own.flag("fixed_size")
        own.flag("standardised")
        shapes.append((own, "condition_shape"))
    elements = max(MAX_INPUT, sum(value.numel() for value in tensors.values()))
    for part, name in shapes:
        if math.prod(part.shape(name)) > elements:
            raise part.refuse(name, f"at most {elements} numbers")
    where = f"in {os.fspath(path)}"
    state, summary_state = with_prefix(tensors, "estimator."), with_prefix(tensors, "summary.")
    net = nn.Identity() if embedding_net is None else embedding_net
    with seeded(0), quiet(*HARMLESS, stdout=True), torch.no_grad():
        check_prior(prior, config["input_shape"], "posterior")
        build: Any = posterior_nn(config["density_estimator"], z_score_x="none", embedding_net=net)
        # Whatever has a spread: its moments are overwritten, as are the initial weights.
        theta, x = (torch.randn(2, *config[key]) for key in ("input_shape", "condition_shape"))
        estimator: Any = build(theta, x)
        owner = owner_of_net(estimator)
        if config["standardised"]:
            net = owner._embedding_net
            owner._embedding_net = _behind_standardiser(net, state, "_embedding_net.0.")
        fill(estimator, state, "posterior", where)
        posterior = DirectPosterior(estimator.eval(), prior, device="cpu")
    if config["summary"] is None:
        return posterior, None
    if summary_net is None:
        said = "expected a network of its architecture, such as task.summary_network(), got None."
        raise ValueError(f"summary_net: {os.fspath(path)} holds a learned summary; {said}")
    if config["summary"]["standardised"]:
        summary_net = _behind_standardiser(summary_net, summary_state, "0.")
    fill(summary_net, summary_state, "summary_net", where)
    shape, fixed_size = config["summary"]["condition_shape"], config["summary"]["fixed_size"]
    return posterior, EmbeddingSummary(summary_net, torch.Size(shape), fixed_size=fixed_size)


def _behind_standardiser(net: nn.Module, state: dict[str, Tensor], prefix: str) -> nn.Module:
    ends = (prefix + "_mean", prefix + "_std")
    found = [value.clone() for end in ends for name, value in state.items() if name.endswith(end)]
    if len(found) != 2:
        said, got = "the mean and the scale of a standardiser", f"{len(found)} tensors"
        raise checks.wrong("path", said, got, "Train and save the posterior again.")
    return nn.Sequential(Standardize(*found), net)


__all__ = ["load_posterior", "save_posterior"]
