r"""The weights of a trained network on disk, as tensors and JSON.

For posteriors that are torch modules: zuko's flows, lampe's estimators, ltu-ili's posteriors.
Nothing is pickled, and nothing runs when weights are read. The architecture is not stored: whoever
loads builds the network again, as in training, and its weights are replaced.
"""

from __future__ import annotations

import os
from typing import TypeVar

from torch import nn

from mindist import storage

KIND = "NetworkWeights"
Net = TypeVar("Net", bound=nn.Module)


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
        >>> import torch
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
