r"""The bridge to estimators that give a distribution, :math:`s \mapsto q(\cdot \mid s)`, and files.

zuko's flows and mixtures are such functions, and lampe's NPE and FMPE have one as `flow`. Neither
library is imported: all that is asked for are a distribution's `sample` and `log_prob`.

Neither library knows of a prior, so no draw is rejected. Wrap
`CallablePosterior(sample, log_prob, prior)` where a prior has bounds.

`save_weights` and `load_weights` are for all posteriors that are torch modules: zuko's, lampe's and
ltu-ili's. Nothing is pickled, and nothing runs when weights are read. The architecture is not
stored: whoever loads builds the network again, as in training, and its weights are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mindist import storage
from mindist.posteriors.backend import Backend
from mindist.posteriors.callable_bridge import Density, over_summaries
from mindist.posteriors.guards import no_options

KIND = "NetworkWeights"
Net = TypeVar("Net", bound=nn.Module)


class FlowDensity(Density):
    """The density that a network gives for each summary.

    Arguments:
        net: The module that has the weights.
        conditional: Maps summaries `(B, d_s)` to a distribution over `(B, d_theta)`.
    """

    def __init__(self, net: nn.Module, conditional: Callable[[Tensor], Any]) -> None:
        super().__init__(net=net)
        self.conditional = conditional

    def draw(self, num_samples: int, s: Tensor, /, **options: Any) -> Tensor:
        """Draw `(num_samples, B, d_theta)`."""
        no_options(options)
        theta: Tensor = self.conditional(s).sample(torch.Size((num_samples,)))
        return theta

    def log_density(self, theta: Tensor, s: Tensor, **options: Any) -> Tensor:
        """Return log q, `(S, B)`, differentiable in theta."""
        no_options(options)
        log_q: Tensor = self.conditional(s).log_prob(theta)
        return log_q


def bridge(posterior: Any, example: Tensor | None) -> Backend:
    """Return the backend of a network that gives distributions, as zuko's and lampe's do."""
    of_zuko = any(base.__module__.startswith("zuko.") for base in type(posterior).__mro__)
    conditional = posterior if of_zuko else getattr(posterior, "flow", None)
    if not isinstance(posterior, nn.Module) or not callable(conditional):
        raise TypeError(
            "posterior: expected a conditional distribution of zuko, or an NPE or FMPE of lampe, "
            f"got {type(posterior).__name__}. A ratio estimator has to be sampled by other means: "
            "wrap a function f(s, n) that does it."
        )
    return over_summaries(FlowDensity(posterior, conditional), example)


def save_weights(path: str | os.PathLike[str], net: nn.Module) -> None:
    """Write the parameters and buffers of a network to a folder.

    Arguments:
        path: A folder that does not exist yet, is empty, or holds an older artefact.
        net: The network.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save_weights(folder, nn.Linear(2, 1))
        >>> sorted(os.listdir(folder))
        ['mindist.json', 'tensors.safetensors']
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net: expected a torch module, got {type(net).__name__}.")
    # Two names may share their memory, which safetensors refuses.
    tensors = {name: value.clone() for name, value in net.state_dict().items()}
    storage.write_artefact(path, KIND, {"network": type(net).__name__}, tensors)


def load_weights(path: str | os.PathLike[str], net: Net) -> Net:
    """Read what `save_weights` wrote into a network of the same architecture, and return it.

    Arguments:
        path: The folder that was passed to `save_weights`.
        net: A network with the names and shapes of the stored one; its weights are replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net = nn.Linear(2, 1)
        ...     save_weights(folder, net)
        ...     twin = load_weights(folder, nn.Linear(2, 1))
        >>> torch.equal(net.weight, twin.weight)
        True
    """
    config, tensors = storage.read_artefact(path, KIND)
    try:
        net.load_state_dict(tensors, strict=True)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "net: expected a network with the names and shapes of the weights of the "
            f"{config.get('network')} in {os.fspath(path)}, got another one: {str(error)[:300]}"
        ) from error
    return net


__all__ = ["load_weights", "save_weights"]
